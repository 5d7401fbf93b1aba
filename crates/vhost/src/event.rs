//! The events that a vhost-user server reports to its caller.

use std::io;
use std::sync::Arc;

use crate::serve::ServeError;

/// A failure that the guest sees only as an error status, or not at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Event {
    /// The device failed a request.
    #[error("{operation} of {length} bytes at {offset}: {error}")]
    RequestFailed {
        /// The operation: `read`, `write`, `discard`, `write zeroes` or `flush`.
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
        /// The panic's message.
        message: String,
    },
    /// A virtqueue was stopped because the guest's driver broke virtio's rules.
    #[error("queue {queue} is stopped: {reason}")]
    QueueStopped {
        /// Index of the virtqueue.
        queue: u16,
        /// Which rule.
        reason: String,
    },
    /// A stopped server does not wait any longer for a connection.
    #[error("{error}")]
    StillConnected {
        /// Why not.
        error: ServeError,
    },
    /// A front end lost its connection because it broke the protocol.
    #[error("a front end was disconnected: {error}")]
    ConnectionLost {
        /// How.
        error: ServeError,
    },
}

/// Where events go.
pub(crate) type EventSink = Arc<dyn Fn(Event) + Send + Sync>;
