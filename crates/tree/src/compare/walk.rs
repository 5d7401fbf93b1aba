//! Walks two trees at once, directory by directory, and collects the paths that differ.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::deep::{TooDeep, USUAL_PATH, is_beneath};
use super::{Aspects, Difference, Lineage};
use crate::{Entry, FileType, InodeId, Tree};

/// The most bytes of paths that a comparison holds, besides [`USUAL_PATH`] for each. In a chain of directories the
/// paths' total length grows with the square of the depth, and a guest can make it as deep as its disk has inodes.
pub const MOST_PATHS: usize = 256 << 20;

/// A path that both trees, or one, have a directory at.
pub(super) struct Pair {
    pub path: Vec<u8>,
    old: Option<InodeId>,
    new: Option<InodeId>,
    /// The index of the directory's own difference, if there is one.
    place: Option<usize>,
}

pub(super) struct Walk<'a> {
    pub old: &'a Tree,
    pub new: &'a Tree,
    pub lineage: &'a dyn Lineage,
    pub found: Vec<Difference>,
    /// Directories still to be walked, the next one last.
    pub stack: Vec<Pair>,
    /// How much longer than usual the paths in `found` and `stack` are together, in bytes.
    pub long: usize,
    /// The most that they may be.
    pub most: usize,
    pub left_out: Vec<TooDeep>,
    /// Inodes of the older tree that are in what is left out of the newer.
    pub lost: HashSet<InodeId>,
}

/// Every path at which the trees differ: a directory before its content, names in the order of their bytes.
///
/// A directory whose mtime alone differs is left out if names in it were added, removed or replaced, because that
/// changed its mtime.
///
/// Fails if the paths together are too long to be stored.
pub fn differences(old: &Tree, new: &Tree, lineage: &dyn Lineage) -> Result<Vec<Difference>, TooDeep> {
    let (found, left_out) = differences_but_deep(old, new, lineage, MOST_PATHS);
    left_out.into_iter().next().map_or(Ok(found), Err)
}

/// Like [`differences`], but drops too deeply nested directories, and returns them, if the paths take more than
/// `most` bytes besides [`USUAL_PATH`] for each; by default [`MOST_PATHS`]. If the newer tree has moved something
/// there from elsewhere, it does not count as removed from its old place.
pub fn differences_but_deep(
    old: &Tree,
    new: &Tree,
    lineage: &dyn Lineage,
    most: usize,
) -> (Vec<Difference>, Vec<TooDeep>) {
    let (found, stack, left_out, lost) = (Vec::new(), Vec::new(), Vec::new(), HashSet::new());
    let mut walk = Walk { old, new, lineage, found, stack, long: 0, most, left_out, lost };
    walk.visit(Vec::new(), Some(InodeId::ROOT), Some(InodeId::ROOT));
    while let Some(pair) = walk.stack.pop() {
        walk.long -= beyond_usual(&pair.path);
        walk.directory(&pair);
    }
    // Directories are walked one after the other, and each lists its own names first.
    walk.found.retain(|difference| difference.old.is_none() || difference.new.is_none() || difference.aspects.any());
    walk.found.sort_by(|a, b| by_components(&a.path, &b.path));
    walk.keep_lost();
    (walk.found, walk.left_out)
}

pub(super) fn beyond_usual(path: &[u8]) -> usize {
    path.len().saturating_sub(USUAL_PATH)
}

/// The order of a walk: a directory's content directly follows it.
pub(super) fn by_components(a: &[u8], b: &[u8]) -> Ordering {
    a.split(|byte| *byte == b'/').cmp(b.split(|byte| *byte == b'/'))
}

impl Walk<'_> {
    /// Compares what both trees have at a path; directories are queued for the walk.
    fn visit(&mut self, path: Vec<u8>, old: Option<InodeId>, new: Option<InodeId>) {
        let aspects = match (old, new) {
            (Some(old), Some(new)) => Aspects::between((self.old, old), (self.new, new), self.lineage),
            _ => Aspects::default(),
        };
        let directory = |tree: &Tree, id: &InodeId| tree.inode(*id).file_type() == FileType::Directory;
        let old_directory = old.filter(|id| directory(self.old, id));
        let new_directory = new.filter(|id| directory(self.new, id));
        let walked = old_directory.is_some() || new_directory.is_some();
        let differs = old.is_none() || new.is_none() || aspects.any();
        let place = differs.then_some(self.found.len());
        self.long += beyond_usual(&path) * (usize::from(differs) + usize::from(walked));
        if differs {
            self.found.push(Difference { path: path.clone(), old, new, aspects });
        }
        if walked {
            self.stack.push(Pair { path, old: old_directory, new: new_directory, place });
        }
        if self.long > self.most {
            self.leave_out();
        }
    }

    fn directory(&mut self, pair: &Pair) {
        let (old_tree, new_tree) = (self.old, self.new);
        let mut old = pair.old.map(|id| old_tree.entries(id)).into_iter().flatten().peekable();
        let mut new = pair.new.map(|id| new_tree.entries(id)).into_iter().flatten().peekable();
        let mut names_changed = false;
        loop {
            let order = match (old.peek(), new.peek()) {
                (Some(was), Some(is)) => was.name.cmp(is.name),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            let was = if order.is_le() { old.next() } else { None };
            let is = if order.is_ge() { new.next() } else { None };
            names_changed |= !self.is_the_same_entry(was, is);
            let name = was.or(is).map(|entry| entry.name).unwrap_or_default();
            let path = if pair.path.is_empty() { name.to_vec() } else { [&pair.path, name].join(&b'/') };
            let left_out = self.left_out.len();
            self.visit(path, was.map(|entry| entry.inode), is.map(|entry| entry.inode));
            if self.left_out.get(left_out..).is_some_and(|new| new.iter().any(|one| is_beneath(&pair.path, &one.top))) {
                return;
            }
        }
        if names_changed && let Some(difference) = pair.place.and_then(|place| self.found.get_mut(place)) {
            let only_time = Aspects { mtime: true, ..Aspects::default() };
            if difference.aspects == only_time {
                difference.aspects = Aspects::default();
            }
        }
    }

    fn is_the_same_entry(&self, was: Option<Entry<'_>>, is: Option<Entry<'_>>) -> bool {
        matches!((was, is), (Some(was), Some(is)) if self.lineage.origin(is.inode) == Some(was.inode))
    }
}
