//! [`BlockDevice`]: the interface of a device that a server serves.

use std::io;

use vm_memory::VolatileSlice;

use crate::{Allocation, Device};

/// A device of bytes. Called from several threads at once. Offsets and lengths are in bytes and end within the capacity;
/// a server whose protocol speaks of sectors keeps to multiples of 512.
pub trait BlockDevice: Send + Sync + 'static {
    /// Bytes of the device.
    fn capacity(&self) -> u64;

    /// Bytes at the device's start that have a meaning. The device may be larger; the rest reads as zeros and cannot be
    /// written. Used by servers that announce the size once it is known.
    fn content_size(&self) -> u64 {
        self.capacity()
    }

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// Whether the bytes from `offset` are data, a hole or zeros, as far as known without reading them, and for how
    /// many bytes that holds: at most `limit`, at least 1 unless `limit` is 0.
    fn allocation(&self, offset: u64, limit: u64) -> (Allocation, u64) {
        let _ = offset;
        (Allocation::Data, limit)
    }

    /// Fills `out`, one slice after the other, with the device's bytes from `offset` on.
    ///
    /// # Errors
    /// The bytes are not available; `out` may have been changed.
    fn read_at(&self, offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()>;

    /// Writes the slices, one after the other, from `offset` on.
    ///
    /// # Errors
    /// The device refuses or fails; part of the range may have been written.
    fn write_at(&self, offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()>;

    /// Discards the range's content; the device chooses what the range reads as afterwards.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    fn discard(&self, offset: u64, length: u64) -> io::Result<()>;

    /// Makes the range read as zeros; `unmap` permits the device to free its space.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    fn write_zeroes(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()>;

    /// Makes every acknowledged write outlive this process and, if the device was opened so, a power loss.
    ///
    /// # Errors
    /// The device cannot guarantee that.
    fn flush(&self) -> io::Result<()>;
}

impl BlockDevice for Device {
    fn capacity(&self) -> u64 {
        self.capacity()
    }

    fn content_size(&self) -> u64 {
        self.content_size()
    }

    fn read_only(&self) -> bool {
        self.read_only()
    }

    fn allocation(&self, offset: u64, limit: u64) -> (Allocation, u64) {
        self.allocation(offset, limit)
    }

    fn read_at(&self, offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        self.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        self.write_at(offset, data)
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.discard(offset, length)
    }

    fn write_zeroes(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()> {
        self.write_zeroes(offset, length, unmap)
    }

    fn flush(&self) -> io::Result<()> {
        self.flush()
    }
}
