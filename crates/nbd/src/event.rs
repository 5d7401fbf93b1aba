//! What a server has to tell whoever runs it.

use std::io;

use inarch_server::ConnectionError;

/// Something went wrong that the client learns only as an error, or not at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Event {
    /// The device failed a request.
    #[error("{operation} of {length} bytes at {offset}: {error}")]
    RequestFailed {
        /// What was to be done.
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
    /// A client was turned away: there are too many.
    #[error("a client was turned away: {0} are connected already")]
    TooManyClients(usize),
}
