//! [`Device`]: a block map, its files' content, and an overlay for writes.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use inarch_tree::InodeId;
use vm_memory::VolatileSlice;

use crate::events::{Counters, add, timed};
use crate::overlay::State;
use crate::{Allowance, BLOCK_SIZE, BlockMap, Content, Cursor, Events, Hold, Overlay, Run};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What is known about a part of a device without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Zeros that take no space.
    Hole,
    /// Any bytes.
    Data,
}

/// Where the bytes of a part of a device come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The overlay: they were written.
    Overlay,
    /// Nowhere: they were discarded or zeroed, or the map has nothing there.
    Zeros,
    /// Metadata that the format renders.
    Metadata,
    /// A file of the tree, from its byte `offset`.
    File {
        /// The file.
        inode: InodeId,
        /// Where in it the part starts, in bytes.
        offset: u64,
    },
}

/// A block device whose content is computed or fetched when it is read. Every method may be called from several threads
/// at once. Concurrent requests that overlap may take effect in either order, sector by sector.
///
/// Offsets and lengths beyond the capacity give `EINVAL`; a change of a read-only device gives `EROFS`.
pub struct Device {
    map: BlockMap,
    files: Arc<dyn Content>,
    overlay: Option<Overlay>,
    capacity_blocks: u64,
    counters: Counters,
}

impl Device {
    /// A device of `capacity_blocks` blocks of 4 KiB, at most 2^51. Beyond `map` it holds zeros. Without an overlay it
    /// is read-only. It may be larger than its overlay: the part beyond can be read, not written.
    pub fn new(map: BlockMap, files: Arc<dyn Content>, overlay: Option<Overlay>, capacity_blocks: u64) -> Device {
        Device { map, files, overlay, capacity_blocks: capacity_blocks.min(1 << 51), counters: Counters::default() }
    }

