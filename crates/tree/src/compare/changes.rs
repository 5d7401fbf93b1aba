//! Turns differences between two trees into changes: added, changed, deleted, renamed.

use std::collections::{HashMap, HashSet};

use super::{Aspects, Difference, Lineage};
use crate::{FileType, InodeId, Tree};

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The path is new.
    Added,
    /// Its content, target or file type changed.
    Changed,
    /// The path was removed.
    Deleted,
    /// The path had another name before.
    Renamed,
    /// Only attributes changed.
    Attributes,
}

/// A change of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its kind.
    pub kind: ChangeKind,
    /// The path in the newer tree, or in the older tree if it was deleted; without a leading slash.
    pub path: Vec<u8>,
    /// The path in the older tree, if it differs.
    pub from: Option<Vec<u8>>,
    /// For a new name of a file (never of a directory) that has other names: one of these, an older one or else the first that was added.
    pub link_to: Option<Vec<u8>>,
    /// The inode in the older tree.
    pub old: Option<InodeId>,
    /// The inode in the newer tree.
    pub new: Option<InodeId>,
    /// What differs.
    pub aspects: Aspects,
}

/// Turns the `differences` of two trees into changes, in the same order. An inode that has a new name was renamed. Of a
/// renamed directory only the other changes in it are reported.
pub fn changes(old: &Tree, new: &Tree, differences: &[Difference], lineage: &dyn Lineage) -> Vec<Change> {
    let mut reader = Reader {
        old,
        new,
        lineage,
        names: HashMap::new(),
        left: HashMap::new(),
        moved: HashMap::new(),
        firsts: HashMap::new(),
    };
    reader.find_names(differences);
    let changes: Vec<Change> = differences.iter().filter_map(|difference| reader.read(difference)).collect();
    let moved: HashSet<&[u8]> = reader.moved.values().map(Vec::as_slice).collect();
    changes
        .into_iter()
        .filter(|change| change.kind != ChangeKind::Deleted || !moved.contains(&change.path[..]))
        .collect()
}

struct Reader<'a> {
    old: &'a Tree,
    new: &'a Tree,
    lineage: &'a dyn Lineage,
    /// All names of the older tree's inodes with several names.
    names: HashMap<InodeId, Vec<Vec<u8>>>,
    /// For inodes of the older tree: the names that no longer lead to them and are not yet used for a rename.
    left: HashMap<InodeId, Vec<Vec<u8>>>,
    /// For a path, the path it was renamed from.
    moved: HashMap<Vec<u8>, Vec<u8>>,
    /// The first names of new files with several names.
    firsts: HashMap<InodeId, Vec<u8>>,
}

impl Reader<'_> {
    /// Finds all names of inodes with several names, if the differences contain any.
    fn find_names(&mut self, differences: &[Difference]) {
        let origins = differences.iter().filter_map(|difference| self.lineage.origin(difference.new?));
        let mut several: HashMap<InodeId, Vec<Vec<u8>>> =
            origins.filter(|id| self.is_linked(*id)).map(|id| (id, Vec::new())).collect();
        if several.is_empty() {
            return;
        }
        for (id, _) in self.old.inodes().filter(|(_, inode)| inode.file_type() == FileType::Directory) {
            for entry in self.old.entries(id) {
                if let Some(paths) = several.get_mut(&entry.inode) {
                    let mut path = self.old.path(id);
                    if !path.is_empty() {
                        path.push(b'/');
                    }
                    path.extend_from_slice(entry.name);
                    paths.push(path);
                }
            }
        }
        self.names = several;
    }

    fn is_linked(&self, id: InodeId) -> bool {
        let inode = self.old.inode(id);
        inode.file_type() != FileType::Directory && inode.links() > 1
    }

    fn names_of(&self, id: InodeId) -> Vec<Vec<u8>> {
        self.names.get(&id).cloned().unwrap_or_else(|| vec![self.old.path(id)])
    }

    /// Whether `path` leads to the inode that was `old`.
    fn still_leads_to(&self, path: &[u8], old: InodeId) -> bool {
        self.new.lookup(path).and_then(|id| self.lineage.origin(id)) == Some(old)
    }

    fn read(&mut self, difference: &Difference) -> Option<Change> {
        let Difference { path, old, new, aspects } = difference.clone();
        let change = |kind| Change { kind, path, from: None, link_to: None, old, new, aspects };
        let Some(id) = new else { return Some(change(ChangeKind::Deleted)) };
        let kind = match old {
            None => ChangeKind::Added,
            Some(_) if aspects.beyond_attributes() => ChangeKind::Changed,
            Some(_) => ChangeKind::Attributes,
        };
        match self.lineage.origin(id) {
            Some(origin) if old != Some(origin) => self.read_moved(change(kind), id, origin),
            Some(_) => Some(change(kind)),
            None => Some(Change { link_to: self.first_name(id, &difference.path), ..change(kind) }),
        }
    }

    /// The first name of a new file, if `path` is another of its names.
    fn first_name(&mut self, id: InodeId, path: &[u8]) -> Option<Vec<u8>> {
        let inode = self.new.inode(id);
        if inode.file_type() == FileType::Directory || inode.links() < 2 {
            return None;
        }
        let first = self.firsts.entry(id).or_insert_with(|| path.to_owned());
        (first != path).then(|| first.clone())
    }

    /// Classifies a change at a path that leads to `new`, which was `origin` under other names.
    fn read_moved(&mut self, change: Change, new: InodeId, origin: InodeId) -> Option<Change> {
        let names = self.names_of(origin);
        if !self.left.contains_key(&origin) {
            let left = names.iter().filter(|name| !self.still_leads_to(name, origin)).rev().cloned().collect();
            self.left.insert(origin, left);
        }
        let Some(from) = self.left.get_mut(&origin).and_then(Vec::pop) else {
            // A directory has one name. Its old one is there if the host put something into it meanwhile.
            if self.new.inode(new).file_type() == FileType::Directory {
                return Some(change);
            }
            let kept = names.into_iter().find(|name| self.still_leads_to(name, origin));
            return Some(Change { link_to: Some(kept.unwrap_or_else(|| self.new.path(new))), ..change });
        };
        let aspects = Aspects::between((self.old, origin), (self.new, new), self.lineage);
        let followed = self.followed_its_directory(&change.path, &from);
        self.moved.insert(change.path.clone(), from.clone());
        let kind = match (followed, aspects.beyond_attributes()) {
            (false, _) => ChangeKind::Renamed,
            (true, true) => ChangeKind::Changed,
            (true, false) if aspects.any() => ChangeKind::Attributes,
            (true, false) => return None,
        };
        Some(Change { kind, from: Some(from), old: Some(origin), aspects, ..change })
    }

    /// Whether a path differs only because its directory was renamed.
    fn followed_its_directory(&self, path: &[u8], from: &[u8]) -> bool {
        let split = |path: &[u8]| path.iter().rposition(|byte| *byte == b'/').map(|at| (at, at + 1));
        let (Some((end, name)), from_at) = (split(path), split(from)) else { return false };
        let (from_end, from_name) = from_at.unwrap_or((0, 0));
        path[name..] == from[from_name..]
            && self.moved.get(&path[..end]).is_some_and(|directory| **directory == from[..from_end])
    }
}
