//! The virtio socket device (virtio 1.2, section 5.10): connects a guest's `AF_VSOCK` sockets to this process, without
//! a network.
//!
//! 1. `device` takes packets from one queue and puts packets into the other.
//! 2. `switchboard` has all connections: it opens and ends them, and chooses the next packet to the guest.
//! 3. `stream` is one connection: a socket of this process, and each side's credit. A bounded backlog stores what the
//!    socket does not accept at once, and the guest's credit shrinks by it.
//! 4. `packet` is the wire format.
//!
//! The receive queue's thread also waits for sockets, including those with a backlog. It does so while the guest has
//! buffers in the queue, as drivers always have; otherwise the backlog continues with the guest's next packet.
//!
//! Only the guest opens connections. Each is to a port; the server's caller has a stream socket for it, or refuses it.

mod device;
mod packet;
mod stream;
mod switchboard;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use device::{RECEIVE_QUEUE, SEND_QUEUE, VirtioVsock};

use crate::call::LeftBehind;
use crate::event::{Event, EventSink};
use crate::serve::{self, ServeError};

/// The guest's context identifier. Each device has its own guest, so all can use the same.
const GUEST_CID: u64 = 3;

/// Locks. After a panic of another thread the data is still consistent.
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves a guest's connections over vhost-user.
pub struct VsockServer {
    open: Arc<switchboard::Open>,
    events: EventSink,
}

impl VsockServer {
    /// A server that connects a guest to the stream socket that `open` returns for a port; without one the connection
    /// is refused.
    pub fn new(open: impl Fn(u32) -> Option<OwnedFd> + Send + Sync + 'static) -> VsockServer {
        VsockServer { open: Arc::new(open), events: Arc::new(|_| {}) }
    }

    /// Calls `sink` for failures that do not end the server, from the queues' threads.
    pub fn on_event(self, sink: impl Fn(Event) + Send + Sync + 'static) -> VsockServer {
        VsockServer { events: Arc::new(sink), ..self }
    }

    /// Serves one connected front end, such as the other end of a socket that QEMU inherited, until it disconnects.
    ///
    /// # Errors
    /// No descriptor is left, or the front end breaks the protocol; its rings are stopped.
    pub fn serve_stream(&self, stream: UnixStream) -> Result<(), ServeError> {
        serve::serve_stream(
            stream,
            Arc::new(VirtioVsock::new(Arc::clone(&self.open))?),
            Arc::clone(&self.events),
            &LeftBehind::default(),
        )
    }
}
