//! Plans directory blocks: linear while the entries fit one block, hashed (htree, `dir_index`) beyond that.

use std::ops::Range;

use inarch_tree::{InodeId, Tree};

use crate::ext4::layout::PlanError;
use crate::ext4::spec::directory::{DOTS, LEAF_SPACE, NODE_LIMIT, ROOT_LIMIT, entry_size};
use crate::ext4::spec::hash::half_md4;

/// The name of the directory that `e2fsck` wants in the root.
pub(crate) const LOST_AND_FOUND: &[u8] = b"lost+found";

/// A leaf with less free space than this is not filled further, so that the guest's first new names do not split
/// every leaf: a fifth, like `e2fsck -D`.
const LEAF_SLACK: usize = LEAF_SPACE / 5;

/// One directory's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directory {
    /// The directory.
    pub(crate) inode: InodeId,
    /// Its first block, counted from the first block of all directories.
    pub(crate) block: u32,
    /// Its first leaf in [`Directories::leaves`]; where the next directory's begin there too, it has none.
    first_leaf: u32,
}

/// A leaf of a hashed directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    /// The hash of its first name; the lowest bit says that the leaf before holds names of this hash too.
    pub(crate) hash: u32,
    /// Its first name's place in [`Directories::order`].
    first: u32,
}

/// The places of all directories.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    list: Vec<Directory>,
    leaves: Vec<Leaf>,
    /// The entries of hashed directories in the order of their hashes, each by its place in the tree's listing; one
    /// place beyond the last stands for `lost+found`.
    order: Vec<u32>,
    blocks: u32,
    /// The names of the directory being planned, as (hash, place, bytes).
    scratch: Vec<(u64, u32, u32)>,
}

/// The blocks of a hashed directory: the root, `nodes` index blocks, then the leaves.
#[derive(Clone, Debug)]
pub(crate) struct Hashed {
    /// Index blocks between the root and the leaves; 0 where the root points at the leaves.
    pub(crate) nodes: usize,
    /// The leaves, as places in the list of all leaves.
    pub(crate) leaves: Range<usize>,
}

impl Directories {
    /// Plans the directory `inode`; call in the order of inode IDs. `extra` is an additional name.
    pub(crate) fn push(
        &mut self,
        tree: &Tree,
        inode: InodeId,
        seed: &[u32; 4],
        extra: Option<&[u8]>,
    ) -> Result<(), PlanError> {
        let entries = tree.entries(inode);
        let names = entries.clone().map(|entry| entry.name).chain(extra);
        let bytes: usize = names.clone().map(|name| entry_size(name.len())).sum();
        let directory = Directory { inode, block: self.blocks, first_leaf: self.leaves.len() as u32 };
        let blocks = if DOTS + bytes <= LEAF_SPACE {
            1
        } else {
            self.hash_names(names, seed);
            self.pack_leaves();
            let leaves = self.leaves.len() - directory.first_leaf as usize;
            let nodes = index_nodes(leaves).ok_or_else(|| PlanError::DirectoryTooLarge { path: path(tree, inode) })?;
            1 + nodes + leaves
        };
        self.list.push(directory);
        let total = u32::try_from(blocks).ok().and_then(|blocks| self.blocks.checked_add(blocks));
        self.blocks = total.ok_or(PlanError::DeviceTooLarge)?;
        Ok(())
    }

    /// Releases what only planning needs.
    pub(crate) fn finish(&mut self) {
        self.scratch = Vec::new();
        self.list.shrink_to_fit();
        self.leaves.shrink_to_fit();
        self.order.shrink_to_fit();
    }

    /// All directories, ascending by inode and by block.
    pub(crate) fn list(&self) -> &[Directory] {
        &self.list
    }

    /// Blocks of all directories.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Number of hashed directories.
    pub(crate) fn hashed(&self) -> usize {
        (0..self.list.len()).filter(|place| self.index(*place).is_some()).count()
    }

    /// The place in [`Directories::list`] of a directory.
    pub(crate) fn find(&self, inode: InodeId) -> Option<usize> {
        self.list.binary_search_by_key(&inode, |directory| directory.inode).ok()
    }

