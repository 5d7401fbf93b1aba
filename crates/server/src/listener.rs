//! Accepts clients, counts them, and serves each in a thread of its own.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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

    /// Serves one client until it disconnects, must make room for another, or the server is stopped. The last two shut the
    /// socket down and make `stopped` true. Tells the `seat` when the client has spoken, and when it is served.
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

    /// The server is stopped, or a client must make room: threads that wait for anything but their socket must check the
    /// `stopped` of [`Clients::serve`].
    fn stopped(&self);
}

/// A client's place among those of a server.
#[derive(Debug)]
pub struct Seat<'c> {
    /// `None` for a client that no listener has accepted.
    place: Option<(&'c Counts, &'c Arc<Client>)>,
}

impl Seat<'_> {
    /// That of a client which competes with no others.
    pub fn alone() -> Seat<'static> {
        Seat { place: None }
    }

    /// The client speaks the protocol: it keeps its place when others come.
    pub fn spoke(&self) {
        if let Some((counts, client)) = self.place {
            counts.lock().forget(client);
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

/// A connected client.
#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    /// It was disconnected to make room for another.
    gave_way: AtomicBool,
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
    silent: Vec<Arc<Client>>,
}

impl Counts {
    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a new client; false if clients that have spoken hold all `most` places. If others hold some, the server
    /// disconnects the oldest silent client. So a flood of silent clients does not lock out the new one.
    fn enter(&self, client: &Arc<Client>, clients: &dyn Clients) -> bool {
        let most = clients.most();
        let mut places = self.lock();
        if places.connected >= most {
            clients.turned_away();
            // One whose bytes wait to be read is speaking.
            let Some(at) = places.silent.iter().position(|client| !is_readable(&client.socket)) else { return false };
            let oldest = places.silent.remove(at);
            oldest.gave_way.store(true, Ordering::Release);
            // Fails only if the client has hung up already. Its thread wakes up either way.
            let _ = shutdown(&oldest.socket, Shutdown::Both);
            // All that it said may have been read by now, and its thread may wait for something else.
            clients.stopped();
        }
        places.connected += 1;
        places.silent.push(Arc::clone(client));
        let full = |places: &mut Places| places.connected > most;
        drop(self.left.wait_while(places, full).unwrap_or_else(PoisonError::into_inner));
        true
    }

    /// Gives a place up; true if nobody is connected any more.
    fn leave(&self, client: &Arc<Client>) -> bool {
        let mut places = self.lock();
        places.forget(client);
        places.connected -= 1;
        self.left.notify_all();
        places.connected == 0
    }
}

impl Client {
    /// Waits without limit until it speaks or hangs up; false if it had to go to make room for another.
    fn wait_for_first_byte(&self) -> io::Result<bool> {
        loop {
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], None) {
                Ok(_) => return Ok(!self.gave_way()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn gave_way(&self) -> bool {
        self.gave_way.load(Ordering::Acquire)
    }
}

impl Places {
    /// Removes a client from those that have not yet spoken.
    fn forget(&mut self, client: &Arc<Client>) {
        self.silent.retain(|silent| !Arc::ptr_eq(silent, client));
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
            let client = Arc::new(Client { socket, gave_way: AtomicBool::new(false) });
            if !counts.enter(&client, clients) {
                continue;
            }
            let own = Arc::clone(&client);
            let work = move || {
                if let Err(error) = serve_one(&own, patient, clients, stop, counts)
                    // An error that follows our own shutdown of the socket is not reported.
                    && !stop.is_stopped()
                    && !own.gave_way()
                {
                    clients.lost(error);
                }
                if counts.leave(&own) && counts.once && counts.served.load(Ordering::Acquire) > 0 {
                    stop.stop();
                }
            };
            if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                counts.leave(&client);
            }
        }
        Ok(())
    }
}

/// Serves a client; a `patient` server first waits for its first byte.
fn serve_one(
    client: &Arc<Client>,
    patient: bool,
    clients: &dyn Clients,
    stop: &StopHandle,
    counts: &Counts,
) -> Result<(), ConnectionError> {
    let _attached = stop.attach(&client.socket)?;
    if patient && !client.wait_for_first_byte()? {
        return Ok(());
    }
    let stopped = || stop.is_stopped() || client.gave_way();
    clients.serve(&client.socket, &stopped, &Seat { place: Some((counts, client)) })
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::Pending;

    /// Greets each client, reads a byte of it, and then waits for a device that never comes.
    struct Waiting(Pending<()>);

    impl Clients for Waiting {
        fn most(&self) -> usize {
            1
        }

        fn wait_for_first_byte(&self) -> bool {
            false
        }

        fn serve(
            &self,
            socket: &OwnedFd,
            stopped: &(dyn Fn() -> bool + Sync),
            _: &Seat<'_>,
        ) -> Result<(), ConnectionError> {
            rustix::io::write(socket, b"hello").unwrap();
            rustix::io::read(socket, &mut [0u8]).unwrap();
            rustix::io::write(socket, b"wait.").unwrap();
            assert!(!self.0.wait_unless(stopped));
            Err(ConnectionError::Cut)
        }

        fn turned_away(&self) {}

        fn lost(&self, error: ConnectionError) {
            panic!("it was the server that ended the connection: {error}");
        }

        fn stopped(&self) {
            self.0.wake();
        }
    }

    #[test]
    fn a_client_that_gives_way_while_it_waits_keeps_neither_the_next_one_nor_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
        let stop = StopHandle::new().unwrap();
        let stopped = stop.clone();
        let (ended, end) = std::sync::mpsc::channel();
        thread::spawn(move || ended.send(listener.serve(&Waiting(Pending::new()), &stopped, false)));
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut client = UnixStream::connect(&path).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            client.read_exact(&mut [0; 5]).expect("a greeting");
            client.write_all(b"x").unwrap();
            client.read_exact(&mut [0; 5]).expect("it waits");
            clients.push(client);
        }
        stop.stop();
        end.recv_timeout(Duration::from_secs(60)).expect("its end").unwrap();
    }
}
