//! File leases (fcntl(2), `F_SETLEASE`): a process that opens the file for writing or truncates it waits until the lease
//! is released.
//!
//! The kernel signals the holder of a lease when a process waits for it, and breaks the lease after 45 seconds. Each
//! lease has a thread that receives the signal: it blocks the signal and reads it from a signalfd(2). So the process
//! needs no signal handler, and no other thread of it is interrupted.

#![allow(unsafe_code, reason = "signalfd(2), signal masks, and commands of fcntl(2) that no library wraps")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::table::entry_of_file;

/// Commands and values of fcntl(2) in Linux's include/uapi/asm-generic/fcntl.h.
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    number: libc::pid_t,
}

/// A read lease. When somebody wants to write, the callback of [`Lease::on_break`] is called at once; the kernel breaks
/// the lease after some time (`fs.lease-break-time`, 45 seconds). The lease ends when this is dropped or when the open
/// file is closed everywhere.
#[derive(Debug)]
pub struct Lease {
    file: Arc<OwnedFd>,
    /// Takes what to do at a break, once.
    on_break: Option<Sender<OnBreak>>,
    /// An eventfd that ends the thread.
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// What to do when somebody waits for the lease. Returns whether to release it.
type OnBreak = Box<dyn FnOnce() -> bool + Send>;

/// File systems (the mount table's names) whose files change only by calls of this kernel, so that a lease holds back every
/// writer. On others the kernel may grant a lease and never break it: another machine writes, a server, or somebody in
/// the layer below. An unknown file system counts as one of those.
const HEEDED: [&str; 10] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "f2fs", "bcachefs", "vfat", "exfat"];

impl Lease {
    /// Whether a lease on the file holds back everybody who changes it.
    ///
    /// # Errors
    /// The type of its file system, where it may not.
    pub fn is_heeded(file: BorrowedFd<'_>) -> Result<(), String> {
        // A server of files chooses what statfs(2) tells of it, but not what is in the table.
        let kind = entry_of_file(file).map_or_else(|| "an unknown file system".to_owned(), |entry| entry.kind);
        if HEEDED.contains(&&*kind) { Ok(()) } else { Err(kind) }
    }

    /// Takes a lease, and starts the thread that the kernel signals when somebody waits for the lease.
    ///
    /// # Errors
    /// Somebody has the file open for writing (`EAGAIN`), its file system has no leases, or no thread can be started.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Lease> {
        let file = Arc::new(file.try_clone_to_owned()?);
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (on_break, breaks) = mpsc::channel();
        let (taken, outcome) = mpsc::channel();
        let theirs = (Arc::clone(&file), Arc::clone(&end));
        let thread = thread::Builder::new().name("lease".to_owned()).spawn(move || {
            let (file, end) = theirs;
            let signals = take(&file);
            let (signals, result) = match signals {
                Ok(signals) => (Some(signals), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // `of` waits for this.
            let _ = taken.send(result);
            if let Some(signals) = signals {
                wait_for_break(&file, &signals, &end, &breaks);
            }
        })?;
        let lease = Lease { file, on_break: Some(on_break), end, thread: Some(thread) };
        // A thread that has panicked has taken none.
        outcome.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(lease)
    }

    /// Has `act` called in the lease's thread as soon as somebody waits for the lease; at once if somebody does already. It returns
    /// whether to release the lease, so that they continue. Only the first `act` counts.
    pub fn on_break(&mut self, act: impl FnOnce() -> bool + Send + 'static) {
        if let Some(on_break) = self.on_break.take() {
            // The thread is there as long as the lease, unless it has failed; then the kernel breaks the lease by itself.
            let _ = on_break.send(Box::new(act));
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The thread waits for either of them.
        self.on_break = None;
        let _ = rustix::io::write(&self.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        give_up(&self.file);
    }
}

/// Takes a lease whose break the kernel signals to the calling thread. Returns the signalfd that receives the signals.
fn take(file: &OwnedFd) -> io::Result<OwnedFd> {
    let signal = libc::SIGRTMIN();
    // Where the queue of real-time signals is full the kernel sends SIGIO.
    let signals = signalfd(&[signal, libc::SIGIO])?;
    let owner = Owner { kind: F_OWNER_TID, number: rustix::thread::gettid().as_raw_nonzero().get() };
    // SAFETY: the kernel reads a structure of this layout.
    check(unsafe { libc::fcntl(file.as_raw_fd(), F_SETOWN_EX, &raw const owner) })?;
    // SAFETY: the command takes a number.
    check(unsafe { libc::fcntl(file.as_raw_fd(), F_SETSIG, signal) })?;
    set(file.as_raw_fd(), libc::F_RDLCK)?;
    Ok(signals)
}

/// Blocks the signals in the calling thread, and makes a descriptor to read them from: by this thread only, because they are sent to it.
fn signalfd(signals: &[libc::c_int]) -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset(3) initializes the set, and fails for no set; sigaddset(3) changes an initialized set. pthread_sigmask(3) and
    // signalfd(2) read it.
    let descriptor = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), ptr::null_mut()) {
            0 => libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK),
            number => return Err(io::Error::from_raw_os_error(number)),
        }
    };
    check(descriptor)?;
    // SAFETY: it was made above, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The life of the lease's thread.
