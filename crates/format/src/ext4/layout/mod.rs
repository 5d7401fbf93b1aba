//! The layout of an ext4 file system: measures, geometry, and the places that follow from them. The planner fills it,
//! the renderer reads it.

pub(crate) mod directory;
pub(crate) mod extents;
pub(crate) mod geometry;
pub(crate) mod measure;
pub(crate) mod nodes;
mod options;
pub(crate) mod xattr;

use std::ops::Range;

use inarch_block::{BLOCK_SIZE, MapError};
use inarch_tree::InodeId;

pub use nodes::Numbering;
pub use options::{Options, Summary};
pub use xattr::XattrError;

use super::spec::extent::{MAX_LENGTH, ROOT_ENTRIES};
use super::spec::journal;
use geometry::Geometry;
use measure::Measured;
use nodes::Nodes;

/// Why a tree cannot be an ext4 file system.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// The label does not fit the superblock.
    #[error("the label {0:?} is longer than 16 bytes")]
    Label(String),
    /// A journal that the kernel refuses, or that needs more than four extents.
    #[error("a journal of {bytes} bytes is not between 4 MiB and 512 MiB")]
    Journal {
        /// The size asked for.
        bytes: u64,
    },
    /// A file beyond 16 TiB - 4 KiB, the greatest size of ext4 with 4 KiB blocks.
    #[error("{path}: {size} bytes exceed ext4's greatest file size, 17592186040320")]
    FileTooLarge {
        /// The file.
        path: String,
        /// Its size in bytes.
        size: u64,
    },
    /// A device number beyond 12 bits of major and 20 of minor number.
    #[error("{path}: ext4 cannot store the device number {major}:{minor}")]
    Device {
        /// The device node.
        path: String,
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
    /// The names exceed a two-level index, which has 258,570 leaves of 4 KiB, filled to four fifths: about 35 million
    /// names of 16 bytes, or 3.3 million of 255 bytes.
    #[error("{path}: more names than a directory of ext4 can index; leave it out or split it")]
    DirectoryTooLarge {
        /// The directory.
        path: String,
    },
    /// A name that ext4 has no room for.
    #[error("{path}: a name of it has more than the 255 bytes that ext4 holds; leave it out, or rename it")]
    LongName {
        /// The file.
        path: String,
    },
    /// A file's extended attributes cannot be stored.
    #[error("{path}: {reason}")]
    Xattrs {
        /// The first file that has them.
        path: String,
        /// What is wrong with them.
        reason: XattrError,
    },
    /// More inodes than 32 bits number.
    #[error("{wanted} inodes are more than the 4294967295 of ext4; ask for fewer free ones")]
    TooManyInodes {
        /// Inodes in use and asked for.
        wanted: u64,
    },
    /// A device that the tree does not fit.
    #[error(
        "{bytes} bytes are too few: the tree takes at least {minimum} bytes; make it as large, or leave something out"
    )]
    TooSmall {
        /// The size asked for.
        bytes: u64,
        /// The least size that does.
        minimum: u64,
    },
    /// More blocks or block groups than one descriptor table in the first group describes (256 TiB).
    #[error("the device would exceed what one table of block groups describes; ask for less free space")]
    DeviceTooLarge,
    /// The planner contradicted itself.
    #[error("internal: the planned block map is out of order: {0}")]
    Map(#[from] MapError),
}

/// The regions of the device after the inode tables, in their order; absolute block numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regions {
    pub(crate) lost_and_found: Range<u64>,
    pub(crate) directories: Range<u64>,
    pub(crate) symlinks: Range<u64>,
    pub(crate) extent_trees: Range<u64>,
    pub(crate) xattr_blocks: Range<u64>,
    pub(crate) xattr_values: Range<u64>,
    pub(crate) journal: Range<u64>,
    pub(crate) data: Range<u64>,
}

impl Regions {
    /// Lays the regions out one after another from block `start`.
    pub(crate) fn lay_out(&mut self, start: u64) -> Option<()> {
        let mut at = start;
        for region in [
            &mut self.lost_and_found,
            &mut self.directories,
            &mut self.symlinks,
            &mut self.extent_trees,
            &mut self.xattr_blocks,
            &mut self.xattr_values,
            &mut self.journal,
            &mut self.data,
        ] {
            let end = at.checked_add(region.end - region.start)?;
            *region = at..end;
            at = end;
        }
        Some(())
    }
}

/// Everything the renderer needs besides the tree.
pub(crate) struct Layout {
    pub(crate) options: Options,
    pub(crate) geometry: Geometry,
    pub(crate) regions: Regions,
    pub(crate) nodes: Nodes,
    pub(crate) measured: Measured,
    /// For each used block of the inode table, where the content of its first file starts, counted from the data
    /// region. The content of the block's other files follows.
    pub(crate) data_starts: Vec<u64>,
    /// Seconds since 1970 for the superblock and the file system's own inodes.
    pub(crate) epoch: i64,
}

impl Layout {
    /// The groups, from the first, with any block in use.
    pub(crate) fn used_block_groups(&self) -> u64 {
        self.geometry.free.div_ceil(crate::ext4::spec::BLOCKS_PER_GROUP)
    }

    /// The groups, from the first, with any inode in use.
    pub(crate) fn used_inode_groups(&self) -> u64 {
        u64::from(self.nodes.last_ino()).div_ceil(u64::from(self.geometry.inodes_per_group))
    }
}

/// Blocks of a journal at most: as many as the extents in an inode map.
const MAX_JOURNAL_BLOCKS: u64 = ROOT_ENTRIES as u64 * MAX_LENGTH as u64;

impl Options {
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        if self.label.len() > 16 {
            return Err(PlanError::Label(self.label.clone()));
        }
        match self.journal {
            Some(bytes) if !(journal::MIN_BLOCKS..=MAX_JOURNAL_BLOCKS).contains(&self.journal_blocks()) => {
                Err(PlanError::Journal { bytes })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn journal_blocks(&self) -> u64 {
        self.journal.map_or(0, |bytes| bytes / BLOCK_SIZE as u64)
    }
}

/// The root directory's node.
pub(crate) const ROOT_NODE: u32 = InodeId::ROOT.0;
