//! [`Call`]: the descriptor by which a ring's thread interrupts the guest.
//!
//! A write to it should not block, so it is `O_NONBLOCK`. But this flag belongs to the open file description, which the
//! front end shares: a hostile front end can clear the flag and fill its eventfd or pipe. The ring's thread then blocks
//! in the write.
//!
//! The connection's thread must not block with it. It does not write to the descriptor, reads it only by a call that
//! cannot block, and waits for a blocked thread only for a limited time.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, mem};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::ReadWriteFlags;
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;

use crate::vring::notify;

/// How long to wait for a ring's thread that blocks.
const PATIENCE: Duration = Duration::from_secs(3);
/// A write that takes longer than this counts as blocked. During a shorter one the eventfd must not be read: the front
/// end would miss an interrupt.
const BLOCKED: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(1);

/// Counts the rings of one server whose thread blocks, because the front end does not read what is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftBehind(Arc<()>);

impl LeftBehind {
    /// How many there are now.
    pub fn count(&self) -> usize {
        Arc::weak_count(&self.0)
    }
}

/// See the module. The front end replaces the descriptor while the ring runs, to mask interrupts.
pub(crate) struct Call {
    current: Mutex<Current>,
    /// The same file, never locked while it is written to.
    copy: Mutex<Option<OwnedFd>>,
    is_written: AtomicBool,
    /// The thread that makes the last interrupt that was owed.
    owed: Mutex<Option<JoinHandle<()>>>,
    left_behind: LeftBehind,
    /// Set once a thread is left behind. Every thread that uses this value keeps it alive, and so keeps it counted.
    counted: Mutex<Option<Weak<()>>>,
}

#[derive(Default)]
struct Current {
    file: Option<OwnedFd>,
    /// Whether an interrupt went to this descriptor, or was due while there was none.
    is_used: bool,
}

fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forbids writes to wait. A front end that never reads must not block a thread.
fn let_no_write_wait(file: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?)
}

/// Refuses what is neither an eventfd, as of QEMU, nor a pipe or a pair of sockets, as of User-Mode Linux (`os_pipe` of its
/// os-Linux/file.c). Other descriptors can block: the owner of a TCP socket decides how long close(2) takes (SO_LINGER, socket(7)).
pub(crate) fn check_kind(file: &impl AsFd) -> io::Result<()> {
    let is_usual = match FileType::from_raw_mode(fstat(file)?.st_mode) {
        // Linux gives anonymous inodes no type.
        FileType::Unknown | FileType::Fifo => true,
        FileType::Socket => socket_domain(file)? == AddressFamily::UNIX,
        _ => false,
    };
    let unusual =
        || io::Error::new(io::ErrorKind::InvalidInput, "a queue's descriptor is no eventfd, pipe or Unix socket");
    if is_usual { Ok(()) } else { Err(unusual()) }
}

impl Call {
    /// Without a descriptor.
    pub fn new(left_behind: LeftBehind) -> Call {
        Call {
            current: Mutex::default(),
            copy: Mutex::default(),
            is_written: AtomicBool::new(false),
            owed: Mutex::default(),
            left_behind,
            counted: Mutex::default(),
        }
    }

    /// Interrupts the guest, if it can be.
    pub fn interrupt(&self) {
        let mut current = hold(&self.current);
        current.is_used = true;
        if let Some(file) = &current.file {
            self.is_written.store(true, Ordering::Release);
            notify(file.as_fd());
            self.is_written.store(false, Ordering::Release);
        }
    }

