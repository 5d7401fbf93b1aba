//! Tells whether the log is empty: whether the file system was unmounted cleanly.
//!
//! The log is a ring of blocks. Each carries the number of the lap in which it was written, so the newest block is found by
//! halving. A clean unmount leaves a record of its own there (`xlog_find_head` and `xlog_check_unmount_rec` in
//! `fs/xfs/xfs_log_recover.c`).

use inarch_volume::VolumeError;

use super::damaged;
use super::disk::Disk;
use crate::xfs::spec::log::{BLOCK, MAX_RECORD, Record, cycle, is_unmount};

/// The log within the file system.
pub(super) struct Ring<'a> {
    disk: &'a Disk,
    /// Where it starts, in bytes.
    start: u64,
    /// In blocks.
    pub(super) length: u64,
}

impl<'a> Ring<'a> {
    /// `None` if it is elsewhere.
    pub(super) fn new(disk: &'a Disk) -> Result<Option<Ring<'a>>, VolumeError> {
        let sb = &disk.superblock;
        if sb.log_start.get() == 0 {
            return Ok(None);
        }
        let blocks = u64::from(sb.log_blocks.get());
        let first = disk.block(sb.log_start.get(), blocks).filter(|_| blocks > 0);
        let first = first.ok_or_else(|| damaged("lies beyond the file system's end"))?;
        Ok(Some(Ring { disk, start: first * disk.block_size, length: blocks * disk.block_size / BLOCK }))
    }

    pub(super) fn block(&self, number: u64) -> Result<[u8; BLOCK as usize], VolumeError> {
        self.disk.pages.array(self.start + number % self.length * BLOCK)
    }

    /// The bytes of some blocks; `count` is that of a record at most.
    pub(super) fn blocks(&self, number: u64, count: u64) -> Result<Vec<u8>, VolumeError> {
        let mut bytes = Vec::new();
        for number in number..number + count.min(2 * MAX_RECORD / BLOCK) {
            bytes.extend_from_slice(&self.block(number)?);
        }
        Ok(bytes)
    }

    /// The block after the newest one.
    pub(super) fn head(&self) -> Result<u64, VolumeError> {
        let last = cycle(&self.block(self.length - 1)?);
        if cycle(&self.block(0)?) == last {
            return Ok(0);
        }
        // The first block of the last one's lap.
        let (mut newer, mut older) = (0, self.length - 1);
        while older - newer > 1 {
            let middle = newer + (older - newer) / 2;
            match cycle(&self.block(middle)?) == last {
                true => older = middle,
                false => newer = middle,
            }
        }
        Ok(older)
    }

    /// The newest header of a record before `head`. What is written at once has at most eight of the longest records.
    pub(super) fn last_record(&self, head: u64) -> Result<Option<Record>, VolumeError> {
        for back in 1..=(8 * MAX_RECORD / BLOCK).min(self.length) {
            let number = (head + self.length - back) % self.length;
            let record = Record::parse(&self.block(number)?);
            if let Some(record) = record.filter(|record| u64::from(record.block) == number) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Whether the newest record is that of an unmount: nothing is in the log that is not where it belongs.
    pub(super) fn is_clean(&self) -> Result<bool, VolumeError> {
        let head = self.head()?;
        let Some(record) = self.last_record(head)? else { return Ok(false) };
        let number = u64::from(record.block);
        let ends_there = (number + record.header_blocks + record.blocks) % self.length == head;
        Ok(record.operations == 1 && ends_there && is_unmount(&self.block(number + record.header_blocks)?))
    }
}
