//! [`Door`]: the only sockets that an enclosed program can connect.
//!
//! A filter can refuse connect(2), but not see which address it has. With a listener (seccomp_unotify(2)) the kernel asks
//! this process instead, and the program waits. The address names one of the sockets that were prepared; the program gets
//! that one in place of its own, which was never connected to anything. No socket needs a name in a file system.
#![allow(unsafe_code, reason = "seccomp(2) and its requests of ioctl(2), which no library wraps")]

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use seccompiler::sock_filter;

/// What the address of a prepared socket begins with; its number follows.
pub const ADDRESS: &str = "inarch-";

/// The seccomp listener that receives the program's connect(2) calls.
#[derive(Debug)]
pub struct Door {
    listener: OwnedFd,
}

impl Door {
    /// Makes the calling thread, and the threads and programs that it starts, ask here for connections. Nothing else
    /// changes, except that the thread can no longer gain privileges by starting a program.
    ///
    /// # Errors
    /// The kernel lacks seccomp listeners that take descriptors (before Linux 5.9), or this process has a listener already: a container manager's.
    pub(crate) fn open() -> io::Result<Door> {
        // Instructions of the classic BPF (linux/bpf_common.h): load a word of `struct seccomp_data`, compare, return.
        let load = |k: usize| sock_filter { code: 0x20, jt: 0, jf: 0, k: k as u32 };
        let give = |k: u32| sock_filter { code: 0x06, jt: 0, jf: 0, k };
        let program = [
            load(offset_of!(libc::seccomp_data, nr)),
            sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_connect as u32 },
            give(libc::SECCOMP_RET_USER_NOTIF),
            give(libc::SECCOMP_RET_ALLOW),
        ];
        let described = Described::of(&program);
        rustix::thread::set_no_new_privs(true)?;
        // SAFETY: the kernel copies the program, which is valid for the call.
        let listener = unsafe {
            let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const described)
        };
        if listener < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made the descriptor for us; it is closed when a program is started.
        Ok(Door { listener: unsafe { OwnedFd::from_raw_fd(listener as i32) } })
    }

    /// Gives out `sockets`, each as often as it is asked for: a signal may interrupt a connect(2) whose answer was sent already, and the program
    /// then asks again. Refuses any other connection. Returns when the last process that could connect has ended, and closes the sockets.
    pub fn serve(self, sockets: Vec<OwnedFd>) {
        loop {
            let mut place = [PollFd::new(&self.listener, PollFlags::IN)];
            match poll(&mut place, None) {
                Ok(_) if place.iter().any(|place| place.revents().contains(PollFlags::IN)) => {}
                Err(Errno::INTR) => continue,
                // The last process that the filter applies to has ended.
                _ => return,
            }
            let Some(asked) = self.receive() else { continue };
            self.answer(&asked, asked.number().and_then(|number| sockets.get(number)));
        }
    }

    /// The next question; none if it was withdrawn.
    fn receive(&self) -> Option<Asked> {
        // SAFETY: the kernel wants the structure to be all zeros, which is a value of it.
        let mut asked = unsafe { std::mem::zeroed::<libc::seccomp_notif>() };
        // SAFETY: the kernel writes one such structure.
        let got = unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) };
        (got == 0).then_some(Asked(asked))
    }

    /// Puts `socket` in place of the one that was to be connected; without one the connection is refused. A signal may have withdrawn the
    /// question: then both fail, and it is asked again.
    fn answer(&self, asked: &Asked, socket: Option<&OwnedFd>) {
        let is_put = socket.is_some_and(|socket| {
            let add = libc::seccomp_notif_addfd {
                id: asked.0.id,
                flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
                srcfd: socket.as_fd().as_raw_fd() as u32,
                newfd: asked.0.data.args.first().map_or(u32::MAX, |descriptor| *descriptor as u32),
                newfd_flags: 0,
            };
            // SAFETY: the kernel reads the structure, and duplicates a descriptor that is open.
            unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const add) >= 0 }
        });
        let error = if is_put { 0 } else { -libc::ECONNREFUSED };
        let answer = libc::seccomp_notif_resp { id: asked.0.id, val: 0, error, flags: 0 };
        // SAFETY: the kernel reads the structure.
        unsafe { libc::ioctl(self.listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer) };
    }
}

/// `struct sock_fprog` of linux/filter.h.
#[repr(C)]
pub(crate) struct Described {
    length: u16,
    program: *const sock_filter,
}

impl Described {
    /// For as long as the program lives.
    pub(crate) fn of(program: &[sock_filter]) -> Described {
        // The kernel takes at most 4096 instructions.
        Described { length: program.len() as u16, program: program.as_ptr() }
    }
}

/// A connection that is asked for.
struct Asked(libc::seccomp_notif);

