//! [`Writeback`]: detects that the disk has lost what was written to a file.
//!
//! A write goes to the page cache. When the kernel writes that back and the disk refuses it (it is full, it fails), the pages count as clean all the same:
//! they may be dropped, and a later read gets from the disk what was there before. The kernel notes the error in the file, and tells it once to each
//! open file description: `errseq_t` of lib/errseq.c. `sync_file_range` with `SYNC_FILE_RANGE_WAIT_BEFORE` asks for it and starts no writes.
//!
//! A reader reads, and [checks](Writeback::check) before it uses what it read. After a loss the file is never to be trusted again: pages that are still right
//! in memory may be wrong a moment later.
//!
//! Two losses are not seen: one that was told to another process before this one opened the file, and any in a file of overlayfs, which keeps the errors of
//! the layer below to itself.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Advice, fadvise};

/// Whether something that was written to a file is known to be lost.
#[derive(Debug, Default)]
pub struct Writeback {
    is_lost: AtomicBool,
    /// Held while the kernel is asked: a thread that is not told of an error waits for the one that is.
    asking: Mutex<()>,
}

impl Writeback {
    /// Whether something is known to be lost.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Asks the kernel whether something was lost, unless that is known. Returns the error if it is news.
    pub fn check(&self, file: &File) -> Option<io::Error> {
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_lost() {
            return None;
        }
        let error = writeback_error(file)?;
        self.is_lost.store(true, Ordering::Release);
        // What other processes find in memory should be what is on the disk.
        let _ = fadvise(file, 0, None, Advice::DontNeed);
        Some(error)
    }
}

/// The error of writeback that this open file was not told of yet.
fn writeback_error(file: &File) -> Option<io::Error> {
    // One byte, so that it waits for the writeback of one page at most; the error is that of the whole file.
    // SAFETY: takes a descriptor and numbers.
    let asked = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    let error = (asked != 0).then(io::Error::last_os_error)?;
    // Any other error says that it cannot be asked.
    let of_disk = [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::ESTALE];
    error.raw_os_error().is_some_and(|errno| of_disk.contains(&errno)).then_some(error)
}
