//! Where images are written to.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};

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
#[derive(Debug)]
pub struct FileSink<'a>(pub &'a File);

impl Sink for FileSink<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
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
