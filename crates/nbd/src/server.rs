//! Clients: accepted, counted, served, each by threads of its own.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

use inarch_server::{BlockDevice, Pending, StopHandle};

use crate::event::{ConnectionError, Event};
use crate::negotiate::Negotiation;
use crate::session::Session;
use crate::socket::{self, Receiver, Sender};

/// Where events go.
pub(crate) type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// How long to wait before another client is accepted when there was no descriptor for the last one.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(100);

/// What clients are told of the export before its device exists, and how many there may be.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Name of the export, at most 4096 bytes; a client that names none has it as well.
    pub name: String,
    /// What it is, for people, at most 4096 bytes; may be empty.
    pub description: String,
    /// Most connections at a time; further ones are closed at once.
    pub connections: usize,
    /// How long a client may take to choose the export, without the time that it waits for us.
    pub negotiation: Duration,
}

impl Default for NbdOptions {
    fn default() -> Self {
        NbdOptions {
            name: String::new(),
            description: String::new(),
            connections: 16,
            negotiation: Duration::from_secs(30),
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// On a path.
    Unix(UnixListener),
    /// On an address.
    Tcp(TcpListener),
}

impl Listener {
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Unix(listener) => listener.set_nonblocking(true),
            Listener::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(stream.into())
            }
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(stream.into())
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// Serves a device to NBD clients.
pub struct NbdServer<D> {
    device: Arc<Pending<D>>,
    options: NbdOptions,
    events: EventSink,
}

/// The clients of a listening server.
#[derive(Default)]
struct Clients {
    connected: AtomicUsize,
    /// How many have chosen the export so far.
    served: AtomicUsize,
}

impl<D: BlockDevice> NbdServer<D> {
    /// A server of `device`, which need not be there yet: a client that wants to know its size waits.
    pub fn new(device: Arc<Pending<D>>, options: NbdOptions) -> NbdServer<D> {
        NbdServer { device, options, events: Arc::new(|_| {}) }
    }

    /// Has `sink` called for what goes wrong without ending the server. Called from any thread.
    pub fn on_event(self, sink: impl Fn(Event) + Send + Sync + 'static) -> NbdServer<D> {
        NbdServer { events: Arc::new(sink), ..self }
    }

    /// Serves one connected client until it disconnects.
    ///
    /// # Errors
    /// The connection ended before the client ended it.
    pub fn serve_stream(&self, stream: impl Into<OwnedFd>) -> Result<(), ConnectionError> {
        self.serve_socket(&stream.into(), &|| false, &AtomicUsize::new(0))
    }

    /// Accepts clients and serves them until `stop` is used.
    ///
    /// # Errors
    /// The listening socket fails. What goes wrong with a client only ends its own connection.
    pub fn serve_listener(&self, listener: &Listener, stop: &StopHandle) -> io::Result<()> {
        self.serve(listener, stop, false)
    }

    /// As [`NbdServer::serve_listener`], but uses `stop` itself when a client has chosen the export and then no client is
    /// connected any more.
    pub fn serve_once(&self, listener: &Listener, stop: &StopHandle) -> io::Result<()> {
        self.serve(listener, stop, true)
    }

    fn serve(&self, listener: &Listener, stop: &StopHandle, once: bool) -> io::Result<()> {
        listener.set_nonblocking()?;
        let clients = Clients::default();
        thread::scope(|scope| {
            let result = self.accept(scope, listener, stop, &clients, once);
            // However the accepting ended, those that are connected end as well, and those that wait for the device.
            stop.stop();
            self.device.wake();
            result
        })
    }

    fn accept<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        listener: &Listener,
        stop: &'scope StopHandle,
        clients: &'scope Clients,
        once: bool,
    ) -> io::Result<()> {
        while stop.wait_readable(listener)? {
            let socket = match listener.accept() {
                Ok(socket) => socket,
                Err(error) => match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
                    Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE | rustix::io::Errno::NOMEM) => {
                        thread::sleep(DESCRIPTOR_WAIT);
                        continue;
                    }
                    Some(rustix::io::Errno::BADF | rustix::io::Errno::INVAL | rustix::io::Errno::NOTSOCK) => {
                        return Err(error);
                    }
                    // All others concern the one connection.
                    _ => continue,
                },
            };
            if clients.connected.fetch_add(1, Ordering::AcqRel) >= self.options.connections {
                clients.connected.fetch_sub(1, Ordering::AcqRel);
                (self.events)(Event::TooManyClients(self.options.connections));
                continue;
            }
            let client = move || self.client(&socket, stop, clients, once);
            if thread::Builder::new().spawn_scoped(scope, client).is_err() {
                clients.connected.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    }

    /// One client's whole life.
    fn client(&self, socket: &OwnedFd, stop: &StopHandle, clients: &Clients, once: bool) {
        let served = stop
            .attach(socket)
            .map_err(ConnectionError::from)
            .and_then(|_attached| self.serve_socket(socket, &|| stop.is_stopped(), &clients.served));
        match served {
            Ok(()) => {}
            // An end that we made is nobody's mistake.
            Err(_) if stop.is_stopped() => {}
            Err(error) => (self.events)(Event::ConnectionLost(error)),
        }
        let was_last = clients.connected.fetch_sub(1, Ordering::AcqRel) == 1;
        if once && was_last && clients.served.load(Ordering::Acquire) > 0 {
            stop.stop();
        }
    }

    /// Serves one client; counts it in `served` if it chose the export.
    fn serve_socket(
        &self,
        socket: &OwnedFd,
        stopped: &dyn Fn() -> bool,
        served: &AtomicUsize,
    ) -> Result<(), ConnectionError> {
        socket::prepare(socket)?;
        let sender = Sender::new(socket);
        let mut receiver = Receiver::new(socket, self.options.negotiation);
        let device = || match self.device.wait_unless(stopped) {
            true => self.device.wait(),
            false => Err("the server is ending".to_owned()),
        };
        let agreement = Negotiation::new(&mut receiver, &sender, &self.options, &device).run()?;
        if let Some(agreement) = agreement {
            served.fetch_add(1, Ordering::AcqRel);
            Session::new(agreement, receiver, &sender, Arc::clone(&self.events)).run();
        }
        sender.into_result()
    }
}
