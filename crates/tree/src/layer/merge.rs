//! Merges a layer over a tree.

use std::collections::{HashMap, HashSet};

use super::draft::{attributes, join};
use super::{Identity, Layer, Mark, Name};
use crate::{Attributes, BuildError, Builder, Entry, FileType, InodeId, Tree, XattrSetId};

/// A tree with a layer merged over it.
#[derive(Debug)]
pub struct Merged {
    /// Names and attributes.
    pub tree: Tree,
    /// For each of its inodes, whether it comes from the lower tree or the layer.
    pub origins: Vec<Origin>,
    /// For each of the layer's lenders, the lower tree's file, if it is unchanged.
    pub lent: Vec<Option<InodeId>>,
    /// Names that both sides changed, in the order of their paths.
    pub conflicts: Vec<Conflict>,
}

/// Where an inode of a merged tree comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The lower tree.
    Lower(InodeId),
    /// The layer.
    Upper(InodeId),
}

/// A path that both sides changed; the layer won.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// From the root, without a leading slash.
    pub path: Vec<u8>,
    /// What changed in the lower tree.
    pub below: Below,
}

/// How the lower tree changed at a path that the layer changed too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Below {
    /// It has something new.
    Added,
    /// It has something else, or the same inode in another state.
    Changed,
    /// It has nothing any more.
    Removed,
}

/// Merges `layer` over `lower`, which may be another state of the tree that the layer was made over.
///
/// A directory that the layer deletes stays if the lower tree has something in it that the layer does not know.
///
/// # Errors
/// The tree would be too large.
pub fn merge(lower: &Tree, layer: &Layer) -> Result<Merged, BuildError> {
    let mut merge = Merge::new(lower, layer)?;
    let root = Task { lower: Some(InodeId::ROOT), upper: Some(InodeId::ROOT), at: InodeId::ROOT };
    let mut tasks = vec![root];
    while let Some(task) = tasks.pop() {
        let first = tasks.len();
        merge.directory(&task, &mut tasks)?;
        if let Some(new) = tasks.get_mut(first..) {
            new.reverse();
        }
    }
    merge.finish()
}

/// A directory to be listed.
struct Task {
    lower: Option<InodeId>,
    upper: Option<InodeId>,
    at: InodeId,
}

struct Merge<'a> {
    lower: &'a Tree,
    layer: &'a Layer,
    builder: Builder,
    origins: Vec<Origin>,
    lent: Vec<Option<InodeId>>,
    /// The lower tree's files to which the layer adds names.
    linked: HashSet<InodeId>,
    /// Inodes of the new tree by those of the lower tree and the layer, for inodes with several names.
    lower_made: HashMap<InodeId, InodeId>,
    upper_made: HashMap<InodeId, InodeId>,
    /// The new tree's sets of extended attributes, by the lower tree's.
    xattrs: HashMap<XattrSetId, XattrSetId>,
    /// For each of the layer's inodes, whether the layer changes something at or below it.
    fills: Vec<bool>,
    /// Whether the layer deletes everything in a directory of the lower tree.
    emptied: HashMap<InodeId, bool>,
    /// By path, what was in directories that the layer replaced by something else.
    hidden: HashMap<&'a [u8], Identity>,
    conflicts: Vec<Conflict>,
}

