//! What a server has to tell whoever runs it.

use std::io;
use std::sync::Arc;

use crate::serve::ServeError;

/// Something went wrong that the guest learns only as an error status, or not at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Event {
    /// The device failed a request.
    #[error("{operation} of {length} bytes at {offset}: {error}")]
    RequestFailed {
        /// What was to be done: `read`, `write`, `discard`, `write zeroes` or `flush`.
        operation: &'static str,
        /// First byte of the range on the device.
        offset: u64,
        /// Bytes of the range.
        length: u64,
        /// The device's reason.
        error: io::Error,
    },
    /// A request made the device panic; the guest got an error status.
    #[error("a request on queue {queue} panicked: {message}")]
    RequestPanicked {
        /// Index of the virtqueue.
        queue: u16,
        /// What the panic said.
        message: String,
    },
    /// A virtqueue was stopped because the guest's driver broke its rules.
    #[error("queue {queue} is stopped: {reason}")]
    QueueStopped {
        /// Index of the virtqueue.
        queue: u16,
        /// Which rule.
        reason: String,
    },
    /// A front end lost its connection because it broke the protocol.
    #[error("a front end was disconnected: {error}")]
    ConnectionLost {
        /// What it did.
        error: ServeError,
    },
}

/// Where events go.
pub(crate) type EventSink = Arc<dyn Fn(Event) + Send + Sync>;
