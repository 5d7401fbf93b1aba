//! Assigns inode numbers to *nodes*: first the tree's inodes in their order, then the copies of inodes with too many
//! links, then the inodes of large extended attribute values.

use inarch_tree::{InodeId, Tree};

use super::measure::Measured;
use super::{PlanError, ROOT_NODE};
use crate::ext4::spec::{INODES_PER_BLOCK, LINK_MAX, LOST_AND_FOUND_INO, ROOT_INO};

/// A name that leads to a copy.
#[derive(Clone, Copy, Debug)]
struct Relinked {
    directory: InodeId,
    /// The name's place in its directory's listing.
    place: u32,
    node: u32,
}

/// Which inode of the tree each inode number of a planned file system is.
#[derive(Clone, Debug)]
pub struct Numbering {
    tree_inodes: u32,
    copies: Vec<InodeId>,
}

impl Numbering {
    /// The tree's inode with number `ino`; `None` for reserved, attribute-value and free inodes.
    pub fn inode(&self, ino: u32) -> Option<InodeId> {
        let node =
            if ino == ROOT_INO { ROOT_NODE } else { ino.checked_sub(LOST_AND_FOUND_INO).filter(|node| *node > 0)? };
        match node.checked_sub(self.tree_inodes) {
            None => Some(InodeId(node)),
            Some(copy) => self.copies.get(copy as usize).copied(),
        }
    }
}

/// The numbering of all nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    tree_inodes: u32,
    /// What each copy is of.
    copies: Vec<InodeId>,
    /// Names that lead to copies, in the order of directories and places.
    relinked: Vec<Relinked>,
    values: u32,
}

impl Nodes {
    /// Numbers the inodes of `tree`; errors if 32 bits do not number them all.
    pub(crate) fn new(tree: &Tree, measured: &Measured) -> Result<Nodes, PlanError> {
        let added = measured.copies.len() as u64 + measured.xattrs.values.len() as u64;
        let wanted = u64::from(LOST_AND_FOUND_INO) + u64::from(tree.inode_count()) + added;
        if wanted > u64::from(u32::MAX) {
            return Err(PlanError::TooManyInodes { wanted });
        }
        let mut nodes = Nodes {
            tree_inodes: tree.inode_count(),
            copies: measured.copies.clone(),
            relinked: Vec::new(),
            values: measured.xattrs.values.len() as u32,
        };
        if !nodes.copies.is_empty() {
            nodes.relink(tree, measured);
        }
        Ok(nodes)
    }

    /// The part that says which inodes the tree's are.
    pub(crate) fn numbering(&self) -> Numbering {
        Numbering { tree_inodes: self.tree_inodes, copies: self.copies.clone() }
    }

    /// Spreads the names of inodes with too many links over their copies, in the order of the tree.
    fn relink(&mut self, tree: &Tree, measured: &Measured) {
        let mut names = std::collections::HashMap::new();
        for (number, inode) in self.copies.iter().enumerate() {
            names.entry(*inode).or_insert((0u32, self.tree_inodes + number as u32));
        }
        for directory in measured.directories.list() {
            for (place, entry) in tree.entries(directory.inode).enumerate() {
                let Some((seen, first_copy)) = names.get_mut(&entry.inode) else { continue };
                if let Some(copy) = (*seen / LINK_MAX).checked_sub(1) {
                    let node = *first_copy + copy;
                    self.relinked.push(Relinked { directory: directory.inode, place: place as u32, node });
                }
                *seen += 1;
            }
        }
    }

    /// All nodes.
    pub(crate) fn count(&self) -> u32 {
        self.tree_nodes() + self.values
    }

    /// The nodes of the tree's inodes and their copies: `0..tree_nodes()`.
    pub(crate) fn tree_nodes(&self) -> u32 {
        self.tree_inodes + self.copies.len() as u32
    }

    /// The tree's inode that a node below [`Nodes::tree_nodes`] is, or is a copy of.
    pub(crate) fn inode(&self, node: u32) -> InodeId {
        match node.checked_sub(self.tree_inodes).and_then(|copy| self.copies.get(copy as usize)) {
            Some(inode) => *inode,
            None => InodeId(node),
        }
    }

    /// The node of an attribute value.
    pub(crate) fn value_node(&self, value: u32) -> u32 {
        self.tree_nodes() + value
    }

    /// A node's inode number.
    pub(crate) fn ino(&self, node: u32) -> u32 {
        if node == ROOT_NODE { ROOT_INO } else { LOST_AND_FOUND_INO + node }
    }

    /// The node with an inode number; `None` for reserved and unused ones.
    pub(crate) fn node(&self, ino: u32) -> Option<u32> {
        match ino {
            ROOT_INO => Some(ROOT_NODE),
            _ => ino.checked_sub(LOST_AND_FOUND_INO).filter(|node| (1..self.count()).contains(node)),
        }
    }

    /// The greatest inode number in use.
    pub(crate) fn last_ino(&self) -> u32 {
        LOST_AND_FOUND_INO + self.count() - 1
    }

    /// Blocks of the inode table in use.
    pub(crate) fn inode_blocks(&self) -> usize {
        u64::from(self.last_ino()).div_ceil(INODES_PER_BLOCK) as usize
    }

    /// The inode number that the name at `place` of `directory` leads to, which the tree says is `inode`.
    pub(crate) fn target(&self, directory: InodeId, place: u32, inode: InodeId) -> u32 {
        let at = self.relinked.binary_search_by_key(&(directory, place), |r| (r.directory, r.place));
        let node = at.ok().and_then(|at| self.relinked.get(at)).map_or(inode.0, |relinked| relinked.node);
        self.ino(node)
    }

    /// The link count of a node that is not a directory, given the tree's count `links`.
    pub(crate) fn links(&self, node: u32, links: u32) -> u32 {
        if links <= LINK_MAX {
            return links;
        }
        let inode = self.inode(node);
        let first_copy = self.copies.iter().position(|copy| *copy == inode).unwrap_or(0) as u32;
        let part = if node < self.tree_inodes { 0 } else { node - self.tree_inodes - first_copy + 1 };
        (links - part * LINK_MAX).min(LINK_MAX)
    }
}
