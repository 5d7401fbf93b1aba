//! Finds names by their hashes, in the index of a large directory.

use inarch_volume::VolumeError;

use super::listing::Listing;
use super::mapping::{Claims, map};
use super::{damaged, tolerate};
use crate::xfs::spec::directory::{Hashes, INDEX_START, UNIT, hash, pairs};
use crate::xfs::spec::inode::Format;
use crate::xfs::spec::seal;

/// Levels of an index at most (`XFS_DA_NODE_MAXDEPTH`).
const MAX_LEVELS: usize = 5;

impl Listing<'_> {
    /// The directory's blocks that may have `name`, ascending; `None` if there is no index, or none that makes sense.
    pub(super) fn by_index(&mut self, name: &[u8]) -> Result<Option<Vec<u64>>, VolumeError> {
        if self.inode.data().format == Format::Local || self.disk.ignores_case() {
            return Ok(None);
        }
        // The index has claims of its own: if it makes no sense, all blocks of the directory are read afterwards.
        let mut claims = Claims::default();
        let mut index = Listing { disk: self.disk, inode: self.inode, claims: &mut claims };
        Ok(tolerate(index.positions(hash(name)))?.unwrap_or(None))
    }

    fn positions(&mut self, wanted: u32) -> Result<Option<Vec<u64>>, VolumeError> {
        let per_block = self.per_block();
        let start = INDEX_START / self.disk.block_size;
        let mut number = start;
        for _ in 0..=MAX_LEVELS {
            let Some(block) = self.index_block(number)? else {
                return if number == start {
                    Ok(None)
                } else {
                    Err(damaged("has an index with a block that is not there"))
                };
            };
            match Hashes::parse(&block, self.disk.is_sealed) {
                Some(Hashes::Node(children)) => {
                    let Some((_, below)) = pairs(children).find(|(last, _)| *last >= wanted) else {
                        return Ok(Some(Vec::new()));
                    };
                    number = below.into();
                }
                Some(Hashes::Leaf(..)) => return self.of_leaves(block, wanted).map(Some),
                _ => return Err(damaged(format!("has an index with a block that is none: {}", number / per_block))),
            }
        }
        Err(damaged("has an index of too many levels"))
    }

    /// The blocks with entries of a hash, in a leaf and those after it.
    fn of_leaves(&mut self, mut block: Vec<u8>, wanted: u32) -> Result<Vec<u64>, VolumeError> {
        let mut numbers = Vec::new();
        loop {
            let Some(Hashes::Leaf(entries, next)) = Hashes::parse(&block, self.disk.is_sealed) else {
                return Err(damaged("has an index with a block that is no leaf"));
            };
            // A position of 0 is that of an entry which was removed.
            let positions = pairs(entries).filter(|(hash, position)| *hash == wanted && *position != 0);
            numbers
                .extend(positions.map(|(_, position)| u64::from(position) * UNIT as u64 / self.disk.directory_block));
            let last = pairs(entries).next_back().map(|(hash, _)| hash);
            if next == 0 || last.is_some_and(|last| last > wanted) {
                break;
            }
            // Claims end a chain that goes in a circle.
            let after = self.index_block(next.into())?;
            block = after.ok_or_else(|| damaged("has an index with a block that is not there"))?;
        }
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// The block of the directory that starts at `number` of the fork; `None` where nothing is.
    fn index_block(&mut self, number: u64) -> Result<Option<Vec<u8>>, VolumeError> {
        let per_block = self.per_block();
        let mut runs = Vec::new();
        // Parts of the tree of extents are read again for each block, so they are not claimed.
        let mut claims = Claims::default();
        let blocks = number..number.saturating_add(per_block);
        let data = self.inode.data();
        let flaw = map(self.disk, &mut claims, self.inode.ino, data, blocks, &mut runs)?;
        if let Some(reason) = flaw {
            return Err(damaged(reason));
        }
        if runs.is_empty() {
            return Ok(None);
        }
        if !number.is_multiple_of(per_block) {
            return Err(damaged("has an index with a block at an odd place"));
        }
        self.block(&runs, number / per_block, seal::TREE).map(Some)
    }
}
