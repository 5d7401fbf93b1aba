//! Replays the journal in memory: shows the device as it is after the kernel has recovered it from an unclean end.
//!
//! The log is read once, where `fs/jbd2/recovery.c` makes three passes. Transactions up to the last complete one say
//! where in the log each changed block's newest content is, unless a revoke record of the same or a later transaction
//! cancels it. Nothing is copied: [`Replayed`] is a view that reads those blocks from the log and all others from the
//! image.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use inarch_block::{Backing, Cursor, read_backing};
use inarch_volume::VolumeError;

use super::disk::Disk;
use super::inodes::Inodes;
use super::mapping::{Claims, Place, Run, map};
use crate::ext4::spec::journal::{
    COMPAT_CHECKSUM, JournalSuperblock, LogBlock, MAGIC, Tag, commit, commit_checksum_matches, crc32_be,
    fast_commit_transaction, incompat, log_block, log_checksum_matches, revoked, tags,
};

const KNOWN: u32 = incompat::REVOKE
    | incompat::BIT64
    | incompat::ASYNC_COMMIT
    | incompat::CSUM_V2
    | incompat::CSUM_V3
    | incompat::FAST_COMMIT;
/// `JBD2_CRC32_CHKSUM`, and its size.
const CRC32: (u8, u8) = (1, 4);

/// A block whose content is in the log.
#[derive(Clone, Copy, Debug)]
struct Moved {
    /// The block on the device.
    block: u64,
    /// Where its content is, in bytes.
    at: u64,
    escaped: bool,
}

/// An image with its journal replayed.
pub(super) struct Replayed {
    image: Arc<dyn Backing>,
    block_size: u64,
    /// Ascending.
    moved: Vec<Moved>,
}

impl Replayed {
    /// Whether any of `length` bytes from `offset` come from the log.
    pub(super) fn covers(&self, offset: u64, length: u64) -> bool {
        let next = self.next(offset / self.block_size);
        length > 0 && next.is_some_and(|moved| moved.block * self.block_size < offset.saturating_add(length))
    }

    /// The first moved block from `block` on.
    fn next(&self, block: u64) -> Option<&Moved> {
        self.moved.get(self.moved.partition_point(|moved| moved.block < block))
    }

    fn read_moved(&self, moved: &Moved, within: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        if !moved.escaped {
            return self.image.read(moved.at + within, count, out);
        }
        let mut block = vec![0; self.block_size as usize];
        read_backing(&*self.image, moved.at, &mut block)?;
        block.iter_mut().zip(MAGIC.to_be_bytes()).for_each(|(to, from)| *to = from);
        out.copy_from(block.get(within as usize..(within + count) as usize).unwrap_or_default());
        Ok(())
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
            let next = self.next(at / self.block_size);
            let start = next.map_or(end, |moved| (moved.block * self.block_size).min(end));
            if start > at {
                self.image.read(at, start - at, out)?;
                at = start;
            } else if let Some(moved) = next {
                let within = at - start;
                let now = (self.block_size - within).min(end - at);
                self.read_moved(moved, within, now, out)?;
                at += now;
            }
        }
        Ok(())
    }

    fn changed(&self) -> Option<inarch_block::ChangedFile> {
        self.image.changed()
    }
}

/// The image of `disk` with its journal replayed.
///
/// Fails where the kernel refuses to mount: the journal is on another device, is damaged, or has unknown features.
pub(super) fn replay(disk: &Disk) -> Result<Replayed, VolumeError> {
    let log = Log::open(disk).map_err(broken)?;
    let moved = if log.superblock.start.get() == 0 { Vec::new() } else { log.scan().map_err(broken)? };
    Ok(Replayed { image: disk.backing.clone(), block_size: disk.block_size, moved })
}

fn broken(error: VolumeError) -> VolumeError {
    match error {
        VolumeError::Damaged(reason) => VolumeError::Damaged(format!(
            "it was not unmounted cleanly, and its journal {reason}; e2fsck on a copy may mend it"
        )),
        other => other,
    }
}

/// The log, to be read block by block.
struct Log<'a> {
    disk: &'a Disk,
    superblock: JournalSuperblock,
    /// Where the journal's blocks are.
    runs: Vec<Run>,
    /// The log's blocks within the journal.
    first: u32,
    end: u32,
}

/// What is known of the transaction being read.
#[derive(Default)]
struct Transaction {
    tags: Vec<Logged>,
    revoked: Vec<u64>,
    /// Whether it has a block with a wrong checksum: it may be left from an earlier use of the log.
    doubtful: bool,
    /// Checksum of version 1 over its blocks so far.
    checksum: u32,
}