    /// Replaces the descriptor, even while the ring runs. An interrupt that went to the old one goes to the new one, too.
    ///
    /// A front end replaces the descriptor to mask an interrupt and to unmask it, as Linux does to a device's
    /// interrupts when it moves them to another processor. It then checks whether an interrupt came to the masked
    /// descriptor, but does not wait until this message has arrived (`virtio_pci_one_vector_unmask` of QEMU's
    /// hw/virtio/virtio-pci.c). An interrupt in between would be lost, and with it the guest's request. A driver that
    /// finds no request ignores an interrupt.
    ///
    /// A thread of its own makes that interrupt: it may block as a ring's thread may, and the connection's thread must not. The
    /// interrupt has been made when this function returns, unless the write blocks.
    ///
    /// # Errors
    /// A thread blocks on the old one, the descriptor is of no use, or no thread can be started.
    pub fn replace(self: &Arc<Call>, call: Option<File>) -> io::Result<()> {
        if hold(&self.owed).as_ref().is_some_and(|thread| !thread.is_finished()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let file = call.map(OwnedFd::from);
        let (mut copy, mut to_write) = (None, None);
        if let Some(file) = &file {
            check_kind(file)?;
            let_no_write_wait(file)?;
            copy = Some(file.try_clone()?);
            to_write = Some(file.try_clone()?);
        }
        let mut current = self.lock_current()?;
        let old = mem::replace(&mut current.file, file);
        let owed = to_write.filter(|_| current.is_used);
        *hold(&self.copy) = copy;
        drop(current);
        drop(old);
        if let Some(file) = owed { self.owe(file) } else { Ok(()) }
    }

    /// Makes an interrupt in a thread of its own.
    fn owe(self: &Arc<Call>, file: OwnedFd) -> io::Result<()> {
        let (kept, is_made) = (Arc::clone(self), Arc::new(AtomicBool::new(false)));
        let made = Arc::clone(&is_made);
        let thread = thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
            notify(file.as_fd());
            made.store(true, Ordering::Release);
            drop(kept);
        })?;
        let (began, mut pause) = (Instant::now(), PAUSE / 20);
        while !thread.is_finished() {
            let blocks_for = began.elapsed();
            if blocks_for > PATIENCE {
                self.leave_behind();
                break;
            }
            if blocks_for > BLOCKED && !is_made.load(Ordering::Acquire) {
                self.free();
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE);
        }
        *hold(&self.owed) = Some(thread);
        Ok(())
    }

    /// Whether a thread of it was left behind.
    pub fn is_left_behind(&self) -> bool {
        hold(&self.counted).is_some()
    }

    /// Counts a thread that blocks.
    pub fn leave_behind(&self) {
        hold(&self.counted).get_or_insert_with(|| Arc::downgrade(&self.left_behind.0));
    }

    fn lock_current(&self) -> io::Result<MutexGuard<'_, Current>> {
        let began = Instant::now();
        loop {
            match self.current.try_lock() {
                Ok(current) => return Ok(current),
                Err(TryLockError::Poisoned(error)) => return Ok(error.into_inner()),
                Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => {
                    if began.elapsed() > BLOCKED {
                        self.free();
                    }
                    thread::sleep(PAUSE);
                }
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    /// Waits for the ring's thread, which was asked to end. Returns false if it blocks in a write to the descriptor and does not come back.
    pub fn wait_for<T>(&self, thread: &JoinHandle<T>) -> bool {
        let mut pause = PAUSE / 20;
        let mut blocks_since = None;
        while !thread.is_finished() {
            if self.is_written.load(Ordering::Acquire) {
                let blocks_for = blocks_since.get_or_insert_with(Instant::now).elapsed();
                if blocks_for > PATIENCE {
                    self.leave_behind();
                    return false;
                }
                if blocks_for > BLOCKED {
                    self.free();
                }
            } else {
                blocks_since = None;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSE);
        }
        true
    }

    /// Unblocks a write: reads an eventfd, which is full. A pipe's end cannot be read; it is unblocked when the front
    /// end ends and closes the other end.
    fn free(&self) {
        if let Some(copy) = hold(&self.copy).as_ref()
            && let_no_write_wait(copy).is_ok()
        {
            // The front end may let reads wait again, and empty it before we read: the flag of this one read is ours.
            let mut counter = [0; 8];
            let _ = rustix::io::preadv2(copy, &mut [IoSliceMut::new(&mut counter)], u64::MAX, ReadWriteFlags::NOWAIT);
        }
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("is_written", &self.is_written).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn allow_waiting(file: &OwnedFd) {
        fcntl_setfl(file, fcntl_getfl(file).unwrap() - OFlags::NONBLOCK).unwrap();
    }

    /// Fills the file, and has a thread block in a write to it.
    fn blocked(call: &Arc<Call>, theirs: &OwnedFd, fill: &[u8]) -> thread::JoinHandle<()> {
        assert_eq!(rustix::io::write(theirs, fill).unwrap(), fill.len());
        allow_waiting(theirs);
        let call = Arc::clone(call);
        thread::spawn(move || call.interrupt())
    }

    #[test]
    fn a_front_end_that_fills_its_eventfd_holds_up_nothing() {
        for replaces in [false, true] {
            let call = Arc::new(Call::new(LeftBehind::default()));
            let theirs = eventfd(0, EventfdFlags::empty()).unwrap();
            call.replace(Some(theirs.try_clone().unwrap().into())).unwrap();
            call.interrupt();
            let _ = rustix::io::read(&theirs, &mut [0; 8]).unwrap();
            let thread = blocked(&call, &theirs, &(u64::MAX - 1).to_ne_bytes());
            while !call.is_written.load(Ordering::Acquire) {
                thread::sleep(PAUSE);
            }
            if replaces {
                call.replace(None).unwrap();
            }
            assert!(call.wait_for(&thread));
        }
    }

    /// The front end lets writes wait at any time: also after the flag was set, and before the write.
    #[test]
    fn who_replaces_it_does_not_write_to_it() {
        for _ in 0..20 {
            let full = eventfd(0, EventfdFlags::empty()).unwrap();
            rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            let (theirs, is_over) = (full.try_clone().unwrap(), Arc::new(AtomicBool::new(false)));
            let ends = Arc::clone(&is_over);
            let front_end = thread::spawn(move || {
                while !ends.load(Ordering::Relaxed) {
                    allow_waiting(&theirs);
                }
            });
            let call = Arc::new(Call::new(LeftBehind::default()));
            call.replace(Some(eventfd(0, EventfdFlags::empty()).unwrap().into())).unwrap();
            call.interrupt();
            // Frees the thread that makes the interrupt, if it blocks.
            call.replace(Some(full.into())).unwrap();
            call.replace(None).unwrap();
            is_over.store(true, Ordering::Relaxed);
            front_end.join().unwrap();
        }
    }

    /// The front end empties it before it is read, and lets reads wait again.
    #[test]
    fn who_frees_a_thread_does_not_wait_for_an_eventfd_that_is_empty() {
        let empty = eventfd(0, EventfdFlags::empty()).unwrap();
        let (theirs, is_over) = (empty.try_clone().unwrap(), Arc::new(AtomicBool::new(false)));
        let call = Arc::new(Call::new(LeftBehind::default()));
        call.replace(Some(empty.into())).unwrap();
        let ends = Arc::clone(&is_over);
        let front_end = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                allow_waiting(&theirs);
            }
        });
        for _ in 0..20_000 {
            call.free();
        }
        is_over.store(true, Ordering::Relaxed);
        front_end.join().unwrap();
    }

    #[test]
    fn an_interrupt_that_is_owed_has_been_made_when_the_descriptor_is_replaced() {
        let call = Arc::new(Call::new(LeftBehind::default()));
        let descriptors: Vec<OwnedFd> = (0..5).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        let interrupts = |number: usize| {
            let mut count = [0; 8];
            rustix::io::read(&descriptors[number], &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        let replace = |number: usize| call.replace(Some(descriptors[number].try_clone().unwrap().into())).unwrap();
        replace(0);
        replace(1);
        assert_eq!(interrupts(1), 0);
        call.interrupt();
        replace(2);
        assert_eq!((interrupts(0), interrupts(1), interrupts(2)), (0, 1, 1));
        // Also through a time without a descriptor, and for an interrupt that was due meanwhile.
        call.replace(None).unwrap();
        replace(3);
        assert_eq!(interrupts(3), 1);
        call.replace(None).unwrap();
        call.interrupt();
        replace(4);
        assert_eq!(interrupts(4), 1);
    }

    #[test]
    fn what_may_block_otherwise_is_refused() {
        let call = Arc::new(Call::new(LeftBehind::default()));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        for file in [File::from(OwnedFd::from(socket)), File::open("/").unwrap(), File::open("/dev/null").unwrap()] {
            assert_eq!(call.replace(Some(file)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn a_front_end_has_one_owed_interrupt_that_blocks() {
        let left_behind = LeftBehind::default();
        let call = Arc::new(Call::new(left_behind.clone()));
        call.interrupt();
        let (reader, theirs) = io::pipe().unwrap();
        let theirs = OwnedFd::from(theirs);
        rustix::io::write(&theirs, &vec![0; rustix::pipe::fcntl_getpipe_size(&theirs).unwrap()]).unwrap();
        let (ends, is_over) = (theirs.try_clone().unwrap(), Arc::new(AtomicBool::new(false)));
        let front_end = thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    allow_waiting(&ends);
                }
            }
        });
        // Now and then the flag is set at the moment of the write.
        while hold(&call.owed).as_ref().is_none_or(JoinHandle::is_finished) {
            call.replace(Some(theirs.try_clone().unwrap().into())).unwrap();
        }
        assert_eq!(left_behind.count(), 1);
        assert_eq!(call.replace(None).unwrap_err().kind(), io::ErrorKind::TimedOut);
        is_over.store(true, Ordering::Relaxed);
        front_end.join().unwrap();
        drop(reader);
        let thread = hold(&call.owed).take().unwrap();
        thread.join().unwrap();
        drop(call);
        assert_eq!(left_behind.count(), 0);
    }

    #[test]
    fn a_thread_that_cannot_be_freed_is_left_behind() {
        let left_behind = LeftBehind::default();
        let call = Arc::new(Call::new(left_behind.clone()));
        let (reader, theirs) = io::pipe().unwrap();
        let theirs = OwnedFd::from(theirs);
        call.replace(Some(theirs.try_clone().unwrap().into())).unwrap();
        let room = rustix::pipe::fcntl_getpipe_size(&theirs).unwrap();
        let thread = blocked(&call, &theirs, &vec![0; room]);
        while !call.is_written.load(Ordering::Acquire) {
            thread::sleep(PAUSE);
        }
        assert!(!call.wait_for(&thread));
        assert_eq!(call.replace(None).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(left_behind.count(), 1);
        // It goes on when the front end is gone.
        drop(reader);
        assert!(call.wait_for(&thread));
        thread.join().unwrap();
        drop(call);
        assert_eq!(left_behind.count(), 0);
    }
}
