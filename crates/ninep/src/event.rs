//! What a server has to tell whoever runs it.

use inarch_server::ConnectionError;

/// Something went wrong that does not end the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Event {
    /// A client lost its connection.
    #[error("a client was disconnected: {0}")]
    ConnectionLost(ConnectionError),
    /// A client was turned away: there are too many.
    #[error("a client was turned away: {0} are connected already")]
    TooManyClients(usize),
}
