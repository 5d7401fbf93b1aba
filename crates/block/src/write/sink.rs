//! Where images are written to.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Instant;

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};

use super::buffer::ALIGNMENT;
use super::share::can_share;
use super::ways::{TRIAL, Way, Ways};

/// Where an image is written: a file, at any offset, from any thread.
pub trait Sink: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes sure that `length` bytes from `offset` on, which nothing is written to, are zeros.
    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let _ = (offset, length);
        Ok(())
    }

    /// The file behind it, for the kernel to copy into at the same offsets, where what is not written is zeros.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A new file: what is not written is a hole.
///
/// Two ways lead to the disk: through the page cache, and past it (`O_DIRECT`). Which is faster depends on the machine:
/// on how fast its memory is to be had, and how fast its disk is. A file of less than [`DIRECT_IMAGE`] bytes stays in the
/// cache; of another one each way is tried, and the faster one taken ([`Ways`]).
#[derive(Debug)]
pub struct FileSink<'a> {
    file: &'a File,
    /// The same file, open for writing past the cache.
    direct: Option<File>,
    /// That did not work.
    refused: AtomicBool,
    ways: Mutex<Ways>,
    /// Whether nearly all of the file will be written.
    filled: bool,
    reserved: Once,
}

/// Shorter files are written through the cache: there is little to win, and they are at hand for whoever uses them.
const DIRECT_IMAGE: u64 = 128 << 20;

/// Shorter writes go through the cache, where they need not wait for the disk.
const DIRECT_FROM: usize = 256 << 10;

/// Bytes that one call writes through the cache. The kernel takes folios as large as a call: with a mebibyte, the image took
/// twice as long on a virtual machine that gives its free memory back to the host in pieces of 128 KiB and more, as large
/// folios are then always memory that the host has to provide anew.
const CACHED_PIECE: usize = 32 << 10;

impl<'a> FileSink<'a> {
    /// Writes to `file`, which is empty or all holes. Where its whole length is known it has that already.
    pub fn new(file: &'a File) -> FileSink<'a> {
        // By its number: it may have no name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = open(path, flags, Mode::empty()).ok().map(File::from);
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        let first_cached = if length < DIRECT_IMAGE { DIRECT_IMAGE } else { TRIAL };
        let ways = Mutex::new(Ways::new(first_cached));
        FileSink { file, direct, refused: AtomicBool::new(false), ways, filled: false, reserved: Once::new() }
    }

    /// Says whether nearly all of the file will be written, and its length is known: then it may get its blocks at once.
    pub fn filled(self, filled: bool) -> FileSink<'a> {
        FileSink { filled, ..self }
    }

    /// Gives the file all its blocks. Calls past the cache take their turns where they find none, and go side by side where they
    /// find some (`ext4_dio_write_checks` of the kernel's fs/ext4/file.c): 2.1 s instead of 2.8 s for 2.7 GiB.
    fn reserve(&self) {
        if self.filled && !can_share(self.file.as_fd()) {
            let length = self.file.metadata().map_or(0, |metadata| metadata.len());
            // Where it fails, each write takes its blocks itself, or says what is wrong.
            let _ = fallocate(self.file, FallocateFlags::KEEP_SIZE, 0, length);
        }
    }

    /// The file to write so many bytes past the cache with, if that is the way to go now.
    fn direct(&self, bytes: usize) -> Option<&File> {
        let direct = self.direct.as_ref().filter(|_| !self.refused.load(Ordering::Relaxed))?;
        let past_cache = self.ways().take(bytes as u64) == Way::Direct;
        if past_cache {
            self.reserved.call_once(|| self.reserve());
        }
        past_cache.then_some(direct)
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one way, which gives how many bytes it wrote, and counts them.
    fn timed(&self, way: Way, write: impl FnOnce() -> io::Result<usize>) -> io::Result<usize> {
        let started = Instant::now();
        let written = write()?;
        self.ways().count(way, written as u64, started.elapsed());
        Ok(written)
    }

    fn write_cached(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = offset;
        while let Some(piece) = bytes.get((at - offset) as usize..).filter(|rest| !rest.is_empty()) {
            // Up to a multiple of its size.
            let length = piece.len().min(CACHED_PIECE - (at % CACHED_PIECE as u64) as usize);
            self.file.write_all_at(piece.get(..length).unwrap_or(piece), at)?;
            at += length as u64;
        }
        Ok(())
    }

    /// Writes the whole pages in the middle of `bytes` past the cache; gives the range that it wrote.
    fn write_past_cache(&self, direct: &File, offset: u64, bytes: &[u8]) -> io::Result<Range<usize>> {
        let start = (offset.next_multiple_of(ALIGNMENT as u64) - offset) as usize;
        let whole = bytes.len().saturating_sub(start) / ALIGNMENT * ALIGNMENT;
        let Some(pages) = bytes.get(start..start + whole).filter(|pages| pages.len() >= DIRECT_FROM) else {
            return Ok(0..0);
        };
        if !(pages.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            return Ok(0..0);
        }
        let written = self.timed(Way::Direct, || match direct.write_at(pages, offset + start as u64) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                // The file system or its disk wants something else.
                self.refused.store(true, Ordering::Relaxed);
                Ok(0)
            }
            result => result,
        })?;
        Ok(start..start + written)
    }
}

impl Sink for FileSink<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let done = match self.direct(bytes.len()) {
            Some(direct) => self.write_past_cache(direct, offset, bytes)?,
            None => 0..0,
        };
        for part in [0..done.start, done.end..bytes.len()] {
            let at = offset + part.start as u64;
            let bytes = bytes.get(part).unwrap_or_default();
            if !bytes.is_empty() {
                self.timed(Way::Cached, || self.write_cached(at, bytes).map(|()| bytes.len()))?;
            }
        }
        Ok(())
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// A block device, which held something before: gaps are zeroed by the device where it can, else by the kernel.
#[derive(Debug)]
pub struct DeviceSink<'a>(pub &'a File);

impl Sink for DeviceSink<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(self.0, flags, offset, length)?)
    }
}
