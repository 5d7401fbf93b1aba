//! Measures a tree in one pass: everything whose size does not follow from a single inode.

use inarch_tree::{FileType, Inode, InodeId, Tree, XattrSetId};

use super::directory::{Directories, LOST_AND_FOUND, path};
use super::extents::{Cursor, Extents, Runs, TreeShape};
use super::{Options, PlanError, xattr};
use crate::ext4::spec::extent::{BLOCK_ENTRIES, MAX_LENGTH};
use crate::ext4::spec::inode::{FAST_SYMLINK_MAX, MAX_FILE_SIZE, encode_device};
use crate::ext4::spec::xattr::MAX_REFERENCES;
use crate::ext4::spec::{BLOCK_SIZE, LINK_MAX};

/// Blocks of an added `lost+found`: enough that `e2fsck` does not enlarge it.
const LOST_AND_FOUND_BLOCKS: u64 = 4;

/// A file or directory whose extents need blocks of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentTree {
    pub(crate) node: u32,
    /// Its first block, counted from the first block of all extent trees.
    pub(crate) block: u64,
    /// Its first leaf in [`Measured::extent_leaves`].
    pub(crate) first_leaf: usize,
    pub(crate) leaves: usize,
    /// Where its content starts, in blocks from the start of the data region; a directory's, from the first block of
    /// all directories.
    pub(crate) data_start: u64,
    /// Blocks of content.
    pub(crate) data_blocks: u64,
}

/// An attribute block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XattrBlock {
    pub(crate) set: XattrSetId,
    /// Inodes that share it.
    pub(crate) references: u32,
}

/// An attribute value in an inode of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XattrValue {
    pub(crate) set: XattrSetId,
    /// Its attribute's place among the set's attributes in the block.
    pub(crate) place: u32,
    /// Bytes.
    pub(crate) size: u32,
    /// Its first block, counted from the first block of all values.
    pub(crate) block: u64,
    /// Attribute blocks that point at it.
    pub(crate) references: u32,
}

/// Where extended attributes go that do not fit the inode.
#[derive(Debug, Default)]
pub(crate) struct Xattrs {
    pub(crate) blocks: Vec<XattrBlock>,
    /// (node, place in `blocks`), ascending by node.
    pub(crate) users: Vec<(u32, u32)>,
    /// In the order of sets.
    pub(crate) values: Vec<XattrValue>,
    pub(crate) value_blocks: u64,
}

/// What one pass over the tree finds.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) directories: Directories,
    /// 0 if none is added.
    pub(crate) lost_and_found_blocks: u64,
    /// Nodes of symlinks that need a block, ascending; their blocks are in this order.
    pub(crate) symlinks: Vec<u32>,
    /// Ascending by node and by block.
    pub(crate) extent_trees: Vec<ExtentTree>,
    /// Where each leaf of those trees starts.
    pub(crate) extent_leaves: Vec<Cursor>,
    pub(crate) extent_tree_blocks: u64,
    pub(crate) xattrs: Xattrs,
    /// Inodes with more links than ext4 counts, once for each copy they need; equal ones together.
    pub(crate) copies: Vec<InodeId>,
    /// Blocks of content.
    pub(crate) data_blocks: u64,
    /// Runs of content.
    pub(crate) data_runs: usize,
    /// Seconds since 1970.
    pub(crate) newest_mtime: i64,
}