    /// Size in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity_blocks * BLOCK
    }

    /// Bytes that the map describes: the size of the file system, which may be smaller than the device.
    pub fn content_size(&self) -> u64 {
        self.map.blocks().min(self.capacity_blocks) * BLOCK
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        self.overlay.is_none()
    }

    /// Fills all of `out` with the device's content from `offset`. After an error the content of `out` is undefined.
    ///
    /// `EIO`: a file of the tree changed, or no descriptor was left to open it; see [`Device::events`]. Other errors
    /// come from reading the overlay.
    pub fn read_at(&self, offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        let mut out = Cursor::new(out);
        self.read_to(offset, out.remaining(), &mut out)
    }

    /// Fills the next `count` bytes of `out`, or the rest of it; like [`Device::read_at`].
    pub(crate) fn read_to(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        add(&self.counters.reads, 1);
        let count = count.min(out.remaining());
        let read = || self.check_range(offset, count).and_then(|()| self.read(offset, count, out));
        self.count_error(timed(&self.counters.reading, read))
    }

    /// Writes all of `data` from `offset` on.
    ///
    /// `ENOSPC`, `EDQUOT`: the host has no space for the overlay, or the range is beyond the overlay. After an error
    /// the range holds the old bytes, the new ones or, if it had been written before, a part of both; everything else
    /// is unchanged.
    pub fn write_at(&self, offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        add(&self.counters.writes, 1);
        let mut data = Cursor::new(data);
        let length = data.remaining();
        let result = timed(&self.counters.writing, || {
            let overlay = self.writable(offset, length)?;
            overlay.write(offset, length, &mut data, &|offset, out| self.read_below_into(offset, out))
        });
        if result.is_ok() {
            add(&self.counters.bytes_written, length);
        }
        self.count_error(result)
    }

    /// Zeroes the range and gives the host's space back.
    pub fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.write_zeroes(offset, length, true)
    }

    /// Zeroes the range; gives the overlay's space for it back to the host only if `unmap` is set.
    pub fn write_zeroes(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()> {
        add(&self.counters.discards, 1);
        let result = timed(&self.counters.writing, || {
            let overlay = self.writable(offset, length)?;
            overlay.zero(offset, length, unmap, &|offset, out| self.read_below_into(offset, out))
        });
        self.count_error(result)
    }

    /// Waits until every acknowledged write is as durable as the overlay makes it.
    pub fn flush(&self) -> io::Result<()> {
        add(&self.counters.flushes, 1);
        self.count_error(timed(&self.counters.writing, || self.overlay.as_ref().map_or(Ok(()), Overlay::flush)))
    }

    /// Copies the tree's files, so that later changes on the host do not matter; see [`Content::hold`].
    pub fn hold(&self, hold: &Hold<'_>, allowance: &mut Allowance) -> io::Result<()> {
        self.files.hold(hold, allowance)
    }

    /// What has happened so far.
    pub fn events(&self) -> Events {
        Events {
            overlay_bytes: self.overlay.as_ref().map_or(0, Overlay::written_bytes),
            overlay_out_of_space: self.overlay.as_ref().is_some_and(Overlay::out_of_space),
            out_of_descriptors: self.files.out_of_descriptors(),
            changed: self.files.changed(),
            held: self.files.held(),
            ..self.counters.snapshot()
        }
    }

    /// Where the content at `offset` comes from, and for how many bytes (at least 1) that holds; a part of a file
    /// continues as one range of that file.
    ///
    /// Beyond the capacity there are zeros.
    pub fn origin(&self, offset: u64) -> (Origin, u64) {
        let left = self.capacity().saturating_sub(offset);
        if left == 0 {
            return (Origin::Zeros, (u64::MAX - offset).max(1));
        }
        let (state, count) = self.state(offset, left);
        let (block, within) = (offset / BLOCK, offset % BLOCK);
        let (run, blocks) = self.map.lookup(block);
        let below = blocks.saturating_mul(BLOCK).saturating_sub(within).min(count);
        match (state, run) {
            (State::Written, _) => (Origin::Overlay, count),
            (State::Zero, _) => (Origin::Zeros, count),
            (State::Base, Run::Zeros) => (Origin::Zeros, below),
            (State::Base, Run::Metadata) => (Origin::Metadata, below),
            (State::Base, Run::File { inode, block }) => {
                (Origin::File { inode, offset: block * BLOCK + within }, below)
            }
        }
    }

    /// The parts of `count` bytes from `offset`, each with its origin.
    pub(crate) fn parts(&self, offset: u64, count: u64) -> impl Iterator<Item = (Origin, Range<u64>)> {
        let (mut at, end) = (offset, offset.saturating_add(count));
        std::iter::from_fn(move || {
            let start = at;
            if start >= end {
                return None;
            }
            let (origin, length) = self.origin(start);
            at = start.saturating_add(length).min(end);
            Some((origin, start..at))
        })
    }

    /// The offset in the overlay's file of the device's first byte; `None` without an overlay.
    pub fn overlay_data_start(&self) -> Option<u64> {
        self.overlay_file().map(|(_, data_start)| data_start)
    }

    /// The overlay's file, and the offset in it of the device's first byte.
    pub(crate) fn overlay_file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.overlay.as_ref().map(Overlay::file)
    }

    /// For how many bytes from `offset` the device is known to hold zeros; 0 if that is not known without reading.
    pub(crate) fn zeros_at(&self, offset: u64) -> u64 {
        let left = self.capacity().saturating_sub(offset);
        let (state, count) = self.state(offset, left);
        match (state, self.map.lookup(offset / BLOCK)) {
            (State::Zero, _) => count,
            (State::Base, (Run::Zeros, blocks)) => {
                blocks.saturating_mul(BLOCK).saturating_sub(offset % BLOCK).min(count)
            }
            _ => 0,
        }
    }

    /// What is known about the bytes from `offset` without reading them, and for how many bytes that holds: at most
    /// `limit`, at least 1 unless `limit` is 0. Beyond the capacity everything is a hole.
    pub fn allocation(&self, offset: u64, limit: u64) -> (Allocation, u64) {
        let (allocation, mut length) = self.allocation_of_run(offset, limit);
        while length < limit {
            let (next, count) = self.allocation_of_run(offset.saturating_add(length), limit - length);
            if next != allocation {
                break;
            }
            length += count;
        }
        (allocation, length)
    }

    /// Like [`Device::allocation`], but the following bytes may have the same state.
    fn allocation_of_run(&self, offset: u64, limit: u64) -> (Allocation, u64) {
        match self.state(offset, limit) {
            (State::Zero, count) => (Allocation::Hole, count),
            (State::Written, count) => (Allocation::Data, count),
            (State::Base, count) => {
                let (run, blocks) = self.map.lookup(offset / BLOCK);
                let count = blocks.saturating_mul(BLOCK).saturating_sub(offset % BLOCK).min(count);
                (if run == Run::Zeros { Allocation::Hole } else { Allocation::Data }, count)
            }
        }
    }

    fn count_error(&self, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() {
            add(&self.counters.errors, 1);
        }
        result
    }

    fn check_range(&self, offset: u64, length: u64) -> io::Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.capacity() => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    fn writable(&self, offset: u64, length: u64) -> io::Result<&Overlay> {
        let overlay = self.overlay.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EROFS))?;
        self.check_range(offset, length)?;
        if offset + length > overlay.capacity() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        Ok(overlay)
    }

    /// The overlay's state at `offset`, and for how many bytes it holds, at most `limit`.
    fn state(&self, offset: u64, limit: u64) -> (State, u64) {
        match &self.overlay {
            Some(overlay) if limit > 0 && offset < overlay.capacity() => {
                overlay.run(offset, limit.min(overlay.capacity() - offset))
            }
            _ => (State::Base, limit),
        }
    }

    fn read(&self, mut offset: u64, mut left: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        while left > 0 {
            let (state, count) = self.state(offset, left);
            match (&self.overlay, state) {
                (Some(overlay), State::Written) => {
                    overlay.read(offset, count, out)?;
                    add(&self.counters.overlay_bytes_read, count);
                }
                (_, State::Zero) => self.read_zeros(count, out),
                _ => self.read_below(offset, count, out)?,
            }
            offset += count;
            left -= count;
        }
        Ok(())
    }

    fn read_zeros(&self, count: u64, out: &mut Cursor<'_, '_>) {
        out.fill_zeros(count);
        add(&self.counters.zero_bytes_read, count);
    }

    /// Reads `count` bytes from the map.
    fn read_below(&self, mut offset: u64, mut count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        while count > 0 {
            let (block, within) = (offset / BLOCK, offset % BLOCK);
            let (run, blocks) = self.map.lookup(block);
            let now = blocks.saturating_mul(BLOCK).saturating_sub(within).min(count);
            match run {
                Run::Zeros => self.read_zeros(now, out),
                Run::Metadata => self.read_metadata(offset, now, out)?,
                Run::File { inode, block } => {
                    self.files.read(inode, block * BLOCK + within, now, out)?;
                    add(&self.counters.file_bytes_read, now);
                }
            }
            offset += now;
            count -= now;
        }
        Ok(())
    }

    /// Renders each block on the stack. A renderer must not work in guest memory, where the guest could change the
    /// bytes meanwhile.
    fn read_metadata(&self, mut offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let mut block = [0; BLOCK_SIZE];
        let end = offset + count;
        while offset < end {
            self.map.render(offset / BLOCK, &mut block);
            for inlay in self.map.inlays(offset / BLOCK) {
                inlay.read(&*self.files, &mut block)?;
                add(&self.counters.file_bytes_read, inlay.length as u64);
            }
            let within = offset % BLOCK;
            let now = (BLOCK - within).min(end - offset);
            out.copy_from(block.get(within as usize..(within + now) as usize).unwrap_or_default());
            offset += now;
        }
        add(&self.counters.metadata_bytes_read, count);
        Ok(())
    }

    fn read_below_into(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let count = out.len() as u64;
        self.read_below(offset, count, &mut Cursor::new(&[out.into()]))
    }
}
