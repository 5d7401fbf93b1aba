//! [`Sink`]: a file or block device to which an image is written.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, ioctl_blksszget, open};

use super::share::can_share;

/// A file that can be written at any offset, from any thread.
pub trait Sink: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes sure that `length` bytes from `offset`, which are never written, are zeros.
    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let _ = (offset, length);
        Ok(())
    }

    /// The file behind it, into which the kernel can copy at the same offsets; unwritten bytes are zeros.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The same file, for large writes past the page cache.
    fn past_cache(&self) -> Option<&PastCache> {
        None
    }
}

/// A new file: unwritten bytes are holes.
///
/// [`Sink::write_at`] goes through the page cache. [`write_parts`](super::write_parts) also writes past it if the file
/// will have at least [`DIRECT_IMAGE`] bytes.
#[derive(Debug)]
pub struct FileSink<'a> {
    file: &'a File,
    past_cache: Option<PastCache>,
    /// Whether nearly all of the file will be written.
    filled: bool,
    reserved: Once,
}

/// Shorter files are written through the cache: there is little to gain, and their reader finds them there.
const DIRECT_IMAGE: u64 = 128 << 20;

/// Bytes that one call writes through the cache. The kernel allocates folios as large as a call. With 1 MiB the image
/// took twice as long on a virtual machine that returns free memory to the host in pieces of 128 KiB or more, because
/// the host must then provide the memory of each large folio anew.
const CACHED_PIECE: usize = 32 << 10;

/// The part of the machine's memory that an image may take of the page cache while the disk takes the rest: less than
/// where the kernel starts writeback (`vm.dirty_background_ratio`, a tenth), so that little else is evicted.
const CACHED_SHARE: u64 = 16;

/// A file, open for writing past the page cache.
#[derive(Debug)]
pub struct PastCache {
    file: File,
    /// Whether such a write failed.
    refused: AtomicBool,
    /// Bytes that went through the cache.
    cached: AtomicU64,
    /// How many bytes may go through the cache although they could go past it.
    most_cached: u64,
}

impl PastCache {
    /// `file` is open with `O_DIRECT`; `most_cached` bytes may go through the cache while the disk is busy.
    pub(super) fn new(file: File, most_cached: u64) -> PastCache {
        PastCache { file, refused: AtomicBool::new(false), cached: AtomicU64::new(0), most_cached }
    }

    /// Stops writing past the cache.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Whether writing past the cache has stopped.
    pub(super) fn refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether a write should wait for the disk rather than go through the cache.
    pub(super) fn cache_is_full(&self) -> bool {
        !self.refused() && self.cached.load(Ordering::Relaxed) >= self.most_cached
    }
}

impl AsFd for PastCache {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl<'a> FileSink<'a> {
    /// Writes to `file`, which is empty or all holes. If its length is known, it has that length already.
    pub fn new(file: &'a File) -> FileSink<'a> {
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        // By its descriptor's number: it may have no name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = (length >= DIRECT_IMAGE).then(|| open(path, flags, Mode::empty()).ok()).flatten();
        let past_cache = direct.map(|direct| PastCache::new(direct.into(), memory() / CACHED_SHARE));
        FileSink { file, past_cache, filled: false, reserved: Once::new() }
    }

    /// Sets whether nearly all of the file will be written and its length is known: then its blocks may be allocated at
    /// once.
    pub fn filled(self, filled: bool) -> FileSink<'a> {
        FileSink { filled, ..self }
    }

    /// Allocates all of the file's blocks. Calls past the cache are serialized if blocks are missing, and run in
    /// parallel if they exist (`ext4_dio_write_checks` of the kernel's fs/ext4/file.c): 2.1 s instead of 2.8 s for 2.7
    /// GiB.
    fn reserve(&self) {
        if self.filled && !can_share(self.file.as_fd()) {
            let length = self.file.metadata().map_or(0, |metadata| metadata.len());
            // If it fails, each write allocates its blocks itself, or reports the error.
            let _ = fallocate(self.file, FallocateFlags::KEEP_SIZE, 0, length);
        }
    }
}

/// Bytes of the machine's memory.
fn memory() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram.saturating_mul(system.mem_unit.into())
}

impl Sink for FileSink<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(past_cache) = &self.past_cache {
            past_cache.cached.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        let mut at = offset;
        while let Some(piece) = bytes.get((at - offset) as usize..).filter(|rest| !rest.is_empty()) {
            // Up to a multiple of its size.
            let length = piece.len().min(CACHED_PIECE - (at % CACHED_PIECE as u64) as usize);
            self.file.write_all_at(piece.get(..length).unwrap_or(piece), at)?;
            at += length as u64;
        }
        Ok(())
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn past_cache(&self) -> Option<&PastCache> {
        let past_cache = self.past_cache.as_ref()?;
        self.reserved.call_once(|| self.reserve());
        Some(past_cache)
    }
}

/// A block device with previous content. Gaps are zeroed by the device if it can, else by the kernel.
#[derive(Debug)]
pub struct DeviceSink<'a>(pub &'a File);

impl Sink for DeviceSink<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let end = offset.saturating_add(length);
        let whole = whole_blocks(offset, end, u64::from(ioctl_blksszget(self.0)?));
        // A device zeroes whole blocks; the rest at either end goes through the page cache.
        for part in [offset..whole.start, whole.end..end] {
            let mut at = part.start;
            while at < part.end {
                let count = (part.end - at).min(ZEROS.len() as u64);
                self.0.write_all_at(ZEROS.get(..count as usize).unwrap_or_default(), at)?;
                at += count;
            }
        }
        if whole.is_empty() {
            return Ok(());
        }
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(self.0, flags, whole.start, whole.end - whole.start)?)
    }
}

/// Written where a device cannot zero.
static ZEROS: [u8; 4096] = [0; 4096];

/// The whole blocks of `block` bytes between the bytes `start` and `end`; if there are none, the empty range at `end`.
fn whole_blocks(start: u64, end: u64, block: u64) -> Range<u64> {
    let block = block.max(1);
    let (first, last) = (start.checked_next_multiple_of(block).unwrap_or(u64::MAX), end / block * block);
    if first < last { first..last } else { end..end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_zeroes_whole_blocks() {
        for (range, expected) in [
            (0..8192, 0..8192),
            (10_240..20_480, 12_288..20_480),
            (10_240..18_432, 12_288..16_384),
            (512..4096, 4096..4096),
            (512..8000, 8000..8000),
            (4096..8191, 8191..8191),
            (u64::MAX - 5..u64::MAX, u64::MAX..u64::MAX),
        ] {
            assert_eq!(whole_blocks(range.start, range.end, 4096), expected, "{range:?}");
        }
    }
}
