//! Renders extent trees: roots in inodes, and blocks.

use inarch_tree::FileType;

use super::Renderer;
use crate::ext4::layout::extents::{Extents, TreeShape};
use crate::ext4::layout::measure::ExtentTree;
use crate::ext4::spec::Block;
use crate::ext4::spec::extent::{BLOCK_ENTRIES, Extent, MAX_LENGTH, NodeWriter, SPACE, seal};
use crate::ext4::spec::inode::BLOCK_FIELD;

/// Writes a root that holds its extents itself; there are at most four.
pub(super) fn set_extents(root: &mut [u8; BLOCK_FIELD], extents: impl Iterator<Item = Extent>) {
    let mut node = NodeWriter::new(root, 0);
    extents.for_each(|extent| node.push_extent(extent));
    node.finish();
}

/// Like [`set_extents`], for the first `blocks` blocks of a file, contiguous from `start`; at most four times
/// [`MAX_LENGTH`].
pub(super) fn set_contiguous(root: &mut [u8; BLOCK_FIELD], start: u64, blocks: u64) {
    let extents = (0..blocks).step_by(MAX_LENGTH as usize).map(|logical| Extent {
        logical: logical as u32,
        length: (blocks - logical).min(u64::from(MAX_LENGTH)) as u32,
        physical: start + logical,
    });
    set_extents(root, extents);
}

impl Renderer {
    /// Writes a root that points at a tree of blocks; returns how many blocks those are.
    pub(super) fn set_tree_root(&self, root: &mut [u8; BLOCK_FIELD], tree: &ExtentTree) -> u64 {
        let shape = TreeShape::with_leaves(tree.leaves);
        let (level, _) = shape.top();
        let mut node = NodeWriter::new(root, level + 1);
        self.push_children(&mut node, tree, shape, level, 0);
        node.finish();
        shape.blocks()
    }

    /// Block `index` of the extent trees.
    pub(super) fn render_extent_node(&self, index: u64, out: &mut Block) {
        let trees = &self.layout.measured.extent_trees;
        let place = trees.partition_point(|tree| tree.block <= index).checked_sub(1);
        let Some(tree) = place.and_then(|place| trees.get(place)) else { return };
        let shape = TreeShape::with_leaves(tree.leaves);
        let Some(position) = shape.node(index - tree.block) else { return };
        let mut node = NodeWriter::new(&mut out[..SPACE], position.level);
        match position.level.checked_sub(1) {
            Some(below) => self.push_children(&mut node, tree, shape, below, position.index * BLOCK_ENTRIES),
            None => self.leaf_extents(tree, position.index).for_each(|extent| node.push_extent(extent)),
        }
        node.finish();
        seal(out, self.seed.inode(self.layout.nodes.ino(tree.node)));
    }

    fn push_children(&self, node: &mut NodeWriter<'_>, tree: &ExtentTree, shape: TreeShape, level: u16, first: usize) {
        for (block, leaf) in shape.children(level, first) {
            let logical = self.layout.measured.extent_leaves.get(tree.first_leaf + leaf).map_or(0, |c| c.logical());
            node.push_child(logical, self.layout.regions.extent_trees.start + tree.block + block);
        }
    }

    fn leaf_extents(&self, tree: &ExtentTree, leaf: usize) -> impl Iterator<Item = Extent> {
        let id = self.layout.nodes.inode(tree.node);
        let cursor = self.layout.measured.extent_leaves.get(tree.first_leaf + leaf);
        let regions = &self.layout.regions;
        let region = match self.tree.inode(id).file_type() {
            FileType::Directory => &regions.directories,
            _ => &regions.data,
        };
        let start = region.start + tree.data_start;
        let extents = cursor.map(|cursor| Extents::resume(&self.tree, id, start, *cursor));
        extents.into_iter().flatten().take(BLOCK_ENTRIES)
    }
}
