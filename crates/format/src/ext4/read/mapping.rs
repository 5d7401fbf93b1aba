//! Maps a file's blocks to the device: extent trees, and the block maps of ext2 and ext3.

use std::collections::HashMap;
use std::ops::Range;

use inarch_volume::VolumeError;

use super::disk::{Disk, word};
use super::flaw::tolerate;
use crate::ext4::spec::extent::{self, Item, Node};
use crate::ext4::spec::inode::{Inode, flags};

/// Blocks that `i_block` of ext2 maps itself (`EXT4_NDIR_BLOCKS`).
const DIRECT: u64 = 12;
/// Blocks of a file at most: their numbers are 32 bits.
const MAX_BLOCKS: u64 = 1 << 32;

/// What a run of blocks of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Blocks of the device, from this one on.
    Blocks(u64),
    /// Allocated and never written.
    Zeros,
    /// Nothing that could be believed says where they are.
    Unknown,
}

/// A run of blocks of a file that is no hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// First block within the file.
    pub(super) logical: u64,
    /// Blocks; never 0.
    pub(super) length: u64,
    pub(super) place: Place,
}

/// Metadata blocks read so far. Each belongs to one file only, so no image can make us read the same blocks for many
/// files.
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

/// The claims of all files mapped so far, and a buffer for the runs of one.
#[derive(Default)]
pub(super) struct Mapping {
    pub(super) claims: Claims,
    pub(super) runs: Vec<Run>,
}

/// Maps one file.
struct Mapper<'a> {
    disk: &'a Disk,
    claims: &'a mut Claims,
    /// Seed of the checksums of the file's extent blocks.
    seed: u32,
    /// Blocks of the file that are asked for.
    wanted: Range<u64>,
    runs: &'a mut Vec<Run>,
    /// The first thing found wrong.
    flaw: Option<String>,
}

/// Puts the runs of a file's `blocks` into `runs`, in place of what is there: ascending, disjoint, and limited to those blocks.
/// Returns damage, if any; unreadable parts are [`Place::Unknown`].
pub(super) fn map(
    disk: &Disk,
    claims: &mut Claims,
    ino: u32,
    inode: &Inode,
    blocks: Range<u64>,
    runs: &mut Vec<Run>,
) -> Result<Option<String>, VolumeError> {
    let seed = if disk.verifies() { disk.seed.inode_of(ino, inode.generation.get()) } else { 0 };
    let wanted = blocks.start..blocks.end.min(MAX_BLOCKS);
    runs.clear();
    let mut mapper = Mapper { disk, claims, seed, wanted, runs, flaw: None };
    if inode.has(flags::EXTENTS) {
        match Node::parse(&inode.block) {
            Some(root) => mapper.extent_node(root, 0..MAX_BLOCKS)?,
            None => mapper.lose(0..MAX_BLOCKS, "has no extent tree where its inode says so".to_owned()),
        }
    } else {
        mapper.block_map(&inode.block)?;
    }
    Ok(mapper.flaw)
}

