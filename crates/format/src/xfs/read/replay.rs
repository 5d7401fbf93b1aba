//! Replays the log in memory: shows the device as it is after the kernel has recovered it from an unclean end.
//!
//! Transactions that are complete say what to change: parts of buffers, and inodes (`fs/xfs/xfs_log_recover.c`,
//! `xfs_buf_item_recover.c`, `xfs_inode_item_recover.c`). All of them are applied in their order, so that the last change counts.
//! Other items do not change what is read: new inodes are named by later items, and what is left to be freed stays
//! allocated. An interrupted exchange of extents between files stays unfinished.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_volume::VolumeError;

use super::damaged;
use super::disk::Disk;
use super::log::Ring;
use crate::xfs::spec::log::{
    BLOCK, Buffer, Item, LoggedInode, MAX_RECORD, Operation, Record, operation, regions, split_operation,
};

/// Bytes of the log that are replayed at most: all changes are in memory at once.
const MOST: u64 = 512 << 20;
/// Bytes of the header of a transaction.
const HEADER: usize = 16;

const SECTOR: usize = BLOCK as usize;

/// An image with its log replayed.
pub(super) struct Replayed {
    image: Arc<dyn Backing>,
    /// The changed sectors.
    sectors: BTreeMap<u64, [u8; SECTOR]>,
}

impl Replayed {
    /// Whether any of `length` bytes from `at` were changed.
    pub(super) fn covers(&self, at: u64, length: u64) -> bool {
        self.sectors.range(at / BLOCK..at.saturating_add(length).div_ceil(BLOCK)).next().is_some()
    }
}

impl Backing for Replayed {
    fn size(&self) -> u64 {
        self.image.size()
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).filter(|end| *end <= self.size());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut at = offset;
        while at < end {
            let next = self.sectors.range(at / BLOCK..end.div_ceil(BLOCK)).next();
            let start = next.map_or(end, |(number, _)| number * BLOCK);
            if start > at {
                self.image.read(at, start - at, out)?;
                at = start;
            } else if let Some((_, sector)) = next {
                let within = (at - start) as usize;
                let until = SECTOR.min((end - start) as usize);
                out.copy_from(sector.get(within..until).unwrap_or_default());
                at = start + until as u64;
            }
        }
        Ok(())
    }

    fn changed(&self) -> Option<inarch_block::ChangedFile> {
        self.image.changed()
    }
}

/// The regions of an item.
type Regions = Vec<Vec<u8>>;

/// A transaction being read.
#[derive(Default)]
struct Transaction {
    /// Bytes of its header so far.
    header: usize,
    /// Each item with the number of its regions.
    items: Vec<(usize, Regions)>,
}

impl Transaction {
    /// Adds a region (`xlog_recover_add_to_trans`).
    fn add(&mut self, data: &[u8]) -> Option<()> {
        if data.is_empty() {
            return Some(());
        }
        if self.header < HEADER {
            self.header += data.len();
            return Some(());
        }
        if self.items.last().is_none_or(|(total, regions)| regions.len() >= *total) {
            self.items.push((regions(data).filter(|total| *total > 0)?, Vec::new()));
        }
        self.items.last_mut()?.1.push(data.to_vec());
        Some(())
    }

    /// Adds the rest of a region (`xlog_recover_add_to_cont_trans`).
    fn go_on(&mut self, data: &[u8]) -> Option<()> {
        match self.items.last_mut() {
            Some((_, regions)) => regions.last_mut()?.extend_from_slice(data),
            None => self.header += data.len(),
        }
        Some(())
    }
}

