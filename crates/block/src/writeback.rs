//! [`Writeback`]: whether the disk took what was written to a file.
//!
//! A write goes to the page cache. When the kernel writes that back and the disk refuses it (it is full, it fails), the pages count as clean all the same:
//! they may be dropped, and a later read gets from the disk what was there before. The kernel notes the error in the file, and tells it once to each
//! open file description: `errseq_t` of lib/errseq.c. `sync_file_range` with `SYNC_FILE_RANGE_WAIT_BEFORE` asks for it and starts no writes.
//!
//! A reader takes the number of [losses](Writeback::losses), reads, and [checks](Writeback::check). If the number is another one, it reads again.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Advice, fadvise};

/// How often an error of writeback was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses(u64);

/// What is known of a file's writeback.
#[derive(Debug, Default)]
pub struct Writeback(Mutex<Losses>);

impl Writeback {
    fn lock(&self) -> MutexGuard<'_, Losses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of losses that were seen.
    pub fn losses(&self) -> Losses {
        *self.lock()
    }

    /// Asks the kernel whether there was another one. If so, calls `lost` before any other thread learns the new number.
    pub fn check(&self, file: &File, lost: impl FnOnce(&io::Error)) -> Losses {
        let mut losses = self.lock();
        if let Err(error) = writeback_error(file) {
            losses.0 += 1;
            // The pages are gone from the disk, and must not be taken for right because they are still in memory.
            let _ = fadvise(file, 0, None, Advice::DontNeed);
            lost(&error);
        }
        *losses
    }

    /// Calls `note` if no loss was seen since `losses`.
    pub fn unless_lost(&self, losses: Losses, note: impl FnOnce()) {
        if *self.lock() == losses {
            note();
        }
    }
}

/// The error of writeback that this open file has not been told of.
fn writeback_error(file: &File) -> io::Result<()> {
    // One byte, so that it waits for the writeback of one page at most; the error is that of the whole file.
    // SAFETY: takes a descriptor and numbers.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
