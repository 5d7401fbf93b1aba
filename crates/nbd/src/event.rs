//! What a server has to tell whoever runs it.

use std::io;

/// Why a connection ended before the client ended it.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The client hung up in the middle of a message.
    #[error("the client hung up in the middle of a message")]
    Cut,
    /// The client sent what has no meaning.
    #[error("the client does not speak NBD: {0}")]
    Protocol(&'static str),
    /// Nothing came, or nothing was taken, for too long.
    #[error("the client stalled: {0}")]
    Stalled(&'static str),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    /// A request made the device panic.
    #[error("a request panicked")]
    Panicked,
}

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
