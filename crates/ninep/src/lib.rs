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
//!
//! ```no_run
//! use std::os::unix::net::UnixListener;
//! use std::path::Path;
//! use std::sync::Arc;
//! use inarch_ninep::{Listener, NinepOptions, NinepServer};
//! use inarch_server::{Pending, StopHandle};
//! use inarch_vfs::{FileSystem, HostDirectory, HostOptions};
//!
//! let files: Arc<dyn FileSystem> = Arc::new(HostDirectory::new(Path::new("/srv"), HostOptions::default())?);
//! let server = NinepServer::new(Arc::new(Pending::ready(Arc::new(files))), NinepOptions::default());
//! let listener = Listener::Unix(UnixListener::bind("/run/srv.sock")?);
//! server.serve_listener(&listener, &StopHandle::new()?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod event;
mod server;
mod session;
pub mod wire;

pub use event::Event;
pub use inarch_server::{ConnectionError, Listener};
pub use server::{NinepOptions, NinepServer};
