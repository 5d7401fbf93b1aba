//! Accepts clients, counts them, and serves each in a thread of its own.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::Duration;

use nix::sys::socket::VsockAddr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, accept_with, listen, shutdown, socket_with};

use crate::{ConnectionError, StopHandle};

/// How long to wait before the next accept when there was no descriptor for a client.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(100);

/// How a server serves its clients. Called from each client's thread.
pub trait Clients: Sync {
    /// The most connections at a time. At this limit, the server disconnects the oldest client that has not yet
    /// [spoken](Seat::spoke), and serves the new one. If all have spoken, it closes the new connection.
    fn most(&self) -> usize;

    /// Whether the protocol lets the client speak first. A client of a Unix socket may then be idle without limit
    /// before it does: [`Clients::serve`] is called when its first byte has come. QEMU connects a `guestfwd` when it
    /// starts, long before the guest mounts.
    fn wait_for_first_byte(&self) -> bool;

    /// Serves one client until it disconnects or the server is stopped; a stop shuts the socket down and makes
    /// `stopped` true. Tells the `seat` when the client has spoken, and when it is served.
    ///
    /// # Errors
    /// The connection ended before the client ended it.
    fn serve(
        &self,
        socket: &OwnedFd,
        stopped: &(dyn Fn() -> bool + Sync),
        seat: &Seat<'_>,
    ) -> Result<(), ConnectionError>;

    /// A client was rejected, because [`Clients::most`] are connected already: the new one, or the oldest of those that
    /// have not yet spoken.
    fn turned_away(&self);

    /// A client lost its connection, or could not be served at all.
    fn lost(&self, error: ConnectionError);

    /// The server is stopped: threads that wait for anything but their socket must check.
    fn stopped(&self);
}

/// A client's place among those of a server.
#[derive(Debug)]
pub struct Seat<'c> {
    /// `None` for a client that no listener has accepted.
    place: Option<(&'c Counts, &'c Arc<OwnedFd>)>,
}

