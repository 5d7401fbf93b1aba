//! Accepts clients, counts them, and serves each in a thread of its own.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

use nix::sys::socket::VsockAddr;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, listen, socket_with};

use crate::{ConnectionError, StopHandle};

/// How long to wait before the next accept when there was no descriptor for a client.
const DESCRIPTOR_WAIT: Duration = Duration::from_millis(100);

/// How a server serves its clients. Called from each client's thread.
pub trait Clients: Sync {
    /// The most connections at a time; further ones are closed at once.
    fn most(&self) -> usize;

    /// Serves one client until it disconnects or the server is stopped; a stop shuts the socket down and makes
    /// `stopped` true. Increments `served` once the client has spoken the protocol.
    ///
    /// # Errors
    /// The connection ended before the client ended it.
    fn serve(
        &self,
        socket: &OwnedFd,
        stopped: &(dyn Fn() -> bool + Sync),
        served: &AtomicUsize,
    ) -> Result<(), ConnectionError>;

    /// A client was rejected, because [`Clients::most`] are connected already.
    fn turned_away(&self);

    /// A client lost its connection, or could not be served at all.
    fn lost(&self, error: ConnectionError);

    /// The server is stopped: threads that wait for anything but their socket must check.
    fn stopped(&self);
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
    connected: AtomicUsize,
    served: AtomicUsize,
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
        let connected = &counts.connected;
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
            if connected.fetch_add(1, Ordering::AcqRel) >= clients.most() {
                connected.fetch_sub(1, Ordering::AcqRel);
                clients.turned_away();
                continue;
            }
            let client = move || {
                let served = match stop.attach(&socket) {
                    Ok(_attached) => clients.serve(&socket, &|| stop.is_stopped(), &counts.served),
                    Err(error) => Err(error.into()),
                };
                match served {
                    // If we ended the connection, it is nobody's error.
                    Err(error) if !stop.is_stopped() => clients.lost(error),
                    _ => {}
                }
                let last = connected.fetch_sub(1, Ordering::AcqRel) == 1;
                if counts.once && last && counts.served.load(Ordering::Acquire) > 0 {
                    stop.stop();
                }
            };
            if thread::Builder::new().spawn_scoped(scope, client).is_err() {
                connected.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    }
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
