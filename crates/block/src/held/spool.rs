//! The spool: a nameless file to which copies are appended.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::io::{Errno, pread};

use crate::overlay;
use crate::write::{REFUSALS, SHARE_FROM, can_share, clone_range};

/// The fraction of the free space on the spool's disk that copies may take.
const SPACE_FRACTION: u64 = 32;

/// Bytes copied at once.
const PIECE: usize = 128 << 10;

/// Bytes shared at once. The kernel first writes dirty bytes of the source to its disk, and the process cannot end
/// before that.
const SHARED_PIECE: u64 = 16 << 20;

/// Shared bytes begin at a multiple of this: no file system has larger blocks.
const SHARED_ALIGNMENT: u64 = 64 << 10;

/// Why a file was not added.
pub(super) enum Failure {
    /// The file was not copied: it is unreadable, it changed, the spool is full, or the run is ending.
    Source,
    /// The spool cannot be written to.
    Spool(io::Error),
}

/// A nameless file to which copies are appended.
#[derive(Debug)]
pub(super) struct Spool {
    file: Arc<File>,
    /// Where the copies that were kept end.
    end: u64,
    /// Where the last copy begins and ends.
    added: (u64, u64),
    /// The most bytes a file of this process may have (`RLIMIT_FSIZE`). The kernel sends SIGXFSZ for a write beyond it.
    longest: u64,
    /// Whether the spool's file system can share blocks.
    shares: bool,
    /// How often sharing was refused since it last succeeded.
    refusals: u32,
    buffer: Vec<u8>,
}

impl Spool {
    /// An empty spool on the file system of `directory`.
    pub(super) fn new(directory: &Path) -> io::Result<Spool> {
        let file = overlay::ephemeral(directory).map_err(io::Error::other)?;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        Ok(Spool {
            shares: can_share(file.as_fd()),
            file: Arc::new(file),
            end: 0,
            added: (0, 0),
            longest: limit.unwrap_or(u64::MAX).min(i64::MAX as u64),
            refusals: 0,
            buffer: vec![0; PIECE],
        })
    }

    /// The file itself.
    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// How many bytes of the disk copies may take now.
    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.file)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize) / SPACE_FRACTION)
    }

    /// Whether to share a file of `size` bytes with the spool (reflink) rather than copy it.
    pub(super) fn tries_to_share(&self, size: u64) -> bool {
        self.shares && self.refusals < REFUSALS && size >= SHARE_FROM
    }

    /// Appends the first `length` bytes of `source` and returns how many were copied, at most `room`. They stay only
    /// after [`Spool::keep`].
    pub(super) fn add(
        &mut self,
        source: BorrowedFd<'_>,
        length: u64,
        room: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<u64, Failure> {
        if self.tries_to_share(length) && self.share(source, length, stop)? {
            return Ok(0);
        }
        if length > room {
            return Err(Failure::Source);
        }
        self.copy(source, length, stop).map(|()| length)
    }

    /// Keeps what was appended last; returns where it begins.
    pub(super) fn keep(&mut self) -> u64 {
        self.end = self.added.1;
        self.added.0
    }

    /// Discards what was appended and not kept, and frees its space.
    pub(super) fn forget(&mut self) -> io::Result<()> {
        self.file.set_len(self.end)
    }

    /// Checks that `length` bytes fit at `at`.
    fn begin(&mut self, at: u64, length: u64) -> Result<u64, Failure> {
        let end = at.checked_add(length).filter(|end| *end <= self.longest).ok_or(Failure::Source)?;
        self.added = (at, end);
        Ok(at)
    }

    /// Shares the source's blocks; returns whether that worked.
    fn share(&mut self, source: BorrowedFd<'_>, length: u64, stop: &dyn Fn() -> bool) -> Result<bool, Failure> {
        let start = self.end.checked_next_multiple_of(SHARED_ALIGNMENT).ok_or(Failure::Source)?;
        let start = self.begin(start, length)?;
        let mut done = 0;
        while done < length {
            if stop() {
                return Err(Failure::Source);
            }
            let count = SHARED_PIECE.min(length - done);
            if clone_range(source, done, self.file.as_fd(), start + done, count).is_err() {
                // Whatever the reason, copying works or reports the error. Blocks that were shared before would be in
                // the copy's way.
                self.refusals += 1;
                self.forget().map_err(Failure::Spool)?;
                return Ok(false);
            }
            done += count;
        }
        self.refusals = 0;
        Ok(true)
    }

    fn copy(&mut self, source: BorrowedFd<'_>, length: u64, stop: &dyn Fn() -> bool) -> Result<(), Failure> {
        let start = self.begin(self.end, length)?;
        let mut done = 0;
        while done < length {
            if stop() {
                return Err(Failure::Source);
            }
            let count = (length - done).min(PIECE as u64) as usize;
            let got = match pread(source, self.buffer.get_mut(..count).unwrap_or_default(), done) {
                Ok(got) if got > 0 => got,
                Err(Errno::INTR) => continue,
                Ok(_) | Err(_) => return Err(Failure::Source),
            };
            let bytes = self.buffer.get(..got).unwrap_or_default();
            self.file.write_all_at(bytes, start + done).map_err(Failure::Spool)?;
            done += got as u64;
        }
        Ok(())
    }
}