    /// The place in [`Directories::list`] of the directory that holds block `block`.
    pub(crate) fn containing(&self, block: u32) -> Option<usize> {
        self.list.partition_point(|directory| directory.block <= block).checked_sub(1)
    }

    /// Blocks of the directory at `place` in the list.
    pub(crate) fn blocks_of(&self, place: usize) -> u32 {
        let end = self.list.get(place + 1).map_or(self.blocks, |next| next.block);
        self.list.get(place).map_or(0, |directory| end - directory.block)
    }

    /// The index of the directory at `place`; `None` if it is linear: one block.
    pub(crate) fn index(&self, place: usize) -> Option<Hashed> {
        let first = self.list.get(place)?.first_leaf as usize;
        let end = self.list.get(place + 1).map_or(self.leaves.len(), |next| next.first_leaf as usize);
        let nodes = (self.blocks_of(place) as usize).checked_sub(1 + end - first)?;
        (first < end).then_some(Hashed { nodes, leaves: first..end })
    }

    /// All leaves, directory by directory.
    pub(crate) fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// The entries of a leaf, as places in the tree's listing of its directory.
    pub(crate) fn leaf_entries(&self, leaf: usize) -> &[u32] {
        let first = |leaf: usize| self.leaves.get(leaf).map_or(self.order.len(), |leaf| leaf.first as usize);
        self.order.get(first(leaf)..first(leaf + 1)).unwrap_or(&[])
    }

    /// Fills the scratch table with `names`, sorted by their hash.
    fn hash_names<'n>(&mut self, names: impl Iterator<Item = &'n [u8]>, seed: &[u32; 4]) {
        self.scratch.clear();
        self.scratch.extend(names.enumerate().map(|(place, name)| {
            let hash = half_md4(name, seed);
            (u64::from(hash.major) << 32 | u64::from(hash.minor), place as u32, entry_size(name.len()) as u32)
        }));
        self.scratch.sort_unstable();
    }

    /// Cuts the scratch table into leaves.
    fn pack_leaves(&mut self) {
        let mut free = 0;
        let mut previous = None;
        for (hash, place, size) in &self.scratch {
            let (major, size) = ((hash >> 32) as u32, *size as usize);
            if free < LEAF_SLACK || free < size {
                let continued = u32::from(previous == Some(major));
                self.leaves.push(Leaf { hash: major | continued, first: self.order.len() as u32 });
                free = LEAF_SPACE;
            }
            free -= size;
            self.order.push(*place);
            previous = Some(major);
        }
    }
}

/// Index blocks between the root and this many leaves; `None` if two levels do not hold them.
fn index_nodes(leaves: usize) -> Option<usize> {
    if leaves <= ROOT_LIMIT {
        return Some(0);
    }
    Some(leaves.div_ceil(NODE_LIMIT)).filter(|nodes| *nodes <= ROOT_LIMIT)
}

/// An inode's path for a message.
pub(crate) fn path(tree: &Tree, inode: InodeId) -> String {
    format!("/{}", String::from_utf8_lossy(&tree.path(inode)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_has_one_level_then_two_then_no_more() {
        assert_eq!(index_nodes(1), Some(0));
        assert_eq!(index_nodes(507), Some(0));
        assert_eq!(index_nodes(508), Some(1));
        assert_eq!(index_nodes(511), Some(2));
        assert_eq!(index_nodes(507 * 510), Some(507));
        assert_eq!(index_nodes(507 * 510 + 1), None);
    }

    #[test]
    fn names_of_one_hash_that_fill_more_than_a_leaf_are_marked_as_continued() {
        // 40 entries of 264 bytes and one hash, then one of another.
        let scratch = (0..40).map(|place| (6 << 32, place, 264)).chain([(8 << 32, 40, 264)]).collect();
        let mut directories = Directories { scratch, ..Directories::default() };
        directories.pack_leaves();
        let hashes: Vec<u32> = directories.leaves().iter().map(|leaf| leaf.hash).collect();
        assert_eq!(hashes, [6, 7, 7, 7]);
        assert_eq!(directories.leaf_entries(3).last(), Some(&40));
        let lengths: Vec<usize> = (0..4).map(|leaf| directories.leaf_entries(leaf).len()).collect();
        assert_eq!(lengths, [13, 13, 13, 2]);
    }
}
