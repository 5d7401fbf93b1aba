//! Collects every name of each hard-linked inode that a difference touches.

use super::paths::joined;
use std::collections::{HashMap, HashSet};

use inarch_tree::compare::{Difference, Lineage};
use inarch_tree::{FileType, InodeId, Tree};

/// All names of the hard-linked inodes that the differences touch.
pub(super) struct Names {
    /// Of inodes of the base.
    base: HashMap<InodeId, Vec<Vec<u8>>>,
    /// Of inodes of the guest.
    guest: HashMap<InodeId, Vec<Vec<u8>>>,
}

impl Names {
    pub fn new(base: &Tree, guest: &Tree, differences: &[Difference], lineage: &dyn Lineage) -> Names {
        let news = || differences.iter().filter_map(|difference| difference.new);
        let olds = differences.iter().filter_map(|difference| difference.old);
        let origins = news().filter_map(|id| lineage.origin(id));
        Names { base: names(base, olds.chain(origins)), guest: names(guest, news()) }
    }

    /// Every name of an inode of the base.
    pub fn of_base(&self, tree: &Tree, id: InodeId) -> Vec<Vec<u8>> {
        self.base.get(&id).cloned().unwrap_or_else(|| vec![tree.path(id)])
    }

    /// Every name of an inode of the guest.
    pub fn of_guest(&self, tree: &Tree, id: InodeId) -> Vec<Vec<u8>> {
        self.guest.get(&id).cloned().unwrap_or_else(|| vec![tree.path(id)])
    }
}

/// All names of those of `ids` that have several.
fn names(tree: &Tree, ids: impl Iterator<Item = InodeId>) -> HashMap<InodeId, Vec<Vec<u8>>> {
    let has_several = |id: &InodeId| {
        let inode = tree.inode(*id);
        inode.file_type() != FileType::Directory && inode.links() > 1
    };
    let several: HashSet<InodeId> = ids.filter(has_several).collect();
    let mut names: HashMap<InodeId, Vec<Vec<u8>>> = HashMap::new();
    if several.is_empty() {
        return names;
    }
    for (directory, inode) in tree.inodes() {
        if inode.file_type() != FileType::Directory {
            continue;
        }
        for entry in tree.entries(directory).filter(|entry| several.contains(&entry.inode)) {
            let above = tree.path(directory);
            let path = joined(&above, entry.name);
            names.entry(entry.inode).or_default().push(path);
        }
    }
    names
}
