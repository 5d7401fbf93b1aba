//! Maps the blocks of a fork to the device.

use std::collections::HashMap;
use std::ops::Range;

use inarch_volume::VolumeError;

use super::disk::Disk;
use super::inodes::Fork;
use super::{damaged, tolerate};
use crate::xfs::spec::extent::{Extent, Node, list};
use crate::xfs::spec::inode::Format;
use crate::xfs::spec::seal;

/// Blocks of a fork at most: their numbers have 54 bits.
const MAX_BLOCKS: u64 = 1 << 54;

/// A run of blocks of a fork that is no hole and was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// First block within the fork.
    pub(super) logical: u64,
    /// Blocks; never 0.
    pub(super) length: u64,
    /// The first block of the file system; `None` if nothing that could be believed says where it is.
    pub(super) block: Option<u64>,
}

/// Metadata blocks read so far. Each belongs to one inode only, so no image can make us read the same blocks for many
/// files, or twice for one.
#[derive(Default)]
pub(super) struct Claims(HashMap<u64, u64>);

impl Claims {
    /// Takes a block; false if it was taken before.
    pub(super) fn take(&mut self, block: u64) -> bool {
        let word = self.0.entry(block / 64).or_insert(0);
        let bit = 1 << (block % 64);
        let free = *word & bit == 0;
        *word |= bit;
        free
    }
}

/// Maps one fork.
struct Mapper<'a> {
    disk: &'a Disk,
    claims: &'a mut Claims,
    ino: u64,
    /// Blocks that are asked for.
    wanted: Range<u64>,
    runs: &'a mut Vec<Run>,
    /// The first thing found wrong.
    flaw: Option<String>,
}

/// Puts the runs of a fork's `blocks` into `runs`, in place of what is there: ascending, disjoint, and limited to those
/// blocks. Returns damage, if any; unreadable parts have no place.
pub(super) fn map(
    disk: &Disk,
    claims: &mut Claims,
    ino: u64,
    fork: Fork<'_>,
    blocks: Range<u64>,
    runs: &mut Vec<Run>,
) -> Result<Option<String>, VolumeError> {
    let wanted = blocks.start..blocks.end.min(MAX_BLOCKS);
    runs.clear();
    let mut mapper = Mapper { disk, claims, ino, wanted, runs, flaw: None };
    let all = 0..MAX_BLOCKS;
    match fork.format {
        Format::Extents => match list(fork.bytes, fork.extents) {
            Some(extents) => mapper.leaf(extents, all),
            None => mapper.lose(all, format!("has {} extents in an inode that has no room for them", fork.extents)),
        },
        Format::Tree => match Node::root(fork.bytes) {
            Some(root) => mapper.node(root, all)?,
            None => mapper.lose(all, "has no tree of extents where its inode says so".to_owned()),
        },
        other => mapper.lose(all, format!("has blocks in the unknown form {other:?}")),
    }
    Ok(mapper.flaw)
}

impl Mapper<'_> {
    fn push(&mut self, logical: u64, length: u64, block: Option<u64>) {
        let cut = self.wanted.start.saturating_sub(logical).min(length);
        let (logical, length) = (logical + cut, length - cut);
        let length = self.wanted.end.saturating_sub(logical).min(length);
        let block = block.map(|block| block + cut);
        if length == 0 {
            return;
        }
        if let Some(last) = self.runs.last_mut().filter(|last| last.logical + last.length == logical)
            && last.block.map(|block| block + last.length) == block
        {
            last.length += length;
            return;
        }
        self.runs.push(Run { logical, length, block });
    }

    /// Says that nothing is known of a range.
    fn lose(&mut self, range: Range<u64>, reason: String) {
        self.flaw.get_or_insert(reason);
        self.push(range.start, range.end.saturating_sub(range.start), None);
    }

    /// The extents of a leaf, which is about `range`. Behind one that is wrong, all is unknown.
    fn leaf(&mut self, extents: impl Iterator<Item = Extent>, range: Range<u64>) {
        let mut from = range.start;
        for extent in extents {
            let Extent { logical, length, unwritten, .. } = extent;
            if logical < from || length == 0 || logical + length > range.end {
                return self
                    .lose(from..range.end, format!("has extents that overlap or are empty, at its block {logical}"));
            }
            let Some(block) = self.disk.block(extent.block, length) else {
                let reason = format!("has an extent beyond the file system's end, at its block {logical}");
                return self.lose(from..range.end, reason);
            };
            if !unwritten {
                self.push(logical, length, Some(block));
            }
            from = logical + length;
        }
    }

    /// The children of a node, which is about `range`.
    fn node(&mut self, node: Node<'_>, range: Range<u64>) -> Result<(), VolumeError> {
        let mut from = range.start;
        for index in 0..node.count() {
            let Some((logical, pointer)) = node.child(index) else { break };
            let end = node.child(index + 1).map_or(range.end, |(next, _)| next);
            if logical < from || end <= logical || end > range.end {
                self.lose(
                    from..range.end,
                    format!("has a tree of extents whose keys do not ascend, at its block {logical}"),
                );
                return Ok(());
            }
            if logical < self.wanted.end && end > self.wanted.start {
                let child = self.child(pointer, node.level - 1, logical..end);
                if let Err(reason) = tolerate(child)? {
                    self.lose(logical..end, format!("has a tree of extents with a block that {reason}"));
                }
            }
            from = end;
        }
        Ok(())
    }

    fn child(&mut self, pointer: u64, level: u16, range: Range<u64>) -> Result<(), VolumeError> {
        let outside = || damaged(format!("lies beyond the file system's end: {pointer}"));
        let block = self.disk.block(pointer, 1).ok_or_else(outside)?;
        if !self.claims.take(block) {
            return Err(damaged(format!("is in another place, too: {block}")));
        }
        let mut bytes = vec![0; self.disk.block_size as usize];
        self.disk.read_blocks(block, &mut bytes)?;
        let node = Node::block(&bytes, self.disk.is_sealed).filter(|node| node.level == level);
        let node = node.ok_or_else(|| damaged(format!("is none: {block}")))?;
        self.disk.check(seal::EXTENTS, &bytes, &[block], self.ino)?;
        match level {
            0 => self.leaf(node.extents(), range),
            _ => self.node(node, range)?,
        }
        Ok(())
    }
}

/// The blocks of the file system with the `count` blocks of a fork from `logical` on; `None` unless all are there.
pub(super) fn blocks_of(runs: &[Run], logical: u64, count: u64) -> Option<Vec<u64>> {
    (logical..logical.checked_add(count)?)
        .map(|number| {
            let after = runs.partition_point(|run| run.logical <= number);
            let run = runs.get(after.checked_sub(1)?)?;
            let within = number - run.logical;
            run.block.filter(|_| within < run.length).map(|block| block + within)
        })
        .collect()
}
