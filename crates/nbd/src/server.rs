//! [`NbdServer`]: accepts clients and serves each.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use inarch_server::{
    BlockDevice, Clients, ConnectionError, Listener, Pending, Receiver, Seat, Sender, StopHandle, prepare,
};

use crate::event::Event;
use crate::negotiate::Negotiation;
use crate::session::Session;

/// Where events go.
pub(crate) type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// What clients learn of the export before its device exists, and how many may connect.
#[derive(Clone, Debug)]
pub struct NbdOptions {
    /// Name of the export, at most 4096 bytes. A client that asks for no name gets this export too.
    pub name: String,
    /// A description for people, at most 4096 bytes; may be empty.
    pub description: String,
    /// The most connections at a time. At this limit, the server disconnects the oldest client that has not yet chosen the export. If
    /// all have chosen, it closes the new connection.
    pub connections: usize,
    /// How long a client may take to choose the export, not counting the time it waits for us.
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

/// Serves a device to NBD clients.
pub struct NbdServer<D> {
    device: Arc<Pending<D>>,
    options: NbdOptions,
    events: EventSink,
}

impl<D: BlockDevice> NbdServer<D> {
    /// A server of `device`, which may still be under construction: a client that asks for its size waits.
    pub fn new(device: Arc<Pending<D>>, options: NbdOptions) -> NbdServer<D> {
        NbdServer { device, options, events: Arc::new(|_| {}) }
    }

    /// Calls `sink` for failures that do not end the server, from any thread.
    pub fn on_event(self, sink: impl Fn(Event) + Send + Sync + 'static) -> NbdServer<D> {
        NbdServer { events: Arc::new(sink), ..self }
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

    /// Like [`NbdServer::serve_listener`], but uses `stop` itself once a client has chosen the export and no client is
    /// connected any more.
    pub fn serve_once(&self, listener: &Listener, stop: &StopHandle) -> io::Result<()> {
        listener.serve(self, stop, true)
    }
}

impl<D: BlockDevice> Clients for NbdServer<D> {
    fn most(&self) -> usize {
        self.options.connections
    }

    /// The server speaks first.
    fn wait_for_first_byte(&self) -> bool {
        false
    }

    fn serve(
        &self,
        socket: &OwnedFd,
        stopped: &(dyn Fn() -> bool + Sync),
        seat: &Seat<'_>,
    ) -> Result<(), ConnectionError> {
        prepare(socket)?;
        let sender = Sender::new(socket);
        let mut receiver = Receiver::new(socket, self.options.negotiation);
        let device = || {
            seat.spoke();
            match self.device.wait_unless(stopped) {
                true => self.device.wait(),
                false => Err("the server is ending".to_owned()),
            }
        };
        let agreement = Negotiation::new(&mut receiver, &sender, &self.options, &device).run()?;
        if let Some(agreement) = agreement {
            seat.served();
            tracing::debug!("a client has chosen the export");
            Session::new(agreement, receiver, &sender, Arc::clone(&self.events)).run();
            tracing::debug!("a client has left");
        }
        sender.into_result()
    }
    fn turned_away(&self) {
        (self.events)(Event::TooManyClients(self.most()));
    }

    fn lost(&self, error: ConnectionError) {
        (self.events)(Event::ConnectionLost(error));
    }

    fn stopped(&self) {
        self.device.wake();
    }
}
