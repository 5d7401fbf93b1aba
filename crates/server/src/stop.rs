//! [`StopHandle`]: ends a server from another thread.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

/// Ends a server from another thread: it accepts no more connections and closes those that it has. Clones act on the
/// same server.
#[derive(Clone)]
pub struct StopHandle {
    state: Arc<State>,
}

struct State {
    stopped: AtomicBool,
    wakeup: OwnedFd,
    connected: Mutex<Connected>,
}

/// The sockets to shut down.
#[derive(Default)]
struct Connected {
    next: u64,
    sockets: HashMap<u64, OwnedFd>,
}

impl StopHandle {
    /// A new handle. Fails if no file descriptor is left.
    pub fn new() -> io::Result<StopHandle> {
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = State { stopped: AtomicBool::new(false), wakeup, connected: Mutex::default() };
        Ok(StopHandle { state: Arc::new(state) })
    }

    /// Ends the server. May be called more than once.
    pub fn stop(&self) {
        let connected = self.lock();
        self.state.stopped.store(true, Ordering::Release);
        // The write can only fail if the counter is full, and then the server wakes up anyway.
        let _ = rustix::io::write(&self.state.wakeup, &1u64.to_ne_bytes());
        for socket in connected.sockets.values() {
            // Fails only if the peer has disconnected already.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    /// Whether [`StopHandle::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.state.stopped.load(Ordering::Acquire)
    }

    /// Waits until the server is stopped.
    pub fn wait(&self) -> io::Result<()> {
        while !self.is_stopped() {
            match poll(&mut [PollFd::new(&self.state.wakeup, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Registers `socket` to be shut down when the server is stopped, or at once if it is stopped already, until the
    /// returned value is dropped. Fails if no file descriptor is left.
    pub fn attach(&self, socket: impl AsFd) -> io::Result<Attached> {
        let socket = socket.as_fd().try_clone_to_owned()?;
        let mut connected = self.lock();
        if self.is_stopped() {
            let _ = shutdown(&socket, Shutdown::Both);
        }
        let number = connected.next;
        connected.next += 1;
        connected.sockets.insert(number, socket);
        Ok(Attached { stop: self.clone(), number })
    }

    /// Waits until `listener` has a connection to accept; false once the server is stopped.
    pub fn wait_readable(&self, listener: impl AsFd) -> io::Result<bool> {
        while !self.is_stopped() {
            let mut ready = [PollFd::new(&listener, PollFlags::IN), PollFd::new(&self.state.wakeup, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) if ready.first().is_some_and(|listener| !listener.revents().is_empty()) => {
                    return Ok(!self.is_stopped());
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(false)
    }

    fn lock(&self) -> MutexGuard<'_, Connected> {
        self.state.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for StopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopHandle").field("is_stopped", &self.is_stopped()).finish_non_exhaustive()
    }
}

/// A socket that [`StopHandle::stop`] shuts down, until this is dropped.
pub struct Attached {
    stop: StopHandle,
    number: u64,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.stop.lock().sockets.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_is_shut_down_whether_it_is_attached_before_or_after_the_end() {
        let stop = StopHandle::new().unwrap();
        let (mut before, theirs) = UnixStream::pair().unwrap();
        let _attached = stop.attach(&theirs).unwrap();
        stop.stop();
        assert_eq!(before.read(&mut [0]).unwrap(), 0);
        let (mut after, theirs) = UnixStream::pair().unwrap();
        let _attached = stop.attach(&theirs).unwrap();
        assert_eq!(after.read(&mut [0]).unwrap(), 0);
        assert!(!stop.wait_readable(&theirs).unwrap());
    }

    #[test]
    fn a_socket_that_is_no_longer_attached_is_left_alone() {
        let stop = StopHandle::new().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(stop.attach(&theirs).unwrap());
        stop.stop();
        ours.set_nonblocking(true).unwrap();
        assert_eq!((&ours).read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