fn wait_for_break(file: &OwnedFd, signals: &OwnedFd, end: &OwnedFd, breaks: &Receiver<OnBreak>) {
    // A signal that comes before stays pending in this thread.
    let Ok(act) = breaks.recv() else { return };
    // Signals of this number may come from elsewhere.
    while holds(file) {
        let mut ready = [PollFd::new(signals, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel breaks the lease by itself, after its time.
            Err(_) => return,
        }
        if ready.iter().next_back().is_some_and(|end| !end.revents().is_empty()) {
            return;
        }
        /// Bytes of `struct signalfd_siginfo`.
        const SIGNAL: usize = size_of::<libc::signalfd_siginfo>();
        // Drops all pending signals: the state of the lease tells more than they do.
        while rustix::io::read(signals.as_fd(), &mut [0; SIGNAL]).is_ok() {}
    }
    if act() {
        give_up(file);
    }
}

/// Whether the lease is held and nobody waits for it.
fn holds(file: &OwnedFd) -> bool {
    // SAFETY: the command takes no argument.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) == libc::F_RDLCK }
}

/// Releases the lease, so that waiting processes continue.
fn give_up(file: &OwnedFd) {
    // It is given up already, or taken.
    let _ = set(file.as_raw_fd(), libc::F_UNLCK);
}

fn set(file: RawFd, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the command takes a number.
    check(unsafe { libc::fcntl(file, libc::F_SETLEASE, kind) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, OpenOptions};

    use tempfile::TempPath;

    use super::*;

    /// Somebody who opens the file for writing, and says when that is done.
    fn writer(file: &TempPath) -> (JoinHandle<()>, Receiver<()>) {
        let (path, (done, is_done)) = (file.to_path_buf(), mpsc::channel());
        let opening = thread::spawn(move || {
            OpenOptions::new().write(true).open(path).unwrap();
            done.send(()).unwrap();
        });
        (opening, is_done)
    }

    /// A file that nobody has open.
    fn closed_file() -> TempPath {
        tempfile::NamedTempFile::new_in("/var/tmp").unwrap().into_temp_path()
    }

    fn leased(file: &TempPath) -> io::Result<Lease> {
        Lease::of(File::open(file)?.as_fd())
    }

    /// Numbers of the signals that this process catches.
    fn caught() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap()
    }

    /// Waits until somebody waits for the lease, which shows in its state.
    fn wait_until_wanted(lease: &Lease) {
        while holds(&lease.file) {
            thread::yield_now();
        }
    }

    #[test]
    fn whoever_writes_waits_until_the_lease_is_given_up() {
        let before = caught();
        for is_late in [false, true] {
            let file = closed_file();
            let mut lease = leased(&file).unwrap();
            let (told, is_told) = mpsc::channel();
            let (may_go_on, go_on) = mpsc::channel();
            let act = move || {
                told.send(thread::current().name().map(str::to_owned)).unwrap();
                go_on.recv().unwrap();
                true
            };
            // Somebody may open the file before a callback is set.
            let (opening, is_done) = if is_late {
                let writer = writer(&file);
                wait_until_wanted(&lease);
                lease.on_break(act);
                writer
            } else {
                lease.on_break(act);
                writer(&file)
            };
            assert_eq!(is_told.recv().unwrap().as_deref(), Some("lease"));
            assert!(is_done.try_recv().is_err(), "it did not wait");
            may_go_on.send(()).unwrap();
            opening.join().unwrap();
        }
        assert_eq!(caught(), before, "a handler was installed");
    }

    #[test]
    fn a_lease_that_ends_lets_everybody_go_on() {
        let file = closed_file();
        for is_told in [false, true] {
            let mut lease = leased(&file).unwrap();
            let (told, was_told) = mpsc::channel();
            if is_told {
                lease.on_break(move || {
                    told.send(()).unwrap();
                    false
                });
            }
            let (opening, is_done) = writer(&file);
            wait_until_wanted(&lease);
            assert!(!is_told || was_told.recv().is_ok());
            assert!(is_done.try_recv().is_err(), "it did not wait");
            drop(lease);
            opening.join().unwrap();
        }
        let written = OpenOptions::new().append(true).open(&file).unwrap();
        let refused = leased(&file).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(written);
    }
}
