//! A 9P2000.L server for guests and programs that mount a file system over a socket. The file system may still be under
//! construction.
//!
//! 1. [`NinepServer`] accepts clients on a Unix, TCP or vsock socket, several at a time.
//! 2. `session` executes requests, several of one client at once. One thread of a connection receives, and executes
//!    requests that are quick by nature; the others execute what they received and reply. A request that waits for a
//!    lock is parked without a thread.
//! 3. `session::fids` maps a client's fids to nodes of the file system, by value and never by path. A fid costs a few
//!    bytes until it is opened.
//! 4. [`wire`] encodes and parses the messages.
//!
//! No client can end the server or choose how much memory it allocates. An invalid request gets an error; bytes that
//! are no request end the connection.

#![forbid(unsafe_code)]

mod event;
mod server;
mod session;
pub mod wire;

pub use event::Event;
pub use inarch_server::{ConnectionError, Listener};
pub use server::{NinepOptions, NinepServer};
