//! Shares long runs of a file with the image (reflink), if the file system can.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use inarch_tree::InodeId;
use rustix::io::{Errno, pread};

use super::batch::GATHER;
use super::lane::Lane;
use super::{ImageSource, Sink, WriteError, Written};
use crate::content::Lent;
use crate::{BLOCK_SIZE, read_content};

/// Runs of at least this many bytes are shared; shorter ones are copied. On XFS a call took 45 microseconds, as long as
/// copying about 64 KiB.
pub(crate) const SHARE_FROM: u64 = 64 << 10;

/// After this many refusals without a success, sharing is not tried again: the source is on another file system.
pub(crate) const REFUSALS: u32 = 16;

/// Whether ranges of `file` can be shared with other files of its file system.
///
/// Tests with an empty range, which is no work but is still refused if sharing is not supported; see
/// `do_clone_file_range` of the kernel's fs/remap_range.c.
pub(crate) fn can_share(file: BorrowedFd<'_>) -> bool {
    match clone_range(file, 0, file, 0, 0) {
        Ok(()) | Err(Errno::INVAL) => true,
        Err(_) => false,
    }
}

/// Makes `length` bytes of `target` from `to` share the blocks of `source` from `from` (`FICLONERANGE`).
pub(crate) fn clone_range(
    source: BorrowedFd<'_>,
    from: u64,
    target: BorrowedFd<'_>,
    to: u64,
    length: u64,
) -> Result<(), Errno> {
    let range = libc::file_clone_range {
        src_fd: source.as_raw_fd().into(),
        src_offset: from,
        src_length: length,
        dest_offset: to,
    };
    // SAFETY: both descriptors are open for the call, and the argument is the structure that this request reads.
    let result = unsafe { libc::ioctl(target.as_raw_fd(), libc::FICLONERANGE, &raw const range) };
    if result == 0 { Ok(()) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

/// A long run of a file, and where it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LongRun {
    pub(super) at: u64,
    pub(super) inode: InodeId,
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Writes long runs to one sink.
pub(super) struct Sharing<'a> {
    sink: &'a dyn Sink,
    shares: bool,
    refusals: AtomicU32,
}

/// An error while a file was lent.
enum Failure {
    Reading(io::Error),
    Writing(WriteError),
}

impl<'a> Sharing<'a> {
    pub(super) fn new(sink: &'a dyn Sink) -> Sharing<'a> {
        Sharing { sink, shares: sink.file().is_some_and(can_share), refusals: AtomicU32::new(0) }
    }

    fn tries_to_share(&self) -> bool {
        self.shares && self.refusals.load(Ordering::Relaxed) < REFUSALS
    }

    /// The length from which a run is long; unlimited if nothing can be shared.
    pub(super) fn long(&self) -> u64 {
        if self.tries_to_share() { SHARE_FROM } else { u64::MAX }
    }

    /// Writes a run; the part that is not shared goes through `lane`.
    pub(super) fn write(
        &self,
        source: &ImageSource<'_>,
        run: LongRun,
        lane: &mut Lane<'_>,
    ) -> Result<Written, WriteError> {
        let LongRun { at, inode, offset, length } = run;
        let content = |error| WriteError::Content { inode: Some(inode), error };
        let (mut written, mut failure) = (Written::default(), None);
        let mut take = |file: BorrowedFd<'_>, lent: Lent| {
            let to = at + (lent.offset - offset);
            self.take(file, lent, to, lane, &mut written).map_err(|failed| {
                failure = Some(failed);
                io::Error::from(io::ErrorKind::Other)
            })
        };
        let lent = source.content.lend(inode, offset, length, &mut take);
        match (lent, failure) {
            (Ok(true), None) => Ok(written),
            (Ok(false), None) => through_memory(source, run, lane),
            (_, Some(Failure::Writing(error))) => Err(error),
            (_, Some(Failure::Reading(error))) | (Err(error), None) => Err(content(error)),
        }
    }

    fn take(
        &self,
        file: BorrowedFd<'_>,
        lent: Lent,
        to: u64,
        lane: &mut Lane<'_>,
        written: &mut Written,
    ) -> Result<(), Failure> {
        let shared = self.share(file, lent, to);
        written.shared += shared;
        let rest = Lent { offset: lent.offset + shared, at: lent.at + shared, length: lent.length - shared };
        copy(file, rest, to + shared, lane)?;
        written.copied += rest.length;
        Ok(())
    }

    /// Shares whole blocks; returns how many bytes it shared, 0 if that is refused.
    fn share(&self, file: BorrowedFd<'_>, lent: Lent, to: u64) -> u64 {
        let block = BLOCK_SIZE as u64;
        let whole = lent.length / block * block;
        if whole < SHARE_FROM || !lent.at.is_multiple_of(block) || !to.is_multiple_of(block) || !self.tries_to_share() {
            return 0;
        }
        let Some(target) = self.sink.file() else { return 0 };
        match clone_range(file, lent.at, target, to, whole) {
            Ok(()) => {
                self.refusals.store(0, Ordering::Relaxed);
                whole
            }
            // Whatever the reason, copying works or reports the error. Reasons: another file system, blocks of another
            // size, a swap file, no space for the records of shared blocks.
            Err(_) => {
                self.refusals.fetch_add(1, Ordering::Relaxed);
                0
            }
        }
    }
}

/// Reads and writes a run that cannot be lent.
fn through_memory(source: &ImageSource<'_>, run: LongRun, lane: &mut Lane<'_>) -> Result<Written, WriteError> {
    let mut done = 0;
    while done < run.length {
        let (at, count) = (run.at + done, (run.length - done).min(GATHER) as usize);
        read_content(source.content, run.inode, run.offset + done, lane.buffer(at, count))
            .map_err(|error| WriteError::Content { inode: Some(run.inode), error })?;
        lane.write(at, count)?;
        done += count as u64;
    }
    Ok(Written { copied: done, shared: 0 })
}

/// Copies a lent part.
fn copy(file: BorrowedFd<'_>, lent: Lent, to: u64, lane: &mut Lane<'_>) -> Result<(), Failure> {
    let mut done = 0;
    while done < lent.length {
        let (at, count) = (to + done, (lent.length - done).min(GATHER) as usize);
        let got = match pread(file, lane.buffer(at, count), lent.at + done) {
            Ok(0) => return Err(Failure::Reading(io::ErrorKind::UnexpectedEof.into())),
            Ok(got) => got,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(Failure::Reading(errno.into())),
        };
        lane.write(at, got).map_err(Failure::Writing)?;
        done += got as u64;
    }
    Ok(())
}
