//! Decisions: how large everything is and where it goes.

pub(crate) mod directory;
pub(crate) mod extents;
pub(crate) mod geometry;
pub(crate) mod measure;
pub(crate) mod nodes;
mod options;
mod size;
pub(crate) mod xattr;

use std::ops::Range;
use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, BlockMap, FileExtent, MapError};
use inarch_tree::{InodeId, Tree};

pub use nodes::Numbering;
pub use options::{Options, Summary};
pub use size::{Size, plan_sized};
pub use xattr::XattrError;

use crate::ext4::plan::extents::Runs;
use crate::ext4::plan::geometry::{Demand, Geometry};
use crate::ext4::plan::measure::Measured;
use crate::ext4::plan::nodes::Nodes;
use crate::ext4::render::Renderer;
use crate::ext4::spec::extent::{MAX_LENGTH, ROOT_ENTRIES};
use crate::ext4::spec::{INODES_PER_BLOCK, LOST_AND_FOUND_INO, journal};

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
    /// More names than a two-level index holds: 258,570 leaves of 4 KiB, filled to four fifths. That is about 35
    /// million names of 16 bytes, or 3.3 million of 255 bytes.
    #[error("{path}: more names than a directory of ext4 can index; leave it out or split it")]
    DirectoryTooLarge {
        /// The directory.
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

/// A planned file system.
pub struct Plan {
    /// What each block of the device is; renders the metadata.
    pub map: BlockMap,
    /// What was planned, in numbers.
    pub summary: Summary,
    /// Which inode numbers the tree's inodes have.
    pub numbering: Numbering,
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
    fn lay_out(&mut self, start: u64) -> Option<()> {
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

/// Everything the renderer needs beside the tree.
pub(crate) struct Layout {
    pub(crate) options: Options,
    pub(crate) geometry: Geometry,
    pub(crate) regions: Regions,
    pub(crate) nodes: Nodes,
    pub(crate) measured: Measured,
    /// For each block of the inode table in use, where the content of the first file it holds starts, counted from
    /// the data region; those of the block's other files follow.
    pub(crate) data_starts: Vec<u64>,
    /// Seconds since 1970 for the superblock and the file system's own inodes.
    pub(crate) epoch: i64,
}

/// Plans an ext4 file system that holds `tree`. Opens no file; the same tree and options give the same bytes.
///
/// Errors name the first file that ext4 cannot hold, or the option that asks for too much.
pub fn plan(tree: Arc<Tree>, options: &Options) -> Result<Plan, PlanError> {
    let draft = Draft::new(tree, options.clone())?;
    let free_blocks = options.free_bytes.div_ceil(BLOCK_SIZE as u64);
    let demand = draft.demand(options.journal_blocks(), u64::from(options.free_inodes), free_blocks)?;
    let geometry = Geometry::solve(demand)?;
    draft.finish(geometry)
}

/// A tree that was measured, before it is known how large the file system is.
pub(crate) struct Draft {
    tree: Arc<Tree>,
    options: Options,
    measured: Measured,
    nodes: Nodes,
}

impl Draft {
    fn new(tree: Arc<Tree>, options: Options) -> Result<Draft, PlanError> {
        options.check()?;
        let measured = Measured::new(&tree, &options)?;
        let nodes = Nodes::new(&tree, &measured)?;
        Ok(Draft { tree, options, measured, nodes })
    }

    /// The regions behind the inode tables, as if they started at block 0.
    fn regions(&self, journal_blocks: u64) -> Result<Regions, PlanError> {
        let measured = &self.measured;
        let mut regions = Regions {
            lost_and_found: 0..measured.lost_and_found_blocks,
            directories: 0..u64::from(measured.directories.blocks()),
            symlinks: 0..measured.symlinks.len() as u64,
            extent_trees: 0..measured.extent_tree_blocks,
            xattr_blocks: 0..measured.xattrs.blocks.len() as u64,
            xattr_values: 0..measured.xattrs.value_blocks,
            journal: 0..journal_blocks,
            data: 0..measured.data_blocks,
        };
        regions.lay_out(0).ok_or(PlanError::DeviceTooLarge)?;
        Ok(regions)
    }

    fn demand(&self, journal_blocks: u64, free_inodes: u64, free_blocks: u64) -> Result<Demand, PlanError> {
        Ok(Demand {
            used_inodes: u64::from(LOST_AND_FOUND_INO) + u64::from(self.nodes.count()) - 1,
            free_inodes,
            payload: self.regions(journal_blocks)?.data.end,
            free_blocks,
        })
    }

    /// Gives everything its place in a file system of this geometry, which holds the demand of the draft's options.
    fn finish(self, geometry: Geometry) -> Result<Plan, PlanError> {
        let mut regions = self.regions(self.options.journal_blocks())?;
        regions.lay_out(geometry.payload).ok_or(PlanError::DeviceTooLarge)?;
        let Draft { tree, options, measured, nodes } = self;
        let (files, data_starts) = place_data(&tree, &measured, &nodes, regions.data.start);
        let epoch = options.epoch.unwrap_or(measured.newest_mtime);
        let layout = Layout { options, geometry, regions, nodes, measured, data_starts, epoch };
        let summary = Summary::new(&tree, &layout);
        let metadata = metadata_ranges(&layout);
        let blocks = layout.geometry.blocks;
        let numbering = layout.nodes.numbering();
        let map = BlockMap::new(blocks, metadata, files, Arc::new(Renderer::new(tree, layout)))?;
        Ok(Plan { map, summary, numbering })
    }
}

/// Gives every file's content its blocks, in the order of inode numbers.
fn place_data(tree: &Tree, measured: &Measured, nodes: &Nodes, start: u64) -> (Vec<FileExtent>, Vec<u64>) {
    let mut files = Vec::with_capacity(measured.data_runs);
    let mut starts = Vec::with_capacity(nodes.inode_blocks());
    let mut at = start;
    for node in 0..nodes.tree_nodes() {
        let ino = nodes.ino(node);
        // The root is in the first block of the table, before the others.
        if node == 0 || u64::from(ino - 1) % INODES_PER_BLOCK == 0 {
            starts.push(at - start);
        }
        let inode = nodes.inode(node);
        for (first, blocks) in Runs::new(tree, inode) {
            // No file has more than 2^32 - 1 blocks: larger ones were refused.
            files.push(FileExtent { start: at, blocks: blocks as u32, first: first as u32, inode });
            at += blocks;
        }
    }
    (files, starts)
}

/// The ranges of blocks that are not zeros, apart from file content. Bitmaps of untouched groups, the unused part of
/// the inode tables and the journal's body are zeros.
fn metadata_ranges(layout: &Layout) -> Vec<Range<u64>> {
    let geometry = &layout.geometry;
    let regions = &layout.regions;
    let last_group = u64::from(geometry.groups) - 1;
    let used_groups = layout.used_block_groups();
    let used_inode_groups = layout.used_inode_groups();
    let inode_table_end = geometry.inode_block(layout.nodes.last_ino()) + 1;
    let journal = regions.journal.start..regions.journal.end.min(regions.journal.start + 1);
    let ranges = [
        0..geometry.block_bitmaps + used_groups,
        geometry.block_bitmaps + last_group..geometry.block_bitmaps + last_group + 1,
        geometry.inode_bitmaps..geometry.inode_bitmaps + used_inode_groups,
        geometry.inode_table..inode_table_end,
        geometry.payload..regions.journal.start,
        journal,
    ];
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

impl Layout {
    /// Groups, from the first, of which any block is in use.
    pub(crate) fn used_block_groups(&self) -> u64 {
        self.geometry.free.div_ceil(crate::ext4::spec::BLOCKS_PER_GROUP)
    }

    /// Groups, from the first, of which any inode is in use.
    pub(crate) fn used_inode_groups(&self) -> u64 {
        u64::from(self.nodes.last_ino()).div_ceil(u64::from(self.geometry.inodes_per_group))
    }
}

/// Blocks of a journal at most: as many as the extents in an inode map.
const MAX_JOURNAL_BLOCKS: u64 = ROOT_ENTRIES as u64 * MAX_LENGTH as u64;

impl Options {
    fn check(&self) -> Result<(), PlanError> {
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

    fn journal_blocks(&self) -> u64 {
        self.journal.map_or(0, |bytes| bytes / BLOCK_SIZE as u64)
    }
}

/// The root directory's node.
pub(crate) const ROOT_NODE: u32 = InodeId::ROOT.0;
