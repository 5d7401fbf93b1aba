//! Sockets: from a listening or a connected one to a served connection.

use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

use crate::connection::Connection;
use crate::device::VirtioDevice;
use crate::event::EventSink;

/// Why a connection, or the listening for connections, ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    /// The front end broke the vhost-user protocol, or asked for what was not offered.
    #[error("the front end's message cannot be served: {0}")]
    Protocol(VhostError),
    /// The options make no virtqueue.
    #[error("the queues cannot be made: {0}; a queue's size is a power of 2, at most 32768")]
    Queue(virtio_queue::Error),
}

/// Ends [`BlkServer::serve_listener`](crate::blk::BlkServer::serve_listener) from another thread: no more
/// connections, and the one that is served is closed. Clones act on the same server.
#[derive(Clone)]
pub struct StopHandle {
    state: Arc<StopState>,
}

struct StopState {
    stopped: AtomicBool,
    wakeup: OwnedFd,
    connected: Mutex<Option<UnixStream>>,
}

impl StopHandle {
    /// A handle that has not been used yet. Fails if there are no more file descriptors.
    pub fn new() -> io::Result<StopHandle> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = StopState { stopped: AtomicBool::new(false), wakeup, connected: Mutex::new(None) };
        Ok(StopHandle { state: Arc::new(state) })
    }

    /// Ends the server. May be called more than once.
    pub fn stop(&self) {
        let connected = self.state.connected.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.stopped.store(true, Ordering::Release);
        // The counter can only be full if it was written before, and then the server wakes up anyway.
        let _ = rustix::io::write(&self.state.wakeup, &1u64.to_ne_bytes());
        if let Some(stream) = connected.as_ref() {
            // Fails only if the front end has gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Whether [`StopHandle::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.state.stopped.load(Ordering::Acquire)
    }

    /// Makes `stream` the one to close; closes it at once if the server is stopped already.
    fn attach(&self, stream: Option<UnixStream>) {
        let mut connected = self.state.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_stopped()
            && let Some(stream) = &stream
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
        *connected = stream;
    }
}

/// Serves one connected front end until it disconnects, then stops its rings.
pub(crate) fn serve_stream<D: VirtioDevice>(
    stream: UnixStream,
    device: Arc<D>,
    events: EventSink,
) -> Result<(), ServeError> {
    let connection = Arc::new(Mutex::new(Connection::new(device, events).map_err(ServeError::Queue)?));
    let mut handler = BackendReqHandler::from_stream(stream, connection);
    loop {
        match handler.handle_request() {
            Ok(()) => {}
            // A message cut short is how the crate sees a front end that exits.
            Err(VhostError::Disconnected | VhostError::PartialMessage | VhostError::SocketBroken(_)) => return Ok(()),
            Err(VhostError::SocketRetry(_)) => {}
            Err(error) => return Err(ServeError::Protocol(error)),
        }
    }
}

/// The next connection; none once `stop` was used.
pub(crate) fn accept(listener: &UnixListener, stop: &StopHandle) -> Result<Option<UnixStream>, ServeError> {
    listener.set_nonblocking(true)?;
    loop {
        if stop.is_stopped() {
            return Ok(None);
        }
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(&stop.state.wakeup, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(ServeError::Socket(error.into())),
        }
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(Some(stream));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                _ => return Err(error.into()),
            },
        }
    }
}

/// Serves `stream` so that `stop` ends it.
pub(crate) fn serve_until_stopped<D: VirtioDevice>(
    stream: UnixStream,
    device: Arc<D>,
    events: EventSink,
    stop: &StopHandle,
) -> Result<(), ServeError> {
    stop.attach(Some(stream.try_clone()?));
    let served = serve_stream(stream, device, events);
    stop.attach(None);
    if stop.is_stopped() { Ok(()) } else { served }
}