/// The image of `disk` with its log replayed. Fails if the log is damaged, or was written by a machine of the other byte order.
pub(super) fn replay(disk: &Disk, ring: &Ring<'_>) -> Result<Replayed, VolumeError> {
    let committed = committed(ring)?;
    let mut apply = Apply { disk, sectors: BTreeMap::new(), cancelled: HashMap::new() };
    for transaction in &committed {
        for item in items(transaction)? {
            if let Item::Buffer(buffer) = item
                && buffer.cancels()
            {
                *apply.cancelled.entry((buffer.start, buffer.length)).or_default() += 1;
            }
        }
    }
    for transaction in &committed {
        let parsed = items(transaction)?;
        // Buffers come before the inodes in them, and what is cancelled last (`xlog_recover_reorder_trans`).
        for (item, regions) in parsed.iter().zip(transaction) {
            if let Item::Buffer(buffer) = item
                && !buffer.cancels()
            {
                apply.buffer(buffer, regions)?;
            }
        }
        for item in &parsed {
            if let Item::Inode(inode) = item {
                apply.inode(inode)?;
            }
        }
        for item in &parsed {
            if let Item::Buffer(buffer) = item
                && buffer.cancels()
            {
                apply.cancel(buffer);
            }
        }
    }
    Ok(Replayed { image: Arc::clone(disk.pages.backing()), sectors: apply.sectors })
}

/// The items of a transaction.
fn items(transaction: &[Regions]) -> Result<Vec<Item<'_>>, VolumeError> {
    let wrong = || damaged("has an item that makes no sense");
    transaction.iter().map(|regions| Item::parse(regions).ok_or_else(wrong)).collect()
}

/// The items of each complete transaction, in their order. A record that is not whole ends the log, as in the kernel.
fn committed(ring: &Ring<'_>) -> Result<Vec<Vec<Regions>>, VolumeError> {
    let head = ring.head()?;
    let last = ring.last_record(head)?.ok_or_else(|| damaged("has no record"))?;
    if !last.is_little_endian {
        return Err(damaged("was written by a machine of another byte order"));
    }
    let (mut at, mut lap) = (u64::from(last.tail), last.tail_cycle);
    if at >= ring.length {
        return Err(damaged("starts beyond its end"));
    }
    let mut left = (head + ring.length - at) % ring.length;
    if left * BLOCK > MOST {
        return Err(damaged(format!("has more than {} MiB of changes", MOST >> 20)));
    }
    let (mut open, mut committed) = (HashMap::<u32, Transaction>::new(), Vec::new());
    while left > 0 {
        let Some((record, data)) = read(ring, at, lap, left)? else { break };
        let mut rest = data.as_slice();
        for _ in 0..record.operations {
            let step = split_operation(rest).and_then(|(operation, after)| {
                rest = after;
                take(&mut open, &mut committed, &operation)
            });
            step.ok_or_else(|| damaged(format!("has a record that makes no sense, at its block {at}")))?;
        }
        let length = record.header_blocks + record.blocks;
        (at, left) = (at + length, left - length);
        if at >= ring.length {
            (at, lap) = (at - ring.length, lap.wrapping_add(1));
        }
    }
    Ok(committed)
}

/// The record at a block of the log, with its data unpacked; `None` if it is not whole, or of another lap.
fn read(ring: &Ring<'_>, at: u64, lap: u32, left: u64) -> Result<Option<(Record, Vec<u8>)>, VolumeError> {
    let record = Record::parse(&ring.block(at)?).filter(|record| {
        let length = record.header_blocks.saturating_add(record.blocks);
        record.cycle == lap && u64::from(record.block) == at && length <= left && length <= 2 * MAX_RECORD / BLOCK
    });
    let Some(record) = record else { return Ok(None) };
    let header = ring.blocks(at, record.header_blocks)?;
    let mut data = ring.blocks(at + record.header_blocks, record.blocks)?;
    // What is behind the end of the ring is written in the next lap.
    let is_of_lap = |(number, block): (u64, &[u8])| {
        crate::xfs::spec::log::cycle(block) == lap.wrapping_add(u32::from(number >= ring.length))
    };
    let is_whole = (at + record.header_blocks..).zip(data.chunks(SECTOR)).all(is_of_lap);
    if !is_whole || !record.checksum_matches(&header, &data) {
        return Ok(None);
    }
    let unpacked = record.unpack(&header, &mut data);
    data.truncate(record.length as usize);
    Ok(unpacked.map(|()| (record, data)))
}