impl Mapper<'_> {
    fn push(&mut self, logical: u64, length: u64, place: Place) {
        let cut = self.wanted.start.saturating_sub(logical).min(length);
        let (logical, length) = (logical + cut, length - cut);
        let length = self.wanted.end.saturating_sub(logical).min(length);
        let place = match place {
            Place::Blocks(first) => Place::Blocks(first + cut),
            other => other,
        };
        if length == 0 {
            return;
        }
        if let Some(last) = self.runs.last_mut().filter(|last| last.logical + last.length == logical) {
            let goes_on = match (last.place, place) {
                (Place::Blocks(before), Place::Blocks(now)) => before + last.length == now,
                (before, now) => before == now,
            };
            if goes_on {
                last.length += length;
                return;
            }
        }
        self.runs.push(Run { logical, length, place });
    }

    /// Whether any of a range is asked for.
    fn wants(&self, range: &Range<u64>) -> bool {
        range.start < self.wanted.end && range.end > self.wanted.start
    }

    /// Says that nothing is known of a range.
    fn lose(&mut self, range: Range<u64>, reason: String) {
        self.flaw.get_or_insert(reason);
        self.push(range.start, range.end - range.start, Place::Unknown);
    }

    /// Maps `range` below a node. A node with any error is ignored entirely, as in the kernel
    /// (`ext4_valid_extent_entries`).
    fn extent_node(&mut self, node: Node<'_>, range: Range<u64>) -> Result<(), VolumeError> {
        if let Err(reason) = self.check(node, &range) {
            self.lose(range, reason);
            return Ok(());
        }
        let mut items = node.items().peekable();
        while let Some(item) = items.next() {
            match item {
                Item::Extent { extent, written } => {
                    let place = if written { Place::Blocks(extent.physical) } else { Place::Zeros };
                    self.push(u64::from(extent.logical), u64::from(extent.length), place);
                }
                Item::Child { logical, node: block } => {
                    let end = items.peek().map_or(range.end, |next| u64::from(next.logical()));
                    let within = u64::from(logical)..end;
                    if self.wants(&within) {
                        self.extent_child(block, node.depth - 1, within)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn extent_child(&mut self, block: u64, depth: u16, range: Range<u64>) -> Result<(), VolumeError> {
        let mut bytes = vec![0; self.disk.block_size as usize];
        if !self.claims.take(block) {
            self.lose(range, format!("has an extent tree with the block {block}, which is in another, too"));
            return Ok(());
        }
        if let Err(reason) = tolerate(self.disk.read_blocks(block, &mut bytes))? {
            self.lose(range, format!("has an extent tree with a part that {reason}"));
            return Ok(());
        }
        let wrong = self.disk.verifies() && !extent::checksum_matches(&bytes, self.seed);
        match Node::parse(&bytes).filter(|node| node.depth == depth && !wrong) {
            Some(node) => return self.extent_node(node, range),
            None if wrong => self.lose(range, format!("has an extent tree with a wrong checksum in block {block}")),
            None => self.lose(range, format!("has an extent tree with nonsense in block {block}")),
        }
        Ok(())
    }

    /// Entries must ascend, lie within the node's range and on the device.
    fn check(&self, node: Node<'_>, range: &Range<u64>) -> Result<(), String> {
        if node.depth > 0 && node.items().len() == 0 {
            return Err("has an extent tree with an empty index".to_owned());
        }
        let mut from = range.start;
        for item in node.items() {
            let logical = u64::from(item.logical());
            let length = match item {
                Item::Extent { extent, .. } => u64::from(extent.length),
                Item::Child { .. } => 1,
            };
            let on_device = match item {
                Item::Extent { extent, .. } => self.disk.holds(extent.physical, length),
                Item::Child { node, .. } => self.disk.holds(node, 1),
            };
            if logical < from || logical + length > range.end || length == 0 {
                return Err(format!("has extents that overlap or are empty, at its block {logical}"));
            }
            if !on_device {
                return Err(format!("has an extent beyond the file system's end, at its block {logical}"));
            }
            from = logical + length;
        }
        Ok(())
    }

    /// Maps the `i_block` of ext2: direct blocks, then one block each of single, double and triple indirection
    /// (`ext4_block_to_path` in `fs/ext4/indirect.c`).
    fn block_map(&mut self, root: &[u8]) -> Result<(), VolumeError> {
        for i in 0..DIRECT {
            self.mapped_block(i, word(root, i as usize));
        }
        let per_block = self.disk.block_size / 4;
        let (mut logical, mut span) = (DIRECT, per_block);
        for i in 0..3 {
            let block = word(root, DIRECT as usize + i);
            self.indirect(block, i as u32, logical..logical + span)?;
            logical += span;
            span *= per_block;
        }
        Ok(())
    }

    fn mapped_block(&mut self, logical: u64, block: u32) {
        if block == 0 || !self.wants(&(logical..logical + 1)) {
            return;
        }
        if !self.disk.holds(u64::from(block), 1) {
            self.lose(logical..logical + 1, format!("has its block {logical} beyond the file system's end"));
            return;
        }
        self.push(logical, 1, Place::Blocks(u64::from(block)));
    }

    /// The blocks of `range`, which an indirect block `level` levels above those of direct numbers maps.
    fn indirect(&mut self, block: u32, level: u32, range: Range<u64>) -> Result<(), VolumeError> {
        if block == 0 || !self.wants(&range) {
            return Ok(());
        }
        let mut bytes = vec![0; self.disk.block_size as usize];
        if !self.claims.take(u64::from(block)) {
            self.lose(range, format!("has the indirect block {block}, which is in another place, too"));
            return Ok(());
        }
        if let Err(reason) = tolerate(self.disk.read_blocks(u64::from(block), &mut bytes))? {
            self.lose(range, format!("has an indirect block that {reason}"));
            return Ok(());
        }
        let per_block = self.disk.block_size / 4;
        let span = (range.end - range.start) / per_block;
        for i in 0..per_block {
            let logical = range.start + i * span;
            let below = word(&bytes, i as usize);
            match level {
                0 => self.mapped_block(logical, below),
                _ => self.indirect(below, level - 1, logical..logical + span)?,
            }
        }
        Ok(())
    }
}