impl Transaction {
    fn new() -> Transaction {
        Transaction { checksum: !0, ..Transaction::default() }
    }
}

impl<'a> Log<'a> {
    fn open(disk: &'a Disk) -> Result<Log<'a>, VolumeError> {
        let ino = disk.superblock.journal_inum.get();
        if ino == 0 {
            return Err(VolumeError::Damaged("is on another device".to_owned()));
        }
        let mut inodes = Inodes::new();
        let inode = inodes.get(disk, ino)?.inode;
        let blocks = inode.size() / disk.block_size;
        let mut runs = Vec::new();
        if let Some(reason) = map(disk, &mut Claims::default(), ino, &inode, 0..blocks, &mut runs)? {
            return Err(VolumeError::Damaged(reason));
        }
        let mut log = Log { disk, superblock: zerocopy::FromZeros::new_zeroed(), runs, first: 0, end: 0 };
        let block = log.block(0)?;
        log.superblock =
            JournalSuperblock::parse(&block, disk.verify).map_err(|reason| VolumeError::Damaged(reason.to_owned()))?;
        let sb = &log.superblock;
        let unknown = sb.feature_incompat.get() & !KNOWN;
        if unknown != 0 {
            return Err(VolumeError::Damaged(format!("has features that cannot be read (incompatible {unknown:#x})")));
        }
        if u64::from(sb.block_size.get()) != disk.block_size || u64::from(sb.max_len.get()) > blocks {
            let (length, size) = (sb.max_len.get(), sb.block_size.get());
            return Err(VolumeError::Damaged(format!(
                "gives itself {length} blocks of {size} bytes, and has {blocks}"
            )));
        }
        (log.first, log.end) = (sb.first.get(), sb.max_len.get().saturating_sub(sb.fast_commit_blocks()));
        let start = sb.start.get();
        if log.first == 0 || log.first >= log.end || (start != 0 && !(log.first..log.end).contains(&start)) {
            return Err(VolumeError::Damaged(format!(
                "has a log from block {} to {}, starting at {start}",
                log.first, log.end
            )));
        }
        Ok(log)
    }

    /// Where a block of the journal is on the device, in bytes.
    fn at(&self, number: u32) -> Result<u64, VolumeError> {
        let number = u64::from(number);
        let run = self.runs.partition_point(|run| run.logical + run.length <= number);
        match self.runs.get(run) {
            Some(Run { logical, place: Place::Blocks(first), .. }) if *logical <= number => {
                Ok((first + (number - logical)) * self.disk.block_size)
            }
            _ => Err(VolumeError::Damaged(format!("has a hole at its block {number}"))),
        }
    }

    fn block(&self, number: u32) -> Result<Vec<u8>, VolumeError> {
        let mut block = vec![0; self.disk.block_size as usize];
        self.disk.read(self.at(number)?, &mut block)?;
        Ok(block)
    }

    /// The block of the log behind another one.
    fn after(&self, number: u32) -> u32 {
        if number + 1 >= self.end { self.first } else { number + 1 }
    }

    /// Where the newest content of each block is that a complete transaction changed, ascending.
    fn scan(&self) -> Result<Vec<Moved>, VolumeError> {
        let mut committed = Committed::default();
        let mut sequence = self.superblock.sequence.get();
        let mut number = self.superblock.start.get();
        let mut transaction = Transaction::new();
        let mut last_seconds = 0;
        // No block of the log can be used twice.
        let mut left = self.end - self.first;
        while left > 0 {
            let block = self.block(number)?;
            let Some((kind, _)) = log_block(&block).filter(|(_, found)| *found == sequence) else { break };
            (number, left) = (self.after(number), left - 1);
            match kind {
                LogBlock::Descriptor => {
                    let logged = self.descriptor(&block, number, sequence, left, &mut transaction)?;
                    let Some(logged) = logged else { break };
                    (number, left) = logged;
                }
                LogBlock::Revoke => {
                    let revoked = revoked(&self.superblock, &block);
                    transaction.doubtful |= !self.is_sound(&block) || revoked.is_none();
                    transaction.revoked.extend(revoked.unwrap_or_default());
                }
                LogBlock::Commit => {
                    let seconds = commit(&block).map_or(0, |commit| commit.seconds);
                    let sound = !transaction.doubtful && self.is_complete(&transaction, &block);
                    if !sound && (seconds < last_seconds || self.may_be_torn(&transaction)) {
                        break;
                    }
                    if !sound {
                        return Err(VolumeError::Damaged(format!("has a damaged transaction, {sequence}")));
                    }
                    last_seconds = seconds;
                    committed.add(std::mem::replace(&mut transaction, Transaction::new()), sequence);
                    sequence = sequence.wrapping_add(1);
                }
                LogBlock::Other => break,
            }
        }
        self.refuse_fast_commits(sequence)?;
        self.newest(committed)
    }

    /// Refuses fast commits, which follow the log and change its meaning in their own way. They are valid if they
    /// belong to the next transaction (`ext4_fc_replay_scan`).
    fn refuse_fast_commits(&self, sequence: u32) -> Result<(), VolumeError> {
        let first = self.end + 1;
        if self.superblock.fast_commit_blocks() > 0 && first < self.superblock.max_len.get() {
            let block = self.block(first)?;
            if fast_commit_transaction(&block) == Some(sequence) {
                return Err(VolumeError::Damaged(
                    "has fast commits, which only the kernel or e2fsck can replay".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Records the blocks listed in a descriptor block, which follow it from `number`. Returns the block after them
    /// and how many blocks are left; `None` if they exceed the log.
    fn descriptor(
        &self,
        block: &[u8],
        mut number: u32,
        sequence: u32,
        left: u32,
        transaction: &mut Transaction,
    ) -> Result<Option<(u32, u32)>, VolumeError> {
        transaction.doubtful |= !self.is_sound(block);
        transaction.checksum = self.checksum(transaction.checksum, block);
        let tags = tags(&self.superblock, block);
        let Some(left) = left.checked_sub(tags.len() as u32) else { return Ok(None) };
        for tag in tags {
            if self.superblock.feature_compat.get() & COMPAT_CHECKSUM != 0 {
                transaction.checksum = self.checksum(transaction.checksum, &self.block(number)?);
            }
            transaction.tags.push(Logged { tag, sequence, number });
            number = self.after(number);
        }
        Ok(Some((number, left)))
    }

    fn is_sound(&self, block: &[u8]) -> bool {
        !self.disk.verify || log_checksum_matches(&self.superblock, block)
    }

    fn checksum(&self, seed: u32, block: &[u8]) -> u32 {
        match self.superblock.feature_compat.get() & COMPAT_CHECKSUM {
            0 => seed,
            _ => crc32_be(seed, block),
        }
    }

    /// Whether a commit block's checksums are right.
    fn is_complete(&self, transaction: &Transaction, block: &[u8]) -> bool {
        if !self.disk.verify {
            return true;
        }
        let version_1 = self.superblock.feature_compat.get() & COMPAT_CHECKSUM != 0;
        let Some(commit) = commit(block) else { return false };
        let (kind, size, stored) = commit.checksum;
        // A kernel without checksums may have written it.
        let none = commit.checksum == (0, 0, 0);
        let right = (kind, size) == CRC32 && stored == transaction.checksum;
        (!version_1 || none || right) && commit_checksum_matches(&self.superblock, block)
    }

    /// With asynchronous commits a commit block may be there before the blocks of its transaction.
    fn may_be_torn(&self, transaction: &Transaction) -> bool {
        self.superblock.has(incompat::ASYNC_COMMIT) && !transaction.doubtful
    }

    /// The blocks of the complete transactions that count: the last content of each block, unless it was revoked since.
    fn newest(&self, committed: Committed) -> Result<Vec<Moved>, VolumeError> {
        let mut newest = HashMap::new();
        for Logged { tag, sequence, number } in committed.tags {
            let is_revoked = |by: &u32| sequence.wrapping_sub(*by) as i32 <= 0;
            if committed.revoked.get(&tag.block).is_some_and(is_revoked) {
                continue;
            }
            if tag.block >= self.disk.blocks {
                return Err(VolumeError::Damaged(format!("changes the block {}, which does not exist", tag.block)));
            }
            if self.disk.verify && !tag.matches(&self.superblock, sequence, &self.block(number)?) {
                return Err(VolumeError::Damaged(format!(
                    "has a damaged copy of block {} in transaction {sequence}",
                    tag.block
                )));
            }
            newest.insert(tag.block, Moved { block: tag.block, at: self.at(number)?, escaped: tag.escaped });
        }
        let mut moved: Vec<_> = newest.into_values().collect();
        moved.sort_unstable_by_key(|moved| moved.block);
        Ok(moved)
    }
}

/// A block of a transaction, and where in the journal its content is.
struct Logged {
    tag: Tag,
    sequence: u32,
    number: u32,
}

/// All complete transactions.
#[derive(Default)]
struct Committed {
    tags: Vec<Logged>,
    /// The last transaction that revoked a block.
    revoked: HashMap<u64, u32>,
}

impl Committed {
    fn add(&mut self, transaction: Transaction, sequence: u32) {
        self.tags.extend(transaction.tags);
        self.revoked.extend(transaction.revoked.into_iter().map(|block| (block, sequence)));
    }
}
