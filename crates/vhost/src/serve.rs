//! Serves a device to one vhost-user front end at a time: on a connected socket, or on each connection that a listening one accepts.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};

use inarch_server::StopHandle;
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

use crate::connection::Connection;
use crate::device::VirtioDevice;
use crate::event::EventSink;
use crate::faults::Control;
use crate::padded;

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
    /// No virtqueue can be made with these options.
    #[error("the queues cannot be made: {0}; a queue's size is a power of 2, at most 32768")]
    Queue(virtio_queue::Error),
}

/// Serves one connected front end until it disconnects, then stops its rings.
pub(crate) fn serve_stream<D: VirtioDevice>(
    stream: UnixStream,
    device: Arc<D>,
    events: EventSink,
) -> Result<(), ServeError> {
    tracing::debug!("a front end is connected");
    let (control, seen) = (Control::new(stream.as_fd())?, stream.try_clone()?);
    let connection = Connection::new(device, control, events).map_err(ServeError::Queue)?;
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

/// Serves `stream` until it ends or `stop` is used.
pub(crate) fn serve_until_stopped<D: VirtioDevice>(
    stream: UnixStream,
    device: Arc<D>,
    events: EventSink,
    stop: &StopHandle,
) -> Result<(), ServeError> {
    let _attached = stop.attach(&stream)?;
    let served = serve_stream(stream, device, events);
    if stop.is_stopped() { Ok(()) } else { served }
}
