//! Renders any metadata block of a planned ext4 file system on demand.

mod directory;
mod extents;
mod groups;
mod inode;
mod superblock;
mod xattr;

use std::sync::Arc;

use inarch_block::Metadata;
use inarch_tree::Tree;

use super::layout::Layout;
use super::spec::checksum::FsSeed;
use super::spec::{Block, journal};

/// Renders the metadata of one file system. Holds no block: each is made from the tree and the layout's tables.
pub(crate) struct Renderer {
    tree: Arc<Tree>,
    layout: Layout,
    seed: FsSeed,
    full_bitmaps: groups::FullBitmaps,
}

impl Renderer {
    pub(crate) fn new(tree: Arc<Tree>, layout: Layout) -> Renderer {
        let seed = FsSeed::new(&layout.options.uuid);
        let full_bitmaps = groups::FullBitmaps::new(seed, &layout.geometry);
        Renderer { tree, layout, seed, full_bitmaps }
    }
}

impl Metadata for Renderer {
    fn render(&self, block: u64, out: &mut Block) {
        let geometry = &self.layout.geometry;
        let regions = &self.layout.regions;
        if block == 0 {
            self.render_superblock(out);
        } else if block < geometry.block_bitmaps {
            self.render_descriptors(block - 1, out);
        } else if block < geometry.inode_bitmaps {
            self.render_block_bitmap((block - geometry.block_bitmaps) as u32, out);
        } else if block < geometry.inode_table {
            self.render_inode_bitmap((block - geometry.inode_bitmaps) as u32, out);
        } else if block < geometry.payload {
            self.render_inodes(block - geometry.inode_table, out);
        } else if block < regions.lost_and_found.end {
            self.render_lost_and_found(block - regions.lost_and_found.start, out);
        } else if block < regions.directories.end {
            self.render_directory((block - regions.directories.start) as u32, out);
        } else if block < regions.symlinks.end {
            self.render_symlink((block - regions.symlinks.start) as usize, out);
        } else if block < regions.extent_trees.end {
            self.render_extent_node(block - regions.extent_trees.start, out);
        } else if block < regions.xattr_blocks.end {
            self.render_xattr_block((block - regions.xattr_blocks.start) as usize, out);
        } else if block < regions.xattr_values.end {
            self.render_xattr_value(block - regions.xattr_values.start, out);
        } else if block == regions.journal.start && !regions.journal.is_empty() {
            let blocks = regions.journal.end - regions.journal.start;
            journal::render_superblock(out, blocks as u32, self.layout.options.uuid);
        }
    }
}
