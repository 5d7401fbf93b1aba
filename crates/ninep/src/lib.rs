//! A 9P2000.L server: a file system that may still be in the making, for guests and programs that mount it over a socket.
//!
//! 1. [`NinepServer`] accepts clients on a Unix, TCP or vsock socket, several at a time.
//! 2. `session` takes requests, several of one client at once: of a connection's threads one receives, and executes what is
//!    quick by nature; the others execute what they received and answer. The one kind of request that may wait long, for a
//!    lock of somebody else's, is parked without a thread.
//! 3. `session::fids` is what a client's numbers stand for: nodes of the file system, by value and never by path.
//!    Only what is open holds more than some bytes of memory.
//! 4. [`wire`] is what the bytes mean.
//!
//! Nothing that a client sends ends the server or makes it allocate what the client says: a request that makes no sense
//! is answered by an error, bytes that make no sense end the connection.

#![forbid(unsafe_code)]

mod event;
mod server;
mod session;
pub mod wire;

pub use event::Event;
pub use inarch_server::{ConnectionError, Listener};
pub use server::{NinepOptions, NinepServer};