impl<'a> Merge<'a> {
    fn new(lower: &'a Tree, layer: &'a Layer) -> Result<Merge<'a>, BuildError> {
        let (below, above) = (lower.inode(InodeId::ROOT), layer.tree.inode(InodeId::ROOT));
        let changed = layer.root.mark == Mark::Changed;
        let (tree, root) = if changed { (&*layer.tree, above) } else { (lower, below) };
        // The mtime is the later of the two: when names in it last changed.
        let mtime = if changed { above.mtime() } else { below.mtime().max(above.mtime()) };
        let mut builder = Builder::with_capacity(
            &Attributes { mtime, ..attributes(root, XattrSetId::NONE) },
            lower.entry_count() as usize + layer.tree.entry_count() as usize,
            lower.entry_count() as usize * 12,
        )?;
        if root.xattrs() != XattrSetId::NONE {
            let set = builder.intern_xattrs(tree.xattrs(root.xattrs()).to_vec());
            builder.set_xattrs(InodeId::ROOT, set)?;
        }
        let still = |lender: &super::Lender| lower.lookup(&lender.path).filter(|id| lender.identity.is(lower, *id));
        let mut conflicts = Vec::new();
        if changed && layer.root.was.is_some_and(|was| !was.is(lower, InodeId::ROOT)) {
            conflicts.push(Conflict { path: Vec::new(), below: Below::Changed });
        }
        let lent: Vec<Option<InodeId>> = layer.lenders.iter().map(still).collect();
        let links = layer.sources.iter().filter_map(|source| source.link);
        let linked = links.filter_map(|at| lent.get(at as usize).copied().flatten()).collect();
        Ok(Merge {
            lower,
            layer,
            builder,
            origins: vec![if changed { Origin::Upper(InodeId::ROOT) } else { Origin::Lower(InodeId::ROOT) }],
            lent,
            linked,
            lower_made: HashMap::new(),
            upper_made: HashMap::new(),
            xattrs: HashMap::new(),
            fills: fills(layer),
            emptied: HashMap::new(),
            hidden: layer.hidden.iter().map(|(path, was)| (&path[..], *was)).collect(),
            conflicts,
        })
    }

    fn directory(&mut self, task: &Task, tasks: &mut Vec<Task>) -> Result<(), BuildError> {
        self.builder.list(task.at)?;
        let (lower, layer) = (self.lower, self.layer);
        let mut below = task.lower.map(|id| lower.entries(id)).into_iter().flatten().peekable();
        let mut above = task.upper.map(|id| layer.tree.indexed_entries(id)).into_iter().flatten().peekable();
        loop {
            let order = match (below.peek(), above.peek()) {
                (Some(lower), Some((_, upper))) => lower.name.cmp(upper.name),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (None, None) => return Ok(()),
            };
            let lower = if order.is_le() { below.next() } else { None };
            let upper = if order.is_ge() { above.next() } else { None };
            let next = match (lower, upper) {
                (lower, Some((index, upper))) => {
                    let said = layer.names.get(index).copied();
                    let said = said.unwrap_or(Name { mark: Mark::Passing, was: None });
                    self.both(task.upper.unwrap_or(InodeId::ROOT), lower, upper, said)?
                }
                (Some(lower), None) => self.add_lower(lower, None)?,
                (None, None) => None,
            };
            tasks.extend(next);
        }
    }

    /// Adds a name that the layer has, and perhaps the lower tree too.
    fn both(
        &mut self,
        directory: InodeId,
        lower: Option<Entry<'a>>,
        upper: Entry<'a>,
        said: Name,
    ) -> Result<Option<Task>, BuildError> {
        let below = lower.map(|entry| self.lower.inode(entry.inode));
        let is_directory = |inode: &crate::Inode| inode.file_type() == FileType::Directory;
        let lower_directory = lower.filter(|_| below.is_some_and(is_directory));
        let upper_directory = is_directory(self.layer.tree.inode(upper.inode));
        if let Some(what) = self.conflict(lower.map(|entry| entry.inode), said, upper.inode) {
            let path = join(self.layer.tree.path(directory), upper.name);
            self.conflicts.push(Conflict { path, below: what });
        }
        match (said.mark, lower) {
            (Mark::Deleted, None) => Ok(None),
            (Mark::Deleted, Some(lower)) => {
                let stays =
                    upper_directory && lower_directory.is_some_and(|lower| !self.is_emptied(lower.inode, upper.inode));
                if stays {
                    return self.add_lower(lower, Some(upper.inode));
                }
                if lower_directory.is_some() {
                    self.look_below(lower.inode, upper_directory.then_some(upper.inode));
                }
                Ok(None)
            }
            (Mark::Passing, Some(lower)) if lower_directory.is_some() => self.add_lower(lower, Some(upper.inode)),
            (Mark::Passing, lower) => match (self.fills.get(upper.inode.index()), lower) {
                (Some(true), _) => self.add_upper(upper, None),
                (_, Some(lower)) => self.add_lower(lower, None),
                (_, None) => Ok(None),
            },
            (Mark::Changed, _) => {
                let under = lower_directory.filter(|_| upper_directory).map(|entry| entry.inode);
                if let Some(replaced) = lower_directory.filter(|_| !upper_directory) {
                    self.look_below(replaced.inode, None);
                }
                self.add_upper(upper, under)
            }
        }
    }

    /// Finds conflicts in a directory of the lower tree that the layer removed with its content. `upper` is the layer's
    /// directory in its place, if there is one.
    fn look_below(&mut self, lower: InodeId, upper: Option<InodeId>) {
        let mut tasks = vec![(lower, upper)];
        while let Some((lower, upper)) = tasks.pop() {
            for entry in self.lower.entries(lower) {
                let inode = self.lower.inode(entry.inode);
                let found = upper.and_then(|upper| self.layer.tree.find_entry(upper, entry.name));
                let path = join(self.lower.path(lower), entry.name);
                let was = match found {
                    Some((index, _)) => self.layer.names.get(index).and_then(|name| name.was),
                    None => self.hidden.get(&path[..]).copied(),
                };
                match was {
                    None => self.conflicts.push(Conflict { path, below: Below::Added }),
                    Some(was) if !was.is(self.lower, entry.inode) => {
                        self.conflicts.push(Conflict { path, below: Below::Changed })
                    }
                    Some(_) => {}
                }
                if inode.file_type() == FileType::Directory {
                    let above = found.map(|(_, id)| id);
                    tasks.push((
                        entry.inode,
                        above.filter(|id| self.layer.tree.inode(*id).file_type() == FileType::Directory),
                    ));
                }
            }
        }
    }

    /// Whether the lower tree changed a name that the layer changed too.
    fn conflict(&self, below: Option<InodeId>, said: Name, upper: InodeId) -> Option<Below> {
        let is_directory = |tree: &Tree, id: InodeId| tree.inode(id).file_type() == FileType::Directory;
        if said.mark == Mark::Passing {
            return below.is_none_or(|id| !is_directory(self.lower, id)).then_some(match below {
                Some(_) => Below::Changed,
                None => Below::Removed,
            });
        }
        match (said.was, below) {
            (None, None) => None,
            // Both made a directory: their names are merged.
            (None, Some(id)) if is_directory(self.lower, id) && is_directory(&self.layer.tree, upper) => {
                let [below, above] =
                    [(self.lower, id), (&*self.layer.tree, upper)].map(|(tree, id)| Identity::of(tree, id));
                (said.mark == Mark::Changed && !above.has_attributes_of(&below)).then_some(Below::Added)
            }
            (None, Some(_)) => (said.mark == Mark::Changed).then_some(Below::Added),
            (Some(_), None) => (said.mark == Mark::Changed).then_some(Below::Removed),
            (Some(was), Some(id)) => (!was.is(self.lower, id)).then_some(Below::Changed),
        }
    }

    /// Whether the layer deletes everything in a directory of the lower tree. Also finds the answer for its
    /// subdirectories, without recursion.
    fn is_emptied(&mut self, lower: InodeId, upper: InodeId) -> bool {
        // A directory comes after its subdirectories.
        let mut order = vec![(lower, upper)];
        let mut next = 0;
        while let Some((lower, upper)) = order.get(next).copied() {
            next += 1;
            if self.emptied.contains_key(&lower) {
                continue;
            }
            for entry in self.lower.entries(lower) {
                if self.lower.inode(entry.inode).file_type() == FileType::Directory
                    && let Some((_, above)) = self.layer.tree.find_entry(upper, entry.name)
                {
                    order.push((entry.inode, above));
                }
            }
        }
        for (lower, upper) in order.into_iter().rev() {
            if !self.emptied.contains_key(&lower) {
                let emptied = self.lower.entries(lower).all(|entry| self.is_gone(entry, upper));
                self.emptied.insert(lower, emptied);
            }
        }
        self.emptied.get(&lower).copied().unwrap_or(false)
    }

    /// Whether the layer's directory `upper` deletes a name of the lower tree with everything in it.
    fn is_gone(&self, entry: Entry<'_>, upper: InodeId) -> bool {
        let Some((index, above)) = self.layer.tree.find_entry(upper, entry.name) else { return false };
        let deleted = self.layer.names.get(index).is_some_and(|name| name.mark == Mark::Deleted);
        let is_directory = |tree: &Tree, id: InodeId| tree.inode(id).file_type() == FileType::Directory;
        let filled = is_directory(self.lower, entry.inode)
            && is_directory(&self.layer.tree, above)
            && !self.emptied.get(&entry.inode).copied().unwrap_or(false);
        deleted && !filled
    }

    /// Adds a name of the lower tree. A directory continues with the layer's names in `upper`.
    fn add_lower(&mut self, entry: Entry<'_>, upper: Option<InodeId>) -> Result<Option<Task>, BuildError> {
        if let Some(id) = self.lower_made.get(&entry.inode) {
            self.builder.link(entry.name, *id)?;
            return Ok(None);
        }
        let tree = self.lower;
        let id = self.make_lower(entry.name, entry.inode, upper)?;
        let directory = tree.inode(entry.inode).file_type() == FileType::Directory;
        Ok(directory.then_some(Task { lower: Some(entry.inode), upper, at: id }))
    }

    /// `upper` is the layer's directory of that name, if it changes names in it.
    fn make_lower(&mut self, name: &[u8], lower: InodeId, upper: Option<InodeId>) -> Result<InodeId, BuildError> {
        let tree = self.lower;
        let inode = tree.inode(lower);
        let xattrs = match inode.xattrs() {
            XattrSetId::NONE => XattrSetId::NONE,
            set => match self.xattrs.get(&set) {
                Some(known) => *known,
                None => {
                    let new = self.builder.intern_xattrs(tree.xattrs(set).to_vec());
                    self.xattrs.insert(set, new);
                    new
                }
            },
        };
        // The mtime is the later of the two: when names in it last changed.
        let above = upper.map_or(inode.mtime(), |upper| self.layer.tree.inode(upper).mtime());
        let attributes = Attributes { mtime: inode.mtime().max(above), ..attributes(inode, xattrs) };
        let id = self.builder.add(name, &attributes)?;
        self.origins.push(Origin::Lower(lower));
        self.add_detail((tree, lower), (tree, lower), id)?;
        if inode.file_type() != FileType::Directory && (inode.links() > 1 || self.linked.contains(&lower)) {
            self.lower_made.insert(lower, id);
        }
        Ok(id)
    }

    /// Adds a name of the layer. A directory continues with the lower tree's names in `under`.
    fn add_upper(&mut self, entry: Entry<'_>, under: Option<InodeId>) -> Result<Option<Task>, BuildError> {
        let upper = entry.inode;
        if let Some(id) = self.upper_made.get(&upper) {
            self.builder.link(entry.name, *id)?;
            return Ok(None);
        }
        let source = self.layer.source(upper);
        let lent = |at: Option<u32>| at.and_then(|at| self.lent.get(at as usize).copied().flatten());
        if let Some(lower) = lent(source.link) {
            match self.lower_made.get(&lower) {
                Some(id) => self.builder.link(entry.name, *id)?,
                // The lower tree's name comes later.
                None => {
                    self.make_lower(entry.name, lower, None)?;
                }
            }
            return Ok(None);
        }
        let tree = &*self.layer.tree;
        let inode = tree.inode(upper);
        let xattrs = match inode.xattrs() {
            XattrSetId::NONE => XattrSetId::NONE,
            set => self.builder.intern_xattrs(tree.xattrs(set).to_vec()),
        };
        // The file that lends all the bytes gives size and holes: it may have changed since.
        let below = self.layer.whole_lender(self.lower, upper);
        let lender = below.map_or((tree, upper), |lower| (self.lower, lower));
        let was = self.layer.origin(upper).and_then(|at| self.layer.lenders.get(at)).map(|lender| lender.identity);
        let attributes = match (below, was) {
            (Some(lower), Some(was)) => was.with_changes_of(&attributes(inode, xattrs), self.lower.inode(lower)),
            _ => attributes(inode, xattrs),
        };
        let id = self.builder.add(entry.name, &attributes)?;
        self.origins.push(Origin::Upper(upper));
        self.add_detail((tree, upper), lender, id)?;
        let directory = inode.file_type() == FileType::Directory;
        if !directory && inode.links() > 1 {
            self.upper_made.insert(upper, id);
        }
        Ok(directory.then_some(Task { lower: under, upper: Some(upper), at: id }))
    }

    /// Sets a symlink's target, or the holes of a file whose bytes are those of `content`.
    fn add_detail(
        &mut self,
        (tree, of): (&Tree, InodeId),
        content: (&Tree, InodeId),
        id: InodeId,
    ) -> Result<(), BuildError> {
        match tree.inode(of).file_type() {
            FileType::Symlink => self.builder.set_target(id, tree.symlink_target(of)),
            FileType::Regular => match content.0.sparse_ranges(content.1) {
                Some(ranges) => self.builder.set_sparse(id, ranges),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn finish(self) -> Result<Merged, BuildError> {
        let mut conflicts = self.conflicts;
        conflicts.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Merged { tree: self.builder.finish()?, origins: self.origins, lent: self.lent, conflicts })
    }
}

/// For each inode of a layer, whether the layer changes something at or below it.
fn fills(layer: &Layer) -> Vec<bool> {
    let tree = &layer.tree;
    let mut fills = vec![false; tree.inode_count() as usize];
    // A directory's content has larger numbers than the directory.
    for directory in (0..tree.inode_count()).rev().map(InodeId) {
        for (index, entry) in tree.indexed_entries(directory) {
            let changed = layer.names.get(index).is_some_and(|name| name.mark == Mark::Changed);
            let filled = changed || fills.get(entry.inode.index()).copied().unwrap_or(false);
            if filled && let Some(fill) = fills.get_mut(directory.index()) {
                *fill = true;
            }
        }
    }
    fills
}
