//! Tells whether the log is empty: whether the file system was unmounted cleanly.
//!
//! The log is a ring of blocks. Each carries the number of the lap in which it was written, so the newest block is found by
//! halving. A clean unmount leaves a record of its own there (`xlog_find_head` and `xlog_check_unmount_rec` in
//! `fs/xfs/xfs_log_recover.c`).

use inarch_volume::VolumeError;

use super::damaged;
use super::disk::Disk;
use crate::xfs::spec::log::{BLOCK, MAX_RECORD, Record, cycle, is_unmount};

/// What is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing that is not where it belongs.
    Clean,
    /// Changes that are not in the file system yet.
    Dirty,
    /// It is on a device of its own.
    Elsewhere,
}

struct Ring<'a> {
    disk: &'a Disk,
    /// Where it starts, in bytes.
    start: u64,
    /// In blocks.
    length: u64,
}

/// Looks at the end of the log.
pub(super) fn state(disk: &Disk) -> Result<State, VolumeError> {
    let sb = &disk.superblock;
    if sb.log_start.get() == 0 {
        return Ok(State::Elsewhere);
    }
    let blocks = u64::from(sb.log_blocks.get());
    let first = disk.block(sb.log_start.get(), blocks).filter(|_| blocks > 0);
    let first = first.ok_or_else(|| damaged("the log lies beyond the file system's end"))?;
    let ring = Ring { disk, start: first * disk.block_size, length: blocks * disk.block_size / BLOCK };
    let head = ring.head()?;
    Ok(if ring.is_unmounted(head)? { State::Clean } else { State::Dirty })
}

impl Ring<'_> {
    fn block(&self, number: u64) -> Result<[u8; BLOCK as usize], VolumeError> {
        self.disk.pages.array(self.start + number % self.length * BLOCK)
    }

    /// The block after the newest one.
    fn head(&self) -> Result<u64, VolumeError> {
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

    /// Whether the record before `head` is that of an unmount. No record is longer than 256 KiB.
    fn is_unmounted(&self, head: u64) -> Result<bool, VolumeError> {
        for back in 1..=(2 * MAX_RECORD / BLOCK).min(self.length) {
            let number = head + self.length - back;
            let Some(record) = Record::parse(&self.block(number)?) else { continue };
            if record.operations != 1 || record.header_blocks + record.blocks != back {
                return Ok(false);
            }
            return Ok(is_unmount(&self.block(number + record.header_blocks)?));
        }
        Ok(false)
    }
}