impl Seat<'_> {
    /// That of a client which competes with no others.
    pub fn alone() -> Seat<'static> {
        Seat { place: None }
    }

    /// The client speaks the protocol: it keeps its place when others come.
    pub fn spoke(&self) {
        if let Some((counts, socket)) = self.place {
            counts.lock().forget(socket);
        }
    }

    /// The client has what it came for. A server for one client ends when it leaves.
    pub fn served(&self) {
        self.spoke();
        if let Some((counts, _)) = self.place {
            counts.served.fetch_add(1, Ordering::AcqRel);
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
    /// On anything else that accepts connections of a stream of bytes.
    Other(OwnedFd),
}

/// The clients of one listener.
#[derive(Debug, Default)]
struct Counts {
    /// Whether the server ends with the last client.
    once: bool,
    places: Mutex<Places>,
    /// A client has left its place.
    left: Condvar,
    served: AtomicUsize,
}

#[derive(Debug, Default)]
struct Places {
    connected: usize,
    /// Those that have not yet spoken, the oldest first.
    silent: Vec<Arc<OwnedFd>>,
}

impl Counts {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a new client; false if clients that have spoken hold all `most` places. If others hold some, the server
    /// disconnects the oldest silent client. So a flood of silent clients does not lock out the new one.
    fn enter(&self, socket: &Arc<OwnedFd>, clients: &dyn Clients) -> bool {
        let most = clients.most();
        let mut places = self.lock();
        if places.connected >= most {
            clients.turned_away();
            // One whose bytes wait to be read is speaking.
            let Some(at) = places.silent.iter().position(|socket| !is_readable(socket)) else { return false };
            // Fails only if the client has hung up already. Its thread wakes up either way.
            let _ = shutdown(places.silent.remove(at), Shutdown::Both);
        }
        places.connected += 1;
        places.silent.push(Arc::clone(socket));
        let full = |places: &mut Places| places.connected > most;
        drop(self.left.wait_while(places, full).unwrap_or_else(PoisonError::into_inner));
        true
    }

    /// Gives a place up; true if nobody is connected any more.
    fn leave(&self, socket: &Arc<OwnedFd>) -> bool {
        let mut places = self.lock();
        places.forget(socket);
        places.connected -= 1;
        self.left.notify_all();
        places.connected == 0
    }

    /// Waits without limit until a client speaks or hangs up; false if it had to go to make room for another.
    fn wait_for_first_byte(&self, socket: &Arc<OwnedFd>) -> io::Result<bool> {
        loop {
            match poll(&mut [PollFd::new(socket, PollFlags::IN)], None) {
                Ok(_) => return Ok(self.lock().silent.iter().any(|silent| Arc::ptr_eq(silent, socket))),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Places {
    /// Removes a client from those that have not yet spoken.
    fn forget(&mut self, socket: &Arc<OwnedFd>) {
        self.silent.retain(|silent| !Arc::ptr_eq(silent, socket));
    }
}

/// Whether a client has spoken or hung up.
fn is_readable(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl Listener {
    /// Listens on a vsock(7) port, for virtual machines of this host.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`: this kernel has no vsock. Others: the port is not available.
    pub fn on_vsock(port: u32) -> io::Result<Listener> {
        /// Connections that wait to be accepted.
        const BACKLOG: i32 = 16;
        let socket = socket_with(AddressFamily::VSOCK, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let address = VsockAddr::new(nix::libc::VMADDR_CID_ANY, port);
        nix::sys::socket::bind(socket.as_raw_fd(), &address)?;
        listen(&socket, BACKLOG)?;
        Ok(Listener::Other(socket))
    }

    /// Accepts and serves clients until `stop` is used. Uses `stop` itself if it fails and, with `once`, when a client
    /// was served and none is connected any more.
    ///
    /// # Errors
    /// The listening socket fails. An error of one client only ends that client's connection.
    pub fn serve(&self, clients: &dyn Clients, stop: &StopHandle, once: bool) -> io::Result<()> {
        rustix::io::ioctl_fionbio(self, true)?;
        let counts = Counts { once, ..Counts::default() };
        thread::scope(|scope| {
            let result = self.accept(scope, clients, stop, &counts);
            // However accepting ended, the connected clients end as well.
            stop.stop();
            clients.stopped();
            result
        })
    }

    fn accept<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        clients: &'scope dyn Clients,
        stop: &'scope StopHandle,
        counts: &'scope Counts,
    ) -> io::Result<()> {
        let patient = clients.wait_for_first_byte() && matches!(self, Listener::Unix(_));
        while stop.wait_readable(self)? {
            let socket = match accept_with(self, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
                    thread::sleep(DESCRIPTOR_WAIT);
                    continue;
                }
                Err(errno @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK)) => return Err(errno.into()),
                // Other errors concern this one connection.
                Err(_) => continue,
            };
            let socket = Arc::new(socket);
            if !counts.enter(&socket, clients) {
                continue;
            }
            let own = Arc::clone(&socket);
            let client = move || {
                if let Err(error) = serve_one(&own, patient, clients, stop, counts)
                    && !stop.is_stopped()
                {
                    // If we had ended the connection, it would be nobody's error.
                    clients.lost(error);
                }
                if counts.leave(&own) && counts.once && counts.served.load(Ordering::Acquire) > 0 {
                    stop.stop();
                }
            };
            if thread::Builder::new().spawn_scoped(scope, client).is_err() {
                counts.leave(&socket);
            }
        }
        Ok(())
    }
}

/// Serves a client; a `patient` server first waits for its first byte.
fn serve_one(
    socket: &Arc<OwnedFd>,
    patient: bool,
    clients: &dyn Clients,
    stop: &StopHandle,
    counts: &Counts,
) -> Result<(), ConnectionError> {
    let _attached = stop.attach(socket)?;
    if patient && !counts.wait_for_first_byte(socket)? {
        return Ok(());
    }
    clients.serve(socket, &|| stop.is_stopped(), &Seat { place: Some((counts, socket)) })
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix(listener) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Other(listener) => listener.as_fd(),
        }
    }
}
