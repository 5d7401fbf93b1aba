//! Lists the files to hold, in order.

use inarch_tree::select::{Filter, ReadFile, files_below};
use inarch_tree::{InodeId, Tree};

/// A file that may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    pub(super) size: u64,
    pub(super) inode: InodeId,
}

/// The regular files with content beneath the directory `below` that `filter` includes, each once, the smallest first.
pub(super) fn candidates(tree: &Tree, below: &[u8], filter: &Filter, read: &ReadFile<'_>) -> Vec<Candidate> {
    let Some(top) = tree.lookup(below) else { return Vec::new() };
    let files = files_below(tree, top, filter, read).into_iter();
    let candidates = files.map(|inode| Candidate { size: tree.inode(inode).size(), inode });
    let mut candidates: Vec<_> = candidates.filter(|candidate| candidate.size > 0).collect();
    candidates.sort_unstable();
    // A file with several names is listed once.
    candidates.dedup();
    candidates
}
