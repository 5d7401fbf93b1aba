//! The events that a 9P server reports to its caller.

use inarch_server::ConnectionError;

/// A failure that does not end the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Event {
    /// A client lost its connection.
    #[error("a client was disconnected: {0}")]
    ConnectionLost(ConnectionError),
    /// A client was rejected: too many are connected.
    #[error("a client was turned away: {0} are connected already")]
    TooManyClients(usize),
}