impl Measured {
    pub(crate) fn new(tree: &Tree, options: &Options) -> Result<Measured, PlanError> {
        let lost_and_found = options.lost_and_found && tree.lookup(LOST_AND_FOUND).is_none();
        let mut measured = Measured {
            directories: Directories::default(),
            lost_and_found_blocks: if lost_and_found { LOST_AND_FOUND_BLOCKS } else { 0 },
            symlinks: Vec::new(),
            extent_trees: Vec::new(),
            extent_leaves: Vec::new(),
            extent_tree_blocks: 0,
            xattrs: Xattrs::default(),
            copies: Vec::new(),
            data_blocks: 0,
            data_runs: 0,
            newest_mtime: i64::MIN,
        };
        let mut sets = SetUse::default();
        for (id, inode) in tree.inodes() {
            measured.newest_mtime = measured.newest_mtime.max(inode.mtime().seconds);
            if inode.file_type() == FileType::Directory {
                let extra = (id == InodeId::ROOT && lost_and_found).then_some(LOST_AND_FOUND);
                measured.add_directory(tree, id, &options.hash_seed, extra)?;
            } else {
                let copies = (inode.links().max(1) - 1) / LINK_MAX;
                measured.copies.extend(std::iter::repeat_n(id, copies as usize));
            }
            measured.add_node(tree, id.0, id, inode)?;
            measured.xattrs.add_node(tree, id.0, id, inode, &mut sets)?;
        }
        for copy in 0..measured.copies.len() {
            let (node, id) = (tree.inode_count() + copy as u32, measured.copies[copy]);
            measured.add_node(tree, node, id, tree.inode(id))?;
            measured.xattrs.add_node(tree, node, id, tree.inode(id), &mut sets)?;
        }
        measured.directories.finish();
        measured.xattrs.place_values(tree, &sets);
        Ok(measured)
    }

    /// Whether a `lost+found` is added.
    pub(crate) fn has_lost_and_found(&self) -> bool {
        self.lost_and_found_blocks > 0
    }

    /// The extent tree of a node that has one.
    pub(crate) fn extent_tree(&self, node: u32) -> Option<&ExtentTree> {
        let at = self.extent_trees.binary_search_by_key(&node, |tree| tree.node).ok()?;
        self.extent_trees.get(at)
    }

    fn add_directory(
        &mut self,
        tree: &Tree,
        id: InodeId,
        hash_seed: &[u32; 4],
        extra: Option<&[u8]>,
    ) -> Result<(), PlanError> {
        let first = self.directories.blocks();
        self.directories.push(tree, id, hash_seed, extra)?;
        let blocks = self.directories.blocks() - first;
        if TreeShape::new(u64::from(blocks.div_ceil(MAX_LENGTH))).is_some() {
            // One leaf: an index of two levels has at most 259,078 blocks, which are 8 extents.
            let first_leaf = self.extent_leaves.len();
            self.extent_leaves.push(Cursor::contiguous(blocks));
            self.push_extent_tree(id.0, first_leaf, u64::from(first), u64::from(blocks));
        }
        Ok(())
    }

    fn add_node(&mut self, tree: &Tree, node: u32, id: InodeId, inode: &Inode) -> Result<(), PlanError> {
        match inode.file_type() {
            FileType::Regular if inode.size() > 0 => self.add_file(tree, node, id, inode.size()),
            FileType::Symlink => {
                if tree.symlink_target(id).len() > FAST_SYMLINK_MAX {
                    self.symlinks.push(node);
                }
                Ok(())
            }
            FileType::CharDevice | FileType::BlockDevice => {
                let (major, minor) = inode.device();
                match encode_device(major, minor) {
                    Some(_) => Ok(()),
                    None => Err(PlanError::Device { path: path(tree, id), major, minor }),
                }
            }
            _ => Ok(()),
        }
    }

    fn add_file(&mut self, tree: &Tree, node: u32, id: InodeId, size: u64) -> Result<(), PlanError> {
        if size > MAX_FILE_SIZE {
            return Err(PlanError::FileTooLarge { path: path(tree, id), size });
        }
        let (mut blocks, mut extents) = (0, 0);
        for (_, length) in Runs::new(tree, id) {
            blocks += length;
            extents += length.div_ceil(u64::from(MAX_LENGTH));
            self.data_runs += 1;
        }
        let data_start = self.data_blocks;
        self.data_blocks = self.data_blocks.checked_add(blocks).ok_or(PlanError::DeviceTooLarge)?;
        if TreeShape::new(extents).is_some() {
            let first_leaf = self.extent_leaves.len();
            let mut extents = Extents::new(tree, id, 0);
            loop {
                let cursor = extents.cursor(0);
                if extents.by_ref().take(BLOCK_ENTRIES).count() == 0 {
                    break;
                }
                self.extent_leaves.push(cursor);
            }
            self.push_extent_tree(node, first_leaf, data_start, blocks);
        }
        Ok(())
    }

