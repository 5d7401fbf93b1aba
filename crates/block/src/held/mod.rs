//! Holds files: copies them while they are as the scan saw them, so that a later change on the host does not reach the
//! guest.
//!
//! 1. A background thread goes through the files, the smallest first ([`candidates`]), so that most files are held.
//! 2. Each file is shared with the spool by reflink if the file system can, else copied into it ([`spool`]). The spool
//!    is one nameless file for all copies, so it takes one descriptor.
//! 3. After the last byte the host file's attributes are compared with the scan's, as for any read. A file that changed
//!    before or meanwhile is not held.
//! 4. A read goes to the host's file first. If that has changed, it reads the copy.

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

/// How much may be held. Held files are subtracted, so that several trees can share one allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Bytes to copy. Bytes that are shared with the host's files take no space and do not count.
    pub bytes: u64,
    /// Files.
    pub files: u64,
}

/// Which files to hold, and where to put the copies.
pub struct Hold<'a> {
    /// The directory of the tree whose files are held: its path from the root, without a leading slash; empty for all.
    pub below: &'a [u8],
    /// Which of them are held; paths count from that directory.
    pub filter: &'a Filter,
    /// The directory of the spool, a nameless file. Copies take at most a thirty-second of the space that is free
    /// there, to leave the rest to others.
    pub directory: &'a Path,
    /// Whether to stop; called before each step.
    pub stop: &'a dyn Fn() -> bool,
}

/// Lends a whole file; returns whether it was as the scan saw it all the time.
pub(crate) type Lender<'a> = dyn Fn(InodeId, &mut Borrower<'_>) -> bool + 'a;

/// The copies of files of one tree.
#[derive(Debug, Default)]
pub(crate) struct HeldFiles {
    /// The spool's file.
    file: OnceLock<Arc<File>>,
    /// The offset in it of each copy.
    places: RwLock<HashMap<InodeId, u64>>,
    /// Locked while copies are added.
    spool: Mutex<Option<Spool>>,
}

impl HeldFiles {
    /// Holds files of `tree` until all are held, `hold` says to stop, or the allowance is used up.
    ///
    /// Fails if the spool cannot be created or written. Files held before that stay held.
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

    /// Reads `count` bytes of the copy of `inode` from `offset`, which must be within the file. Returns `false` if
    /// there is no copy or it cannot be read.
    pub(crate) fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> bool {
        let (Some(place), Some(file)) = (self.place(inode), self.file.get()) else { return false };
        read_exact(file.as_fd(), place.saturating_add(offset), count, out).is_ok()
    }

    fn place(&self, inode: InodeId) -> Option<u64> {
        self.places.read().unwrap_or_else(PoisonError::into_inner).get(&inode).copied()
    }
}