impl Asked {
    /// The number of the socket that its address names.
    fn number(&self) -> Option<usize> {
        let &[_, address, length, ..] = &self.0.data.args;
        // A longer one is none of ours.
        let mut bytes = [0; size_of::<libc::sockaddr_un>()];
        let address_bytes = bytes.get_mut(..usize::try_from(length).ok()?)?;
        File::open(format!("/proc/{}/mem", self.0.pid)).ok()?.read_exact_at(address_bytes, address).ok()?;
        number_in(address_bytes)
    }
}

/// The number in a `struct sockaddr_un` of ours.
fn number_in(address: &[u8]) -> Option<usize> {
    let (family, path) = address.split_at_checked(size_of::<libc::sa_family_t>())?;
    let path = path.split(|byte| *byte == 0).next()?;
    let is_local = family == (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes();
    std::str::from_utf8(path).ok().filter(|_| is_local)?.strip_prefix(ADDRESS)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn only_our_addresses_have_a_number() {
        let address = |family: i32, path: &[u8]| [&(family as libc::sa_family_t).to_ne_bytes()[..], path].concat();
        for (bytes, number) in [
            (address(libc::AF_UNIX, b"inarch-0\0"), Some(0)),
            (address(libc::AF_UNIX, b"inarch-17\0rest"), Some(17)),
            (address(libc::AF_UNIX, b"inarch-2"), Some(2)),
            (address(libc::AF_UNIX, b"/run/inarch-2"), None),
            (address(libc::AF_UNIX, b"\0inarch-2"), None),
            (address(libc::AF_UNIX, b"inarch--1\0"), None),
            (address(libc::AF_UNIX, b"inarch-99999999999999999999999999\0"), None),
            (address(libc::AF_INET, b"inarch-2\0"), None),
            (vec![1], None),
            (Vec::new(), None),
        ] {
            assert_eq!(number_in(&bytes), number, "{bytes:?}");
        }
    }

    #[test]
    fn each_socket_is_given_as_often_as_it_is_asked_for_and_nothing_else_is_connected() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let (_other, spare) = UnixStream::pair().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("real");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let asking = thread::spawn(move || {
            match Door::open() {
                Ok(door) => sender.send(door).unwrap(),
                // A manager of containers listens.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return None,
                Err(error) => panic!("{error}"),
            }
            let refused = [UnixStream::connect(&path), UnixStream::connect("inarch-5"), UnixStream::connect("/etc")];
            let mut first = UnixStream::connect("inarch-0").unwrap();
            first.write_all(b"through the door").unwrap();
            UnixStream::connect("inarch-0").unwrap().write_all(b", twice").unwrap();
            UnixStream::connect("inarch-1").unwrap();
            Some(refused.map(|result| result.unwrap_err().kind()))
        });
        if let Ok(door) = receiver.recv() {
            door.serve(vec![theirs.into(), spare.into()]);
            let errors = asking.join().unwrap().unwrap();
            assert_eq!(errors, [io::ErrorKind::ConnectionRefused; 3]);
            let mut said = String::new();
            io::Read::read_to_string(&mut ours, &mut said).unwrap();
            assert_eq!(said, "through the door, twice");
        } else {
            println!(
                "skipped: each_socket_is_given_as_often_as_it_is_asked_for_and_nothing_else_is_connected: somebody else listens to this process"
            );
        }
    }

    /// A signal that comes with the answer interrupts the call all the same.
    #[test]
    fn no_connection_is_lost_by_a_signal() {
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: the handler does nothing, and is called for this signal only. Without SA_RESTART it interrupts calls.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
        }
        const MANY: usize = 100;
        let (sockets, _ours): (Vec<OwnedFd>, Vec<_>) =
            (0..MANY).map(|_| UnixStream::pair().unwrap()).map(|(ours, theirs)| (OwnedFd::from(ours), theirs)).unzip();
        let (sender, receiver) = std::sync::mpsc::channel();
        let asking = thread::spawn(move || {
            let door = match Door::open() {
                Ok(door) => door,
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return None,
                Err(error) => panic!("{error}"),
            };
            // SAFETY: takes nothing.
            sender.send((door, unsafe { libc::gettid() })).unwrap();
            let (mut interrupted, mut number) = (0, 0);
            while interrupted < 50 {
                while let Err(error) = UnixStream::connect(format!("inarch-{number}")) {
                    assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{number}: {error}");
                    interrupted += 1;
                }
                number = (number + 1) % MANY;
            }
            Some(())
        });
        let Ok((door, asks)) = receiver.recv() else {
            return println!("skipped: no_connection_is_lost_by_a_signal: somebody else listens to this process");
        };
        let serving = thread::spawn(move || door.serve(sockets));
        while !asking.is_finished() {
            // SAFETY: takes numbers. The thread may have ended: its number is not another's while this process waits for it.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), asks, libc::SIGUSR2) };
            thread::sleep(std::time::Duration::from_micros(30));
        }
        asking.join().unwrap().unwrap();
        serving.join().unwrap();
    }
}
