//! Decides the size and place of everything in an ext4 file system.

mod size;

use std::ops::Range;
use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, BlockMap, FileExtent};
use inarch_tree::Tree;

pub use size::{Size, plan_sized};

use super::layout::directory::path;
use super::layout::extents::Runs;
use super::layout::geometry::{Demand, Geometry};
use super::layout::measure::Measured;
use super::layout::nodes::{Nodes, Numbering};
use super::layout::{Layout, Options, PlanError, Regions, Summary};
use super::render::Renderer;
use super::spec::directory::NAME_MAX;
use super::spec::{INODES_PER_BLOCK, LOST_AND_FOUND_INO};

/// A planned file system.
pub struct Plan {
    /// What each block of the device is; renders the metadata.
    pub map: BlockMap,
    /// What was planned, in numbers.
    pub summary: Summary,
    /// Which inode numbers the tree's inodes have.
    pub numbering: Numbering,
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
        if let Some(inode) = tree.longer_name(NAME_MAX) {
            return Err(PlanError::LongName { path: path(&tree, inode) });
        }
        let measured = Measured::new(&tree, &options)?;
        let nodes = Nodes::new(&tree, &measured)?;
        Ok(Draft { tree, options, measured, nodes })
    }

    /// The regions after the inode tables, as if they started at block 0.
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

    /// Places everything in a file system of this geometry, which holds the demand of the draft's options.
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

/// Assigns blocks to every file's content, in the order of inode numbers.
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
