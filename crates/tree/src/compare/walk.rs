//! Walks two trees at once, directory by directory, and collects the paths that differ.

use std::cmp::Ordering;

use super::{Aspects, Difference, Lineage};
use crate::{Entry, FileType, InodeId, Tree};

/// The most bytes of paths that a comparison stores, not counting [`USUAL_PATH`] for each. The paths of a chain of
/// directories have a total length that is quadratic in its depth, and a guest can make the chain as deep as its disk
/// has inodes.
const MOST_PATHS: usize = 256 << 20;

/// The bytes of a path that are not counted.
const USUAL_PATH: usize = 512;

/// Directories are nested so deeply that the differing paths do not fit in memory.
#[derive(Debug, thiserror::Error)]
#[error(
    "directories are nested {levels} levels deep below '{}', and too much differs there to be listed",
    String::from_utf8_lossy(.top).escape_debug()
)]
pub struct TooDeep {
    /// How many directories are above the path that was too much.
    pub levels: usize,
    /// The first components of that path.
    pub top: Vec<u8>,
}

impl TooDeep {
    fn at(path: &[u8]) -> TooDeep {
        let mut names = path.split(|byte| *byte == b'/');
        let top: Vec<&[u8]> = names.by_ref().take(3).collect();
        TooDeep { levels: top.len() + names.count(), top: top.join(&b'/') }
    }
}

/// A path at which at least one of the trees has a directory.
struct Pair {
    path: Vec<u8>,
    old: Option<InodeId>,
    new: Option<InodeId>,
    /// The index of the directory's own difference, if there is one.
    place: Option<usize>,
}

struct Walk<'a> {
    old: &'a Tree,
    new: &'a Tree,
    lineage: &'a dyn Lineage,
    found: Vec<Difference>,
    /// Directories still to be walked, the next one last.
    stack: Vec<Pair>,
    /// Bytes by which the paths in `found` and `stack` exceed the usual length, in all.
    long: usize,
}

/// Every path at which the trees differ: a directory before its content, names in the order of their bytes.
///
/// A directory whose mtime alone differs is left out if names in it were added, removed or replaced, because that
/// changed its mtime.
///
/// Fails if the paths together are too long to be stored.
pub fn differences(old: &Tree, new: &Tree, lineage: &dyn Lineage) -> Result<Vec<Difference>, TooDeep> {
    let mut walk = Walk { old, new, lineage, found: Vec::new(), stack: Vec::new(), long: 0 };
    walk.visit(Vec::new(), Some(InodeId::ROOT), Some(InodeId::ROOT))?;
    while let Some(pair) = walk.stack.pop() {
        walk.long -= beyond_usual(&pair.path);
        walk.directory(&pair)?;
    }
    // Directories are walked one after the other, and each lists its own names first.
    walk.found.retain(|difference| difference.old.is_none() || difference.new.is_none() || difference.aspects.any());
    walk.found.sort_by(|a, b| by_components(&a.path, &b.path));
    Ok(walk.found)
}

fn beyond_usual(path: &[u8]) -> usize {
    path.len().saturating_sub(USUAL_PATH)
}

/// The order of a walk: a directory's content directly follows it.
fn by_components(a: &[u8], b: &[u8]) -> Ordering {
    a.split(|byte| *byte == b'/').cmp(b.split(|byte| *byte == b'/'))
}

impl Walk<'_> {
    /// Compares what both trees have at a path; directories are queued.
    fn visit(&mut self, path: Vec<u8>, old: Option<InodeId>, new: Option<InodeId>) -> Result<(), TooDeep> {
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
        if self.long > MOST_PATHS {
            return Err(TooDeep::at(&path));
        }
        if differs {
            self.found.push(Difference { path: path.clone(), old, new, aspects });
        }
        if walked {
            self.stack.push(Pair { path, old: old_directory, new: new_directory, place });
        }
        Ok(())
    }

    fn directory(&mut self, pair: &Pair) -> Result<(), TooDeep> {
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
            self.visit(path, was.map(|entry| entry.inode), is.map(|entry| entry.inode))?;
        }
        if names_changed && let Some(difference) = pair.place.and_then(|place| self.found.get_mut(place)) {
            let only_time = Aspects { mtime: true, ..Aspects::default() };
            if difference.aspects == only_time {
                difference.aspects = Aspects::default();
            }
        }
        Ok(())
    }

    fn is_the_same_entry(&self, was: Option<Entry<'_>>, is: Option<Entry<'_>>) -> bool {
        matches!((was, is), (Some(was), Some(is)) if self.lineage.origin(is.inode) == Some(was.inode))
    }
}
