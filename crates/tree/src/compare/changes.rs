//! Differences read as what somebody did.

use std::collections::{HashMap, HashSet};

use super::{Aspects, Difference, Lineage};
use crate::{FileType, InodeId, Tree};

/// What was done to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It is new.
    Added,
    /// Its content, target or kind is another one.
    Changed,
    /// It is gone.
    Deleted,
    /// It had another name before.
    Renamed,
    /// Only attributes are others.
    Attributes,
}

/// What was done to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What.
    pub kind: ChangeKind,
    /// The path in the newer tree, or of something that is gone in the older; without a leading slash.
    pub path: Vec<u8>,
    /// Its path in the older tree, where that is another one.
    pub from: Option<Vec<u8>>,
    /// For a name that was added to a file which has another one, an older one or the first of those that were added: that
    /// one.
    pub link_to: Option<Vec<u8>>,
    /// The inode in the older tree.
    pub old: Option<InodeId>,
    /// The inode in the newer tree.
    pub new: Option<InodeId>,
    /// In what the two differ.
    pub aspects: Aspects,
}

/// Reads `differences` of two trees as what somebody did: what has the same inode under a new name was renamed, and of
/// a directory that was renamed only what else changed in it is named. In the order of the differences.
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
    /// All names of the older tree's inodes that have several.
    names: HashMap<InodeId, Vec<Vec<u8>>>,
    /// Of inodes of the older tree, the names that lead to them no more and were not yet taken for a rename.
    left: HashMap<InodeId, Vec<Vec<u8>>>,
    /// From where what is at a path came.
    moved: HashMap<Vec<u8>, Vec<u8>>,
    /// The first names of files that are new and have several.
    firsts: HashMap<InodeId, Vec<u8>>,
}

impl Reader<'_> {
    /// Finds all names of inodes with several, if there are any among the differences.
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

    /// Whether `path` leads to what `old` has become.
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

    /// The first name of a new file, where `path` is another one.
    fn first_name(&mut self, id: InodeId, path: &[u8]) -> Option<Vec<u8>> {
        let inode = self.new.inode(id);
        if inode.file_type() == FileType::Directory || inode.links() < 2 {
            return None;
        }
        let first = self.firsts.entry(id).or_insert_with(|| path.to_owned());
        (first != path).then(|| first.clone())
    }

    /// `change` is of a path that leads to `new`, which was `origin` under other names.
    fn read_moved(&mut self, change: Change, new: InodeId, origin: InodeId) -> Option<Change> {
        let names = self.names_of(origin);
        if !self.left.contains_key(&origin) {
            let left = names.iter().filter(|name| !self.still_leads_to(name, origin)).rev().cloned().collect();
            self.left.insert(origin, left);
        }
        let Some(from) = self.left.get_mut(&origin).and_then(Vec::pop) else {
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

    /// Whether a path is another one only because the directory it is in was renamed.
    fn followed_its_directory(&self, path: &[u8], from: &[u8]) -> bool {
        let split = |path: &[u8]| path.iter().rposition(|byte| *byte == b'/').map(|at| (at, at + 1));
        let (Some((end, name)), from_at) = (split(path), split(from)) else { return false };
        let (from_end, from_name) = from_at.unwrap_or((0, 0));
        path[name..] == from[from_name..]
            && self.moved.get(&path[..end]).is_some_and(|directory| **directory == from[..from_end])
    }
}
