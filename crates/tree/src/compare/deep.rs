//! Bounds the memory that a comparison needs for long paths: leaves out the deep directories whose paths take the most,
//! and reports each as [`TooDeep`].

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use super::walk::{Walk, beyond_usual, by_components};
use super::{Aspects, Difference};
use crate::{FileType, InodeId, Tree};

/// The most bytes of a path that does not count as long.
pub(super) const USUAL_PATH: usize = 512;

/// Directories are nested so deeply that the paths of what differs do not fit in memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "directories are nested {levels} levels deep at '{}', and too much differs there to be listed",
    String::from_utf8_lossy(.top).escape_debug()
)]
pub struct TooDeep {
    /// The most levels of directories, one in another.
    pub levels: usize,
    /// The path of the topmost one.
    pub top: Vec<u8>,
}

impl Walk<'_> {
    /// Drops the directories whose long paths take the most memory, until at most half of the room is in use.
    pub(super) fn leave_out(&mut self) {
        let mut sums: HashMap<&[u8], usize> = HashMap::new();
        let found = self.found.iter().map(|difference| &difference.path);
        for path in found.chain(self.stack.iter().map(|pair| &pair.path)).filter(|path| beyond_usual(path) > 0) {
            *sums.entry(usual_part(path)).or_default() += beyond_usual(path);
        }
        let mut sums: Vec<(&[u8], usize)> = sums.into_iter().collect();
        sums.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        let mut rest = self.long;
        let is_needed = |(_, sum): &(&[u8], usize)| {
            let is_needed = rest > self.most / 2;
            rest -= if is_needed { *sum } else { 0 };
            is_needed
        };
        let deep: Vec<&[u8]> = sums.into_iter().take_while(is_needed).map(|(path, _)| path).collect();
        let mut tops: Vec<Vec<u8>> = deep.into_iter().map(|path| self.begin_of_chain(path).to_vec()).collect();
        tops.sort_unstable_by(|a, b| by_components(a, b));
        tops.dedup_by(|next, last| is_beneath(next, last));
        for top in &tops {
            self.forget_below(top);
        }
        let is_left = |path: &[u8]| is_beneath_one(path, &tops);
        for difference in self.found.iter_mut().filter(|difference| is_left(&difference.path)) {
            self.long -= beyond_usual(&difference.path);
            // A placeholder, so that indices of differences stay valid; it is dropped in the end.
            let (old, new) = (Some(InodeId::ROOT), Some(InodeId::ROOT));
            *difference = Difference { path: Vec::new(), old, new, aspects: Aspects::default() };
        }
        // No index refers to the last ones any more.
        while self.found.last().is_some_and(|last| last.path.is_empty() && !last.aspects.any()) {
            self.found.pop();
        }
        let long = &mut self.long;
        self.stack.retain(|pair| {
            let is_left = is_left(&pair.path);
            *long -= if is_left { beyond_usual(&pair.path) } else { 0 };
            !is_left
        });
    }

    /// The first directory of the chain that a directory is in. From there on, each directory contains only the next
    /// one, and is in one tree only.
    fn begin_of_chain<'p>(&self, path: &'p [u8]) -> &'p [u8] {
        let (mut old, mut new) = (Some(InodeId::ROOT), Some(InodeId::ROOT));
        let (mut begin, mut is_chain) = (0, false);
        let mut at = 0;
        for name in path.split(|byte| *byte == b'/') {
            if !is_chain {
                begin = at + name.len();
            }
            old = old.and_then(|id| self.old.find_entry(id, name)).map(|(_, id)| id);
            new = new.and_then(|id| self.new.find_entry(id, name)).map(|(_, id)| id);
            let has_one = |tree: &Tree, id: InodeId| tree.entries(id).take(2).count() == 1;
            is_chain = match (old, new) {
                (Some(id), None) => has_one(self.old, id),
                (None, Some(id)) => has_one(self.new, id),
                _ => false,
            };
            at += name.len() + 1;
        }
        &path[..begin]
    }

    /// Records that `top` is left out, and which inodes of the older tree the newer tree has there.
    fn forget_below(&mut self, top: &[u8]) {
        let (old, new) = (self.old.lookup(top), self.new.lookup(top));
        let levels = |tree: &Tree, id: Option<InodeId>| id.map_or(0, |id| walk_below(tree, id, &mut |_| {}));
        let before = levels(self.old, old);
        let (lineage, lost) = (self.lineage, &mut self.lost);
        let now = new.map_or(0, |id| walk_below(self.new, id, &mut |id| lost.extend(lineage.origin(id))));
        self.left_out.push(TooDeep { levels: before.max(now), top: top.to_vec() });
    }

    /// Drops the removals of inodes whose new place is left out, and of the directories that contain them.
    pub(super) fn keep_lost(&mut self) {
        if self.lost.is_empty() {
            return;
        }
        let lost: &HashSet<InodeId> = &self.lost;
        let mut holders: HashSet<Vec<u8>> = HashSet::new();
        for difference in self.found.iter_mut().rev().filter(|difference| difference.new.is_none()) {
            let is_lost = difference.old.is_some_and(|old| lost.contains(&old));
            if !is_lost && !holders.contains(&difference.path) {
                continue;
            }
            let above = difference.path.iter().rposition(|byte| *byte == b'/');
            holders.extend(above.map(|above| difference.path[..above].to_vec()));
            // No difference any more.
            difference.new = difference.old;
        }
        self.found
            .retain(|difference| difference.old.is_none() || difference.aspects.any() || difference.new.is_none());
    }
}

/// The number of directories, one in another, from `top` on. Calls `show` with each inode there.
fn walk_below(tree: &Tree, top: InodeId, show: &mut dyn FnMut(InodeId)) -> usize {
    let mut deepest = 0;
    let mut stack = vec![(top, 1)];
    while let Some((id, level)) = stack.pop() {
        show(id);
        if tree.inode(id).file_type() == FileType::Directory {
            deepest = deepest.max(level);
            stack.extend(tree.entries(id).map(|entry| (entry.inode, level + 1)));
        }
    }
    deepest
}

/// The last directory of a long path that has a usual path itself; the first one where none has.
fn usual_part(path: &[u8]) -> &[u8] {
    let slash = path[..path.len().min(USUAL_PATH)].iter().rposition(|byte| *byte == b'/');
    let slash = slash.or_else(|| path.iter().position(|byte| *byte == b'/'));
    &path[..slash.unwrap_or(path.len())]
}

pub(super) fn is_beneath(path: &[u8], top: &[u8]) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Whether a path is at or below one of `tops`, which are in order, and none below another.
fn is_beneath_one(path: &[u8], tops: &[Vec<u8>]) -> bool {
    let after = tops.partition_point(|top| by_components(top, path) != Ordering::Greater);
    after.checked_sub(1).is_some_and(|last| is_beneath(path, &tops[last]))
}
