//! Lists the names of a directory from any position.

use std::ops::Range;

use inarch_volume::{Item, Loss, Node, VolumeError};

use super::disk::Disk;
use super::flaw::tolerate;
use super::hashed::{self, Leaves};
use super::inline;
use super::inodes::Slot;
use super::mapping::{Claims, Place, map};
use crate::ext4::spec::directory::{LeafReader, checksum_matches, file_type_of};
use crate::ext4::spec::inode::flags;
use crate::ext4::spec::superblock::incompat;

/// In a place in a directory, the bits of the entry within its block: a block of 64 KiB has 5461 at most.
const PLACE_BITS: u32 = 16;

/// Lists a directory.
///
/// A hashed directory is read as a linear one: its index blocks look like blocks without names. So a damaged index
/// cannot mislead.
pub(super) struct Listing<'a> {
    pub(super) disk: &'a Disk,
    pub(super) slot: &'a Slot<'a>,
    pub(super) claims: &'a mut Claims,
    /// Bytes of blocks that are read at once.
    pub(super) step: u64,
}

impl Listing<'_> {
    /// Gives `take` the entries from `from` on, until it says false.
    pub(super) fn each(&mut self, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        if self.slot.inode.has(flags::ENCRYPT) {
            take(Item::Lost(Loss::sound("is encrypted; what is in it is left out")));
            return Ok(());
        }
        if self.slot.inode.has(flags::INLINE_DATA) {
            return self.each_inline(from, take);
        }
        let blocks = self.size().div_ceil(self.disk.block_size);
        let mut runs = Vec::new();
        let (ino, inode) = (self.slot.ino, &self.slot.inode);
        let first = from >> PLACE_BITS;
        let flaw = map(self.disk, self.claims, ino, inode, first..blocks, &mut runs)?;
        if flaw.is_some_and(|reason| !take(Item::Lost(Loss::damage(reason)))) {
            return Ok(());
        }
        for run in runs {
            let Place::Blocks(start) = run.place else { continue };
            let mut done = 0;
            while done < run.length {
                // Claimed before it is read, so that nothing is read twice.
                let limit = done + (run.length - done).min(self.step.div_ceil(self.disk.block_size));
                let end = (done..limit).find(|block| !self.claims.take(start + block)).unwrap_or(limit);
                if !self.each_of_run(run.logical + done, start + done..start + end, from, take)? {
                    return Ok(());
                }
                if end < limit {
                    let text = format!("has the block {}, which is in another place, too", start + end);
                    if !take(Item::Lost(Loss::damage(text))) {
                        return Ok(());
                    }
                }
                done = end + u64::from(end < limit);
            }
        }
        Ok(())
    }

    fn size(&self) -> u64 {
        match self.disk.superblock.has_incompat(incompat::LARGEDIR) {
            true => self.slot.inode.size(),
            false => u64::from(self.slot.inode.size_lo.get()),
        }
    }

    fn each_inline(&self, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        let Some(parts) = inline::directory(self.slot) else {
            take(Item::Lost(Loss::damage("says that its names are in its inode, where none are")));
            return Ok(());
        };
        for (number, part) in (0..).zip(parts) {
            if !self.each_of_block(part, number, from, take) {
                break;
            }
        }
        Ok(())
    }

    /// The entries of blocks that follow each other; the first is block `logical` of the directory.
    fn each_of_run(
        &self,
        logical: u64,
        blocks: Range<u64>,
        from: u64,
        take: &mut dyn FnMut(Item<'_>) -> bool,
    ) -> Result<bool, VolumeError> {
        let size = self.disk.block_size as usize;
        let mut buffer = vec![0; (blocks.end - blocks.start) as usize * size];
        if let Err(reason) = tolerate(self.disk.read_blocks(blocks.start, &mut buffer))? {
            return Ok(take(Item::Lost(Loss::damage(format!("has a block that {reason}")))));
        }
        let seed = self.seed();
        for ((number, logical), block) in blocks.zip(logical..).zip(buffer.chunks_exact(size)) {
            let goes_on = match seed.is_some_and(|seed| !checksum_matches(block, seed)) {
                true => take(Item::Lost(Loss::damage(format!(
                    "has a block with a wrong checksum, {number}; its names are left out"
                )))),
                false => self.each_of_block(block, logical, from, take),
            };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn each_of_block(&self, block: &[u8], logical: u64, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> bool {
        let has_types = self.disk.superblock.has_incompat(incompat::FILETYPE);
        let start = logical << PLACE_BITS;
        for (place, entry) in (start..).zip(LeafReader::new(block, has_types)) {
            let Ok(entry) = entry else {
                let text = "has a block with nonsense in it, behind which names are left out";
                return take(Item::Lost(Loss::damage(text)));
            };
            if place < from || entry.ino == 0 || matches!(entry.name, b"." | b"..") {
                continue;
            }
            let file_type = file_type_of(entry.type_code);
            if !take(Item::entry(entry.name, Node(entry.ino.into()), file_type, place + 1)) {
                return false;
            }
        }
        true
    }

    /// One block of the directory, if it is there; none where its checksum is wrong.
    pub(super) fn block(&self, logical: u64) -> Result<Option<Vec<u8>>, VolumeError> {
        let mut runs = Vec::new();
        let end = logical.saturating_add(1);
        // Asked for one block after the other, so nothing is claimed.
        map(self.disk, &mut Claims::default(), self.slot.ino, &self.slot.inode, logical..end, &mut runs)?;
        let Some(Place::Blocks(first)) = runs.first().map(|run| run.place) else { return Ok(None) };
        let mut block = vec![0; self.disk.block_size as usize];
        match tolerate(self.disk.read_blocks(first, &mut block))? {
            Ok(()) => Ok(self.seed().is_none_or(|seed| checksum_matches(&block, seed)).then_some(block)),
            Err(_) => Ok(None),
        }
    }

    /// The seed of the checksums of the directory's blocks, where they have to be right.
    fn seed(&self) -> Option<u32> {
        let disk = self.disk;
        disk.verifies().then(|| disk.seed.inode_of(self.slot.ino, self.slot.inode.generation.get()))
    }

    /// Looks up `name`, through the index if there is one, otherwise by reading all names.
    pub(super) fn find(&mut self, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        let mut found = None;
        let mut lost = None;
        let mut take = |item: Item<'_>| {
            match item {
                Item::Entry(entry) if entry.name == name => found = Some(entry.node),
                Item::Lost(Loss { is_damage: true, reason }) => lost = Some(reason),
                _ => {}
            }
            found.is_none()
        };
        match hashed::leaves(self, name)? {
            Leaves::Blocks(leaves) => {
                for leaf in leaves {
                    match self.block(leaf)? {
                        Some(block) if self.each_of_block(&block, leaf, 0, &mut take) => {}
                        Some(_) => break,
                        None => {
                            let text = format!("has no sound block {leaf}, where its index leads");
                            take(Item::Lost(Loss::damage(text)));
                        }
                    }
                }
            }
            Leaves::Unknown => self.each(0, &mut take)?,
        }
        match (found, lost) {
            (None, Some(reason)) => Err(VolumeError::Damaged(reason)),
            (found, _) => Ok(found),
        }
    }

    /// The directory that it lies in, by its first block.
    pub(super) fn parent(&self) -> Result<Option<u32>, VolumeError> {
        if self.slot.inode.has(flags::INLINE_DATA) {
            return Ok(Some(inline::parent(self.slot)));
        }
        let block = self.block(0)?.ok_or_else(|| VolumeError::Damaged("has no sound first block".to_owned()))?;
        let has_types = self.disk.superblock.has_incompat(incompat::FILETYPE);
        let found = LeafReader::new(&block, has_types).filter_map(Result::ok).find(|entry| entry.name == b"..");
        Ok(found.map(|entry| entry.ino))
    }
}