/// Takes an operation (`xlog_recover_process_ophdr`).
fn take(
    open: &mut HashMap<u32, Transaction>,
    committed: &mut Vec<Vec<Regions>>,
    operation: &Operation<'_>,
) -> Option<()> {
    let Operation { transaction, flags, data } = *operation;
    if flags & operation::START != 0 {
        open.insert(transaction, Transaction::default());
    } else if flags & operation::UNMOUNT != 0 {
        open.remove(&transaction);
    } else if flags & operation::COMMIT != 0 {
        let whole = open.remove(&transaction).map(|transaction| transaction.items);
        committed.extend(whole.map(|items| items.into_iter().map(|(_, regions)| regions).collect()));
    } else if let Some(transaction) = open.get_mut(&transaction) {
        return match flags & operation::WAS_CONTINUED {
            0 => transaction.add(data),
            _ => transaction.go_on(data),
        };
    }
    Some(())
}

/// Applies items.
struct Apply<'a> {
    disk: &'a Disk,
    sectors: BTreeMap<u64, [u8; SECTOR]>,
    /// How often each buffer, by its start and length, is still to be cancelled.
    cancelled: HashMap<(u64, u16), u64>,
}

impl Apply<'_> {
    fn sector(&mut self, number: u64) -> Result<&mut [u8; SECTOR], VolumeError> {
        let disk = self.disk;
        Ok(match self.sectors.entry(number) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(disk.pages.array(number.saturating_mul(BLOCK))?)
            }
        })
    }

    fn put(&mut self, mut at: u64, mut bytes: &[u8]) -> Result<(), VolumeError> {
        while !bytes.is_empty() {
            let within = (at % BLOCK) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(SECTOR - within));
            let sector = self.sector(at / BLOCK)?;
            sector.iter_mut().skip(within).zip(now).for_each(|(to, from)| *to = *from);
            (at, bytes) = (at + now.len() as u64, later);
        }
        Ok(())
    }

    fn is_cancelled(&self, start: u64, length: u16) -> bool {
        self.cancelled.contains_key(&(start, length))
    }

    fn cancel(&mut self, buffer: &Buffer<'_>) {
        let key = (buffer.start, buffer.length);
        if let Some(count) = self.cancelled.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.cancelled.remove(&key);
            }
        }
    }

    fn buffer(&mut self, buffer: &Buffer<'_>, regions: &[Vec<u8>]) -> Result<(), VolumeError> {
        if buffer.is_skipped() || self.is_cancelled(buffer.start, buffer.length) {
            return Ok(());
        }
        let wrong = || damaged("changes parts of a buffer that it does not have");
        let start = buffer.start.checked_mul(BLOCK).ok_or_else(wrong)?;
        let size = usize::from(buffer.length) * SECTOR;
        let mut regions = regions.iter().skip(1);
        for (mut at, mut length) in buffer.runs() {
            if at + length > size {
                return Err(wrong());
            }
            while length > 0 {
                let region = regions.next().ok_or_else(wrong)?;
                let part = region.get(..length.min(region.len() & !127)).filter(|part| !part.is_empty());
                let part = part.ok_or_else(wrong)?;
                self.put(start.checked_add(at as u64).ok_or_else(wrong)?, part)?;
                (at, length) = (at + part.len(), length - part.len());
            }
        }
        Ok(())
    }

    fn inode(&mut self, inode: &LoggedInode<'_>) -> Result<(), VolumeError> {
        if self.is_cancelled(inode.start, inode.length) {
            return Ok(());
        }
        let wrong = || damaged(format!("changes the inode {}, which makes no sense", inode.ino));
        let at = self.disk.inode(inode.ino).ok_or_else(wrong)?;
        let mut bytes = Vec::with_capacity(self.disk.inode_size);
        while bytes.len() < self.disk.inode_size {
            let place = at + bytes.len() as u64;
            let within = (place % BLOCK) as usize;
            let until = (within + self.disk.inode_size - bytes.len()).min(SECTOR);
            let sector = self.sector(place / BLOCK)?;
            bytes.extend_from_slice(sector.get(within..until).unwrap_or_default());
        }
        inode.apply(&mut bytes, self.disk.is_sealed).ok_or_else(wrong)?;
        self.put(at, &bytes)
    }
}
