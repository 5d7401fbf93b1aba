//! A network block device server: one export, which is a device that may still be in the making.
//!
//! 1. [`NbdServer`] accepts clients on a Unix or TCP socket, several at a time.
//! 2. `negotiate` talks with each about what it wants; the parts that depend on the device's size wait for the device.
//! 3. `session` takes requests, several of one client at once: of a connection's threads one receives, the others execute
//!    what they received and send the answers. So a request needs no queue, and a thread no more memory than one piece.
//! 4. [`wire`] is what the bytes mean (the NBD project's `doc/proto.md`).
//!
//! Nothing that a client sends ends the server or makes it allocate what the client says: a request that makes no sense
//! is answered by an error, bytes that make no sense end the connection.

#![forbid(unsafe_code)]

mod event;
mod negotiate;
mod read;
mod server;
mod session;
pub mod wire;

pub use event::Event;
pub use inarch_server::{ConnectionError, Listener};
pub use server::{NbdOptions, NbdServer};
