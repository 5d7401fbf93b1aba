//! Which files are held, and in which order.

use inarch_tree::{FileType, InodeId, Tree};

/// A file that may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub(super) size: u64,
    pub(super) inode: InodeId,
}

/// The regular files that have content beneath the directory `below`, the smallest first, each once.
pub(super) fn candidates(tree: &Tree, below: &[u8]) -> Vec<Candidate> {
    let mut files = Vec::new();
    let mut directories: Vec<_> = tree.lookup(below).into_iter().collect();
    while let Some(directory) = directories.pop() {
        for entry in tree.entries(directory) {
            let inode = tree.inode(entry.inode);
            match inode.file_type() {
                FileType::Directory => directories.push(entry.inode),
                FileType::Regular if inode.size() > 0 => {
                    files.push(Candidate { size: inode.size(), inode: entry.inode });
                }
                _ => {}
            }
        }
    }
    files.sort_unstable();
    // A file of several names.
    files.dedup();
    files
}
