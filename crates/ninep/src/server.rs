//! [`NinepServer`]: accepts clients and serves each.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use inarch_server::{Clients, ConnectionError, Listener, Pending, Receiver, Seat, Sender, StopHandle, prepare};
use inarch_vfs::{FileSystem, open_file_limit};

use crate::event::Event;
use crate::session::{Export, Session, Shared};
use crate::wire::IO_HEADER;

/// Where events go.
type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// The limits of clients.
#[derive(Clone, Debug)]
pub struct NinepOptions {
    /// The most connections at a time. At this limit, the server disconnects the oldest client that has not yet sent its version. If
    /// all have, it closes the new connection.
    pub connections: usize,
    /// The most bytes of a message, 4096 to 1 MiB (`msize`); a client may ask for less.
    pub msize: u32,
    /// The most fids of a connection.
    pub fids: usize,
    /// The most bytes that a connection's fids may refer to: names, parent directories, open files.
    pub fid_bytes: usize,
    /// The same of all connections together; a few of these bytes are reserved in equal shares for the possible
    /// connections.
    pub all_fid_bytes: usize,
    /// The most files that all connections may have open at once; a few of them are reserved in equal shares for the
    /// possible connections.
    pub open_files: usize,
    /// The most requests of a connection that run at once.
    pub threads: usize,
    /// The most requests of a connection that wait for a lock; further ones learn that it is taken.
    pub waiting_locks: usize,
    /// The most bytes of extended attributes that a connection has read or begun to write.
    pub xattr_bytes: usize,
    /// Whether the first change of a file copies it to an upper layer: such requests hold up no others.
    pub copies_up: bool,
    /// How long a client may take to send its version; on a listening Unix socket from its first byte on.
    pub negotiation: Duration,
}

impl NinepOptions {
    /// The greatest `msize`: what Linux's client accepts over a socket (`MAX_SOCK_BUF` of net/9p/trans_fd.c).
    pub const MAX_MSIZE: u32 = 1 << 20;
    /// The least `msize`. A client that asks for less is refused, because names and attributes would not fit.
    pub const MIN_MSIZE: u32 = 4096;
}

impl Default for NinepOptions {
    fn default() -> Self {
        NinepOptions {
            connections: 64,
            msize: NinepOptions::MAX_MSIZE,
            fids: 1 << 22,
            fid_bytes: 512 << 20,
            all_fid_bytes: 2 << 30,
            open_files: open_file_limit(),
            threads: 8,
            waiting_locks: 1024,
            xattr_bytes: 16 << 20,
            copies_up: false,
            negotiation: Duration::from_secs(30),
        }
    }
}

/// Serves a file system to 9P clients.
pub struct NinepServer {
    file_system: Arc<Pending<Arc<dyn FileSystem>>>,
    shared: Arc<Shared>,
    options: NinepOptions,
    events: EventSink,
    requests: Arc<AtomicU64>,
}

impl NinepServer {
    /// A server of `file_system`, which may still be under construction: a client's first message waits for it. An
    /// `msize` out of range is clamped.
    pub fn new(file_system: Arc<Pending<Arc<dyn FileSystem>>>, options: NinepOptions) -> NinepServer {
        let msize = options.msize.clamp(NinepOptions::MIN_MSIZE.max(IO_HEADER), NinepOptions::MAX_MSIZE);
        let options = NinepOptions { msize, ..options };
        NinepServer {
            file_system,
            shared: Arc::new(Shared::new(options.open_files, options.all_fid_bytes, options.connections)),
            options,
            events: Arc::new(|_| {}),
            requests: Arc::default(),
        }
    }

    /// Calls `sink` for failures that do not end the server, from any thread.
    pub fn on_event(self, sink: impl Fn(Event) + Send + Sync + 'static) -> NinepServer {
        NinepServer { events: Arc::new(sink), ..self }
    }

    /// Adds the requests of all clients to `requests`.
    pub fn count_in(self, requests: Arc<AtomicU64>) -> NinepServer {
        NinepServer { requests, ..self }
    }

    /// Serves one connected client until it disconnects.
    ///
    /// # Errors
    /// The connection ended before the client ended it.
    pub fn serve_stream(&self, stream: impl Into<OwnedFd>) -> Result<(), ConnectionError> {
        self.serve(&stream.into(), &|| false, &Seat::alone())
    }

    /// Accepts clients and serves them until `stop` is used.
    ///
    /// # Errors
    /// The listening socket fails. An error of one client only ends that client's connection.
    pub fn serve_listener(&self, listener: &Listener, stop: &StopHandle) -> io::Result<()> {
        listener.serve(self, stop, false)
    }

    /// Like [`NinepServer::serve_listener`], but uses `stop` itself once a client has sent its version and no client is
    /// connected any more.
    ///
    /// # Errors
    /// As there.
    pub fn serve_once(&self, listener: &Listener, stop: &StopHandle) -> io::Result<()> {
        listener.serve(self, stop, true)
    }
}

impl Clients for NinepServer {
    fn most(&self) -> usize {
        self.options.connections
    }

    fn wait_for_first_byte(&self) -> bool {
        true
    }

    fn serve(
        &self,
        socket: &OwnedFd,
        stopped: &(dyn Fn() -> bool + Sync),
        seat: &Seat<'_>,
    ) -> Result<(), ConnectionError> {
        prepare(socket)?;
        if !self.file_system.wait_unless(stopped) {
            return Ok(());
        }
        // The file system's maker reports the reason; the client sees the end of its connection.
        let Ok(file_system) = self.file_system.wait() else { return Ok(()) };
        let export = Export::new(Arc::clone(&file_system), Arc::clone(&self.shared), self.options.fid_bytes);
        tracing::debug!("a client is served");
        let sender = Sender::new(socket);
        let receiver = Receiver::new(socket, self.options.negotiation);
        Session::new(Arc::new(export), &self.options, receiver, &sender, stopped, (seat, &self.requests)).run();
        tracing::debug!(requests = self.requests.load(Ordering::Relaxed), "a client has left");
        sender.into_result()
    }

    fn turned_away(&self) {
        (self.events)(Event::TooManyClients(self.most()));
    }

    fn lost(&self, error: ConnectionError) {
        (self.events)(Event::ConnectionLost(error));
    }

    fn stopped(&self) {
        self.file_system.wake();
    }
}
