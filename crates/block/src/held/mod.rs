//! Copies of a tree's files, made while they are what the scan saw, for when they no longer are.
//!
//! 1. A background thread goes through the files, the smallest first ([`candidates`]): so most of them are held.
//! 2. Each is shared with the spool where the file system can do that, else copied into it ([`spool`]). The spool is one
//!    file without a name for all of them, so one descriptor.
//! 3. After its last byte the host file's attributes are compared with the scan's, as with any read. Only then does the copy
//!    count: a file that changed before or meanwhile is not held.
//! 4. A read goes to the host's file first. If that is found changed, the copy gives the bytes.

mod candidates;
#[allow(unsafe_code, reason = "a system call that no library wraps")]
mod priority;
mod spool;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use inarch_tree::select::{Filter, ReadFile};
use inarch_tree::{InodeId, Tree};

use crate::content::Borrower;
use crate::host::read_exact;
use crate::scatter::Cursor;
use spool::{Failure, Spool};

pub use priority::take_least_priority;

/// How much may be held. What is held is taken off it, so that several trees can share one allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes to copy. What is shared with the host's files takes no space, and is not counted.
    pub bytes: u64,
    /// Files.
    pub files: u64,
}

/// What is to be held, and where.
pub struct Hold<'a> {
    /// The directory of the tree whose files are held: its path from the root, without a leading slash; empty for all.
    pub below: &'a [u8],
    /// What of them is held; paths count from that directory.
    pub filter: &'a Filter,
    /// Where the spool is made, a file without a name. No more is copied than a thirty-second of the space that is free
    /// there: the rest is for others.
    pub directory: &'a Path,
    /// Whether to stop; asked before each piece of work.
    pub stop: &'a dyn Fn() -> bool,
}

/// Lends a whole file; gives whether it was all the time what the scan saw.
pub(crate) type Lender<'a> = dyn Fn(InodeId, &mut Borrower<'_>) -> bool + 'a;

/// Copies of files of one tree.
#[derive(Debug, Default)]
pub(crate) struct HeldFiles {
    /// What holds them.
    file: OnceLock<Arc<File>>,
    /// Where in it each begins.
    places: RwLock<HashMap<InodeId, u64>>,
    /// Locked by who adds to them.
    spool: Mutex<Option<Spool>>,
}

impl HeldFiles {
    /// Holds files of `tree` until all are held, `hold` says to stop, or there is no more room.
    ///
    /// Errors are those of the spool: it cannot be made, or not be written to. What is held stays so.
    pub(crate) fn fill(
        &self,
        tree: &Tree,
        hold: &Hold<'_>,
        allowance: &mut Allowance,
        (lend, read): (&Lender<'_>, &ReadFile<'_>),
    ) -> io::Result<()> {
        let mut spool = self.spool.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files = candidates::candidates(tree, hold.below, hold.filter, read);
        files.retain(|file| self.place(file.inode).is_none());
        if files.is_empty() || (hold.stop)() {
            return Ok(());
        }
        let spool = match &mut *spool {
            Some(spool) => spool,
            none => none.insert(Spool::new(hold.directory)?),
        };
        let _ = self.file.set(spool.file());
        allowance.bytes = allowance.bytes.min(spool.free_bytes()?);
        for candidates::Candidate { size, inode } in files {
            if allowance.files == 0 || (hold.stop)() {
                break;
            }
            if size > allowance.bytes && !spool.tries_to_share(size) {
                continue;
            }
            let mut added = Err(Failure::Source);
            let unchanged = lend(inode, &mut |source, part| {
                added = spool.add(source, part.length, allowance.bytes, hold.stop);
                Ok(())
            });
            match (added, unchanged) {
                (Ok(copied), true) => {
                    let place = spool.keep();
                    allowance.files -= 1;
                    allowance.bytes -= copied;
                    self.places.write().unwrap_or_else(PoisonError::into_inner).insert(inode, place);
                }
                (Err(Failure::Spool(error)), _) => return spool.forget().and(Err(error)),
                _ => spool.forget()?,
            }
        }
        Ok(())
    }

    /// Reads `count` bytes of the copy of `inode` from `offset`, which must lie within the file; `false` if there is no
    /// copy, or it cannot be read.
    pub(crate) fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> bool {
        let (Some(place), Some(file)) = (self.place(inode), self.file.get()) else { return false };
        read_exact(file.as_fd(), place.saturating_add(offset), count, out).is_ok()
    }

    fn place(&self, inode: InodeId) -> Option<u64> {
        self.places.read().unwrap_or_else(PoisonError::into_inner).get(&inode).copied()
    }
}
