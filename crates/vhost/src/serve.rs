//! Serves a device to one vhost-user front end at a time: on a connected socket, or on each connection that a listening one accepts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use inarch_server::StopHandle;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

use crate::call::LeftBehind;
use crate::connection::Connection;
use crate::device::VirtioDevice;
use crate::event::{Event, EventSink};
use crate::faults::Control;
use crate::padded;
use crate::vring::notify;

/// How many rings whose thread blocks a server keeps, with their descriptors and the memory of their guests.
const MOST_LEFT_BEHIND: usize = 16;

/// How long a stopped server waits for the end of a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a connection, or listening, ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    /// The front end broke the vhost-user protocol, or asked for something that was not offered.
    #[error("the front end's message cannot be served: {0}")]
    Protocol(VhostError),
    /// The front end truncated the file that is the guest's memory, or the file cannot be read.
    #[error("the front end has truncated memory that it shares with this server")]
    MemoryLost,
    /// Threads of earlier connections wait for front ends that do not let them go.
    #[error(
        "{MOST_LEFT_BEHIND} queues of earlier connections still wait for their front ends; no other front end is served until one of them ends"
    )]
    LeftBehind,
    /// The connection's thread did not end when the server was stopped.
    #[error("the server was stopped {} s ago, and a connection still runs: one of its requests takes long, or the front end blocks a descriptor", PATIENCE.as_secs())]
    Stuck,
    /// No thread can be started for the connection.
    #[error("no thread can be started for a front end: {0}")]
    Thread(io::Error),
    /// No virtqueue can be made with these options.
    #[error("the queues cannot be made: {0}; a queue's size is a power of 2, at most 32768")]
    Queue(virtio_queue::Error),
}

/// Serves one connected front end until it disconnects, then stops its rings.
pub(crate) fn serve_stream<D: VirtioDevice>(
    stream: UnixStream,
    device: Arc<D>,
    events: EventSink,
    left_behind: &LeftBehind,
) -> Result<(), ServeError> {
    if left_behind.count() >= MOST_LEFT_BEHIND {
        return Err(ServeError::LeftBehind);
    }
    tracing::debug!("a front end is connected");
    let (control, seen) = (Control::new(stream.as_fd())?, stream.try_clone()?);
    let connection = Connection::new(device, control, events, left_behind).map_err(ServeError::Queue)?;
    let connection = Arc::new(Mutex::new(connection));
    let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&connection));
    let ended = loop {
        let handled = match padded::take(&seen, &connection) {
            Ok(false) => handler.handle_request(),
            taken => taken.map(|_| ()),
        };
        match handled {
            Ok(()) => {}
            // The crate reports a front end that exits as a truncated message.
            Err(VhostError::Disconnected | VhostError::PartialMessage | VhostError::SocketBroken(_)) => break Ok(()),
            Err(VhostError::SocketRetry(_)) => {}
            Err(error) => break Err(ServeError::Protocol(error)),
        }
    };
    let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    connection.stop();
    tracing::debug!(?ended, "the front end has left");
    if connection.has_lost_memory() { Err(ServeError::MemoryLost) } else { ended }
}

/// What is reported of a connection that ended with an error.
pub(crate) fn lost(error: ServeError) -> Event {
    if let ServeError::Stuck = error { Event::StillConnected { error } } else { Event::ConnectionLost { error } }
}

/// The next connection; `None` after `stop` was used.
pub(crate) fn accept(listener: &UnixListener, stop: &StopHandle) -> Result<Option<UnixStream>, ServeError> {
    listener.set_nonblocking(true)?;
    while stop.wait_readable(listener)? {
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
    Ok(None)
}

/// Serves `stream` until it ends or `stop` is used. A thread of its own serves it: a front end can send descriptors whose
/// operations block, such as close(2) of a socket that lingers, and the server must end all the same.
pub(crate) fn serve_until_stopped<D: VirtioDevice>(
    stream: UnixStream,
    device: Arc<D>,
    events: EventSink,
    left_behind: &LeftBehind,
    stop: &StopHandle,
) -> Result<(), ServeError> {
    let _attached = stop.attach(&stream)?;
    let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?);
    let left_behind = left_behind.clone();
    let at_end = Notice(Arc::clone(&end));
    let connection = thread::Builder::new().name("connection".into()).spawn(move || {
        let served = serve_stream(stream, device, events, &left_behind);
        drop(at_end);
        served
    });
    let connection = connection.map_err(ServeError::Thread)?;
    if !stop.wait_readable(&*end)? && !ends_within(&end, PATIENCE)? {
        return Err(ServeError::Stuck);
    }
    match connection.join() {
        Ok(served) if !stop.is_stopped() => served,
        Err(panic) => std::panic::resume_unwind(panic),
        Ok(_) => Ok(()),
    }
}

/// Makes an eventfd readable when it is dropped.
struct Notice(Arc<OwnedFd>);

impl Drop for Notice {
    fn drop(&mut self) {
        notify(self.0.as_fd());
    }
}

/// Whether `end` is readable within `patience`.
fn ends_within(end: &OwnedFd, patience: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::new(end, PollFlags::IN)], Timespec::try_from(left).ok().as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
