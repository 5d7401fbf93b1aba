//! Plans file systems of a given or the smallest possible size, with the journal and the inodes that `mke2fs` would
//! choose.

use std::sync::Arc;

use inarch_block::BLOCK_SIZE;
use inarch_tree::Tree;

use super::{Draft, Plan};
use crate::ext4::layout::geometry::Geometry;
use crate::ext4::layout::{Options, PlanError};

/// How large a file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes, rounded down to blocks, whatever of them the tree leaves free.
    Whole(u64),
    /// As small as possible with this many bytes free.
    Free(u64),
}

/// Bytes of free space for each inode that is free: `inode_ratio` of mke2fs.conf.
const BYTES_PER_INODE: u64 = 16_384;

/// Device sizes in blocks, and the journal's blocks below each: `ext2fs_default_journal_size` of e2fsprogs. Below the
/// first there is no journal; above the last it is [`LARGEST_JOURNAL`].
const JOURNALS: [(u64, u64); 8] = [
    (2048, 0),
    (32_768, 1024),
    (256 * 1024, 4096),
    (512 * 1024, 8192),
    (4096 * 1024, 16_384),
    (8192 * 1024, 32_768),
    (16_384 * 1024, 65_536),
    (u64::MAX, LARGEST_JOURNAL),
];

/// As many blocks as the extents in an inode map; also what `mke2fs` gives to devices of 64 to 128 GiB.
const LARGEST_JOURNAL: u64 = 131_072;

/// Blocks of the journal of a device of `blocks` blocks.
fn journal_blocks(blocks: u64) -> u64 {
    JOURNALS.iter().find(|(below, _)| blocks < *below).map_or(LARGEST_JOURNAL, |(_, journal)| *journal)
}

/// Plans a file system of a given size for an image to be written. Like [`plan`](super::plan()), but free space, free
/// inodes and the journal follow from the size, not from `options`.
pub fn plan_sized(tree: Arc<Tree>, options: &Options, size: Size) -> Result<Plan, PlanError> {
    let mut draft = Draft::new(tree, Options { journal: None, ..options.clone() })?;
    let (journal, geometry) = match size {
        Size::Free(bytes) => draft.smallest(bytes.div_ceil(BLOCK_SIZE as u64))?,
        Size::Whole(bytes) => match draft.of_size(bytes / BLOCK_SIZE as u64)? {
            Some(found) => found,
            None => {
                let minimum = draft.smallest(0)?.1.blocks.saturating_mul(BLOCK_SIZE as u64);
                return Err(PlanError::TooSmall { bytes, minimum });
            }
        },
    };
    draft.options.journal = (journal > 0).then_some(journal * BLOCK_SIZE as u64);
    draft.finish(geometry)
}

/// The number of inodes of a device that offers `free_blocks`.
fn inodes_for(free_blocks: u64) -> u64 {
    free_blocks.saturating_mul(BLOCK_SIZE as u64) / BYTES_PER_INODE
}

impl Draft {
    /// The journal, in blocks, and the geometry of the smallest device that offers `free_blocks`.
    fn smallest(&self, free_blocks: u64) -> Result<(u64, Geometry), PlanError> {
        let mut found = Err(PlanError::DeviceTooLarge);
        for (_, journal) in JOURNALS {
            let geometry = Geometry::solve(self.demand(journal, inodes_for(free_blocks), free_blocks)?)?;
            let enough = journal_blocks(geometry.blocks) <= journal;
            found = Ok((journal, geometry));
            if enough {
                break;
            }
        }
        found
    }

    /// The layout of a device of `blocks` blocks and the blocks of its journal; `None` if the tree does not fit it.
    fn of_size(&self, blocks: u64) -> Result<Option<(u64, Geometry)>, PlanError> {
        let journal = journal_blocks(blocks);
        let Some(full) = Geometry::of_size(blocks, self.demand(journal, 0, 0)?)? else { return Ok(None) };
        let demand = self.demand(journal, inodes_for(blocks - full.free), 0)?;
        // Rounded up to whole groups, the tables of free inodes may take more than there is.
        let geometry = Geometry::of_size(blocks, demand)?.unwrap_or(full);
        Ok(Some((journal, geometry)))
    }
}
