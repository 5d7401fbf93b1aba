//! A network block device (NBD) server with one export, whose device may still be under construction.
//!
//! 1. [`NbdServer`] accepts clients on a Unix or TCP socket, several at a time.
//! 2. `negotiate` agrees with each client on the export and its features. Answers that need the device's size wait for
//!    the device.
//! 3. `session` executes requests, several of one client at once. One thread of a connection receives; the others
//!    execute what they received and send the answers. So there is no request queue, and a thread needs memory for one
//!    piece only.
//! 4. [`wire`] encodes and parses the messages (the NBD project's `doc/proto.md`).
//!
//! No client can end the server or choose how much memory it allocates. An invalid request gets an error; bytes that
//! are no request end the connection.
//!
//! ```no_run
//! use std::os::unix::net::UnixListener;
//! use std::sync::Arc;
//! use inarch_nbd::{Listener, NbdOptions, NbdServer};
//! use inarch_server::{BlockDevice, Pending, StopHandle};
//!
//! fn serve(device: impl BlockDevice) -> std::io::Result<()> {
//!     let pending = Arc::new(Pending::ready(Arc::new(device)));
//!     let server = NbdServer::new(pending, NbdOptions { name: "disk".into(), ..NbdOptions::default() });
//!     let listener = Listener::Unix(UnixListener::bind("/run/disk.sock")?);
//!     server.serve_listener(&listener, &StopHandle::new()?)
//! }
//! ```

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
