//! The events that an NBD server reports to its caller.

use std::io;

use inarch_server::ConnectionError;

/// A failure that the client sees only as an error, or not at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Event {
    /// The device failed a request.
    #[error("{operation} of {length} bytes at {offset}: {error}")]
    RequestFailed {
        /// The operation.
        operation: &'static str,
        /// First byte of the range on the device.
        offset: u64,
        /// Bytes of the range.
        length: u64,
        /// The device's reason.
        error: io::Error,
    },
    /// A client lost its connection.
    #[error("a client was disconnected: {0}")]
    ConnectionLost(ConnectionError),
    /// A client was rejected: too many are connected.
    #[error("a client was turned away: {0} are connected already")]
    TooManyClients(usize),
}
