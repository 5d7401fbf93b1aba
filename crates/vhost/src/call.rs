//! [`Call`]: the descriptor by which a ring's thread interrupts the guest.
//!
//! A write to it must not block. But O_NONBLOCK belongs to the open file description, which the front end shares: a
//! hostile front end clears the flag and fills its eventfd or pipe, and then the ring's thread blocks. The connection's
//! thread waits for it only for a bounded time, so that a server can always be stopped.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::vring::notify;

/// How long to wait for a ring's thread that blocks.
const PATIENCE: Duration = Duration::from_secs(3);
/// A write that takes longer than this counts as blocked. During a shorter one the eventfd must not be read: the front
/// end would miss an interrupt.
const BLOCKED: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(1);

/// See the module. The front end replaces the descriptor while the ring runs, to mask interrupts.
#[derive(Debug, Default)]
pub(crate) struct Call {
    current: Mutex<Option<Descriptor>>,
    /// The same file, never locked while it is written to.
    copy: Mutex<Option<OwnedFd>>,
    is_written: AtomicBool,
}

#[derive(Debug)]
struct Descriptor {
    file: OwnedFd,
    /// Whether an interrupt went to it.
    is_used: bool,
}

fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forbids writes to wait. A front end that never reads must not block a thread.
fn let_no_write_wait(file: &OwnedFd) -> io::Result<()> {
    Ok(fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?)
}

impl Call {
    /// Interrupts the guest, if it can be.
    pub fn interrupt(&self) {
        if let Some(call) = hold(&self.current).as_mut() {
            self.write(call);
        }
    }

    fn write(&self, call: &mut Descriptor) {
        self.is_written.store(true, Ordering::Release);
        notify(call.file.as_fd());
        call.is_used = true;
        self.is_written.store(false, Ordering::Release);
    }

    /// Replaces the descriptor, even while the ring runs. An interrupt that went to the old one goes to the new one, too.
    ///
    /// A front end replaces the descriptor to mask an interrupt and to unmask it, as Linux does to a device's
    /// interrupts when it moves them to another processor. It then checks whether an interrupt came to the masked
    /// descriptor, but does not wait until this message has arrived (`virtio_pci_one_vector_unmask` of QEMU's
    /// hw/virtio/virtio-pci.c). An interrupt in between would be lost, and with it the guest's request. A driver that
    /// finds no request ignores an interrupt.
    ///
    /// A thread of its own makes that interrupt: it may block as a ring's thread may, and the connection's thread must not.
    ///
    /// # Errors
    /// A thread blocks on the old one, the descriptor is of no use, or no thread can be started.
    pub fn replace(self: &Arc<Call>, call: Option<File>) -> io::Result<()> {
        let call = call.map(|file| Descriptor { file: file.into(), is_used: false });
        let mut copy = None;
        if let Some(call) = &call {
            let_no_write_wait(&call.file)?;
            copy = Some(call.file.try_clone()?);
        }
        let mut current = self.lock_current()?;
        let is_owed = call.is_some() && current.as_ref().is_some_and(|old| old.is_used);
        *current = call;
        *hold(&self.copy) = copy;
        drop(current);
        if is_owed {
            let call = Arc::clone(self);
            thread::Builder::new().name("interrupt".to_owned()).spawn(move || call.interrupt())?;
        }
        Ok(())
    }

    fn lock_current(&self) -> io::Result<MutexGuard<'_, Option<Descriptor>>> {
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
    pub fn wait_for<T>(&self, thread: &thread::JoinHandle<T>) -> bool {
        let mut pause = PAUSE / 20;
        let mut blocks_since = None;
        while !thread.is_finished() {
            if self.is_written.load(Ordering::Acquire) {
                let blocks_for = blocks_since.get_or_insert_with(Instant::now).elapsed();
                if blocks_for > PATIENCE {
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
            let _ = rustix::io::read(copy, &mut [0; 8]);
        }
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
            let call = Arc::new(Call::default());
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
            let call = Arc::new(Call::default());
            call.replace(Some(eventfd(0, EventfdFlags::empty()).unwrap().into())).unwrap();
            call.interrupt();
            call.replace(Some(full.into())).unwrap();
            // Frees the thread that makes the interrupt, if it blocks by now.
            call.replace(None).unwrap();
            is_over.store(true, Ordering::Relaxed);
            front_end.join().unwrap();
        }
    }

    #[test]
    fn a_thread_that_cannot_be_freed_is_left_behind() {
        let call = Arc::new(Call::default());
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
        // It goes on when the front end is gone.
        drop(reader);
        assert!(call.wait_for(&thread));
    }
}
