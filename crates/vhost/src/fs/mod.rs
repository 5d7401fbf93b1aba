//! The virtio file system device (virtio 1.2, section 5.11): serves an [`inarch_vfs::FileSystem`] to guests as
//! virtiofs.
//!
//! A request is a FUSE message in the readable part of a chain; the reply goes to the writable part. [`inarch_fuse`]
//! parses and executes the messages; this module moves them.

mod config;
mod device;

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;

use inarch_fuse::ConnectionOptions;
use inarch_server::StopHandle;
use inarch_vfs::FileSystem;

pub use config::{InvalidTag, TAG_SIZE, Tag};
pub use device::VirtioFs;

use crate::call::LeftBehind;
use crate::event::{Event, EventSink};
use crate::serve::{self, ServeError};

/// The most connections at once.
pub const MAX_CONNECTIONS: usize = 64;

/// How a file system is offered.
#[derive(Clone, Copy, Debug)]
pub struct FsOptions {
    /// Number of request queues, at least 1, not counting the high-priority queue.
    pub queues: u16,
    /// The tag, for front ends that have none of their own. QEMU has one, and QEMU 7.1 to 8.0 may crash if it is
    /// offered another.
    pub tag: Option<Tag>,
    /// The options of the FUSE connection with the guest's kernel.
    pub connection: ConnectionOptions,
}

impl Default for FsOptions {
    fn default() -> Self {
        FsOptions { queues: 1, tag: None, connection: ConnectionOptions::default() }
    }
}

/// Serves a file system over vhost-user.
pub struct FsServer {
    open: Box<dyn Fn() -> io::Result<Arc<dyn FileSystem>> + Send + Sync>,
    options: FsOptions,
    events: EventSink,
    requests: Arc<AtomicU64>,
    left_behind: LeftBehind,
}

impl FsServer {
    /// A server of the file system that `open` returns. Each connection gets its own, because what a guest has open and
    /// knows ends with its connection.
    pub fn new(
        open: impl Fn() -> io::Result<Arc<dyn FileSystem>> + Send + Sync + 'static,
        options: FsOptions,
    ) -> FsServer {
        FsServer {
            open: Box::new(open),
            options,
            events: Arc::new(|_| {}),
            requests: Arc::default(),
            left_behind: LeftBehind::default(),
        }
    }

    /// Calls `sink` for failures that do not end the server, from the queues' threads.
    pub fn on_event(self, sink: impl Fn(Event) + Send + Sync + 'static) -> FsServer {
        FsServer { events: Arc::new(sink), ..self }
    }

    /// Adds the requests of all front ends to `requests`.
    pub fn count_in(self, requests: Arc<AtomicU64>) -> FsServer {
        FsServer { requests, ..self }
    }

    /// Serves one connected front end, such as the other end of a socket that QEMU inherited, until it disconnects.
    ///
    /// # Errors
    /// The file system cannot be opened, or the front end breaks the protocol; its rings are stopped.
    pub fn serve_stream(&self, stream: UnixStream) -> Result<(), ServeError> {
        serve::serve_stream(stream, self.connect()?, Arc::clone(&self.events), &self.left_behind)
    }

    /// Accepts front ends and serves each in a thread of its own, until `stop` is used.
    ///
    /// # Errors
    /// The listening socket fails. A front end that breaks the protocol only loses its own connection.
    pub fn serve_listener(&self, listener: UnixListener, stop: &StopHandle) -> Result<(), ServeError> {
        thread::scope(|scope| {
            let mut connections: Vec<thread::ScopedJoinHandle<'_, ()>> = Vec::new();
            while let Some(stream) = serve::accept(&listener, stop)? {
                connections.retain(|connection| !connection.is_finished());
                if connections.len() >= MAX_CONNECTIONS {
                    // Dropping the socket closes the front end's connection.
                    continue;
                }
                let serve = move || {
                    if let Err(error) = self.serve_until_stopped(stream, stop) {
                        (self.events)(serve::lost(error));
                    }
                };
                connections.push(thread::Builder::new().name("vhost-fs".into()).spawn_scoped(scope, serve)?);
            }
            Ok(())
        })
    }

    /// Accepts one front end and serves it until it disconnects, or `stop` is used.
    ///
    /// # Errors
    /// As [`FsServer::serve_stream`], or the listening socket fails.
    pub fn serve_one(&self, listener: UnixListener, stop: &StopHandle) -> Result<(), ServeError> {
        match serve::accept(&listener, stop)? {
            Some(stream) => self.serve_until_stopped(stream, stop),
            None => Ok(()),
        }
    }

    fn serve_until_stopped(&self, stream: UnixStream, stop: &StopHandle) -> Result<(), ServeError> {
        serve::serve_until_stopped(stream, self.connect()?, Arc::clone(&self.events), &self.left_behind, stop)
    }

    /// A device for a new driver.
    fn connect(&self) -> Result<Arc<VirtioFs>, ServeError> {
        Ok(Arc::new(VirtioFs::new((self.open)()?, self.options).count_in(Arc::clone(&self.requests))))
    }
}