    /// Gives a node the extent tree with the leaves from `first_leaf`.
    fn push_extent_tree(&mut self, node: u32, first_leaf: usize, data_start: u64, data_blocks: u64) {
        let leaves = self.extent_leaves.len() - first_leaf;
        let block = self.extent_tree_blocks;
        self.extent_trees.push(ExtentTree { node, block, first_leaf, leaves, data_start, data_blocks });
        self.extent_tree_blocks += TreeShape::with_leaves(leaves).blocks();
    }
}

/// What is known of each set of attributes while nodes are added.
#[derive(Debug, Default)]
struct SetUse {
    sets: Vec<Option<SetState>>,
}

#[derive(Clone, Copy, Debug)]
struct SetState {
    needs_block: bool,
    /// Its last block in [`Xattrs::blocks`].
    block: Option<u32>,
    blocks: u32,
}

impl Xattrs {
    fn add_node(
        &mut self,
        tree: &Tree,
        node: u32,
        id: InodeId,
        inode: &Inode,
        sets: &mut SetUse,
    ) -> Result<(), PlanError> {
        let set = inode.xattrs();
        if set == XattrSetId::NONE {
            return Ok(());
        }
        let slot = set.0 as usize;
        if sets.sets.len() <= slot {
            sets.sets.resize(slot + 1, None);
        }
        let state = match &mut sets.sets[slot] {
            Some(state) => state,
            empty => {
                let placed = xattr::place(tree.xattrs(set));
                let placed = placed.map_err(|reason| PlanError::Xattrs { path: path(tree, id), reason })?;
                empty.insert(SetState { needs_block: !placed.block.is_empty(), block: None, blocks: 0 })
            }
        };
        if !state.needs_block {
            return Ok(());
        }
        let shared = state.block.and_then(|block| self.blocks.get_mut(block as usize));
        match shared.filter(|block| block.references < MAX_REFERENCES) {
            Some(block) => block.references += 1,
            None => {
                state.block = Some(self.blocks.len() as u32);
                state.blocks += 1;
                self.blocks.push(XattrBlock { set, references: 1 });
            }
        }
        self.users.extend(state.block.map(|block| (node, block)));
        Ok(())
    }

    /// Assigns blocks to the values that fit in no attribute block.
    fn place_values(&mut self, tree: &Tree, sets: &SetUse) {
        for (slot, state) in sets.sets.iter().enumerate() {
            let Some(state) = state.filter(|state| state.needs_block) else { continue };
            let set = XattrSetId(slot as u32);
            // It was placed without an error before.
            let Ok(placed) = xattr::place(tree.xattrs(set)) else { continue };
            for (place, stored) in placed.block.iter().enumerate().filter(|(_, stored)| stored.external) {
                self.values.push(XattrValue {
                    set,
                    place: place as u32,
                    size: stored.value.len() as u32,
                    block: self.value_blocks,
                    references: state.blocks,
                });
                self.value_blocks += stored.value.len().div_ceil(BLOCK_SIZE) as u64;
            }
        }
    }

    /// The values of a set that are in inodes of their own, and the number of the first.
    pub(crate) fn values_of(&self, set: XattrSetId) -> (u32, &[XattrValue]) {
        let first = self.values.partition_point(|value| value.set < set);
        let end = self.values.partition_point(|value| value.set <= set);
        (first as u32, self.values.get(first..end).unwrap_or(&[]))
    }

    /// The attribute block of a node that has one, as its place among all.
    pub(crate) fn block_of(&self, node: u32) -> Option<u32> {
        let at = self.users.binary_search_by_key(&node, |(user, _)| *user).ok()?;
        self.users.get(at).map(|(_, block)| *block)
    }
}
