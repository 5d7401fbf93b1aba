//! The socket device (virtio 1.2, section 5.10): connections of a guest to this process, by its own kernel's `AF_VSOCK` and
//! without a network.
//!
//! 1. `device` takes packets out of one queue and puts packets into the other.
//! 2. `switchboard` knows all connections: it opens and ends them, and says what the guest receives next.
//! 3. `stream` is one of them: a socket of this process's, and how much either side may send. Of what the socket does not take
//!    at once a bounded part is kept, and the guest is told to wait.
//! 4. `packet` is what the bytes mean.
//!
//! The thread of the queue by which the guest receives waits for sockets too, those that take what was kept included. It does so while
//! the guest has buffers there, as drivers always have; without, kept bytes go on with what the guest sends next.
//!
//! Only the guest opens connections. Each is to a port, for which the server's user has a stream socket, or none.

mod device;
mod packet;
mod stream;
mod switchboard;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use device::{RECEIVE_QUEUE, SEND_QUEUE, VirtioVsock};

use crate::event::{Event, EventSink};
use crate::serve::{self, ServeError};

/// The guest's context identifier. Each device has a guest of its own, so that all can have the same.
const GUEST_CID: u64 = 3;

/// Locks; what a thread that panicked has left is whole.
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves a guest's connections over vhost-user.
pub struct VsockServer {
    open: Arc<switchboard::Open>,
    events: EventSink,
}

impl VsockServer {
    /// A server that connects a guest to what `open` gives for a port: our end, a stream socket; without one the guest's is refused.
    pub fn new(open: impl Fn(u32) -> Option<OwnedFd> + Send + Sync + 'static) -> VsockServer {
        VsockServer { open: Arc::new(open), events: Arc::new(|_| {}) }
    }

    /// Has `sink` called for what goes wrong without ending the server. Called from the queues' threads.
    pub fn on_event(self, sink: impl Fn(Event) + Send + Sync + 'static) -> VsockServer {
        VsockServer { events: Arc::new(sink), ..self }
    }

    /// Serves one connected front end, such as the other end of a socket that QEMU inherited, until it disconnects.
    ///
    /// # Errors
    /// There are no more descriptors, or the front end breaks the protocol; its rings are stopped.
    pub fn serve_stream(&self, stream: UnixStream) -> Result<(), ServeError> {
        serve::serve_stream(stream, Arc::new(VirtioVsock::new(Arc::clone(&self.open))?), Arc::clone(&self.events))
    }
}
