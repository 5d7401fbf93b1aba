//! [`select`]: walks a tree and adds what is selected to a new one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::contexts::LABEL;
use super::files::ignore_level;
use super::filter::IgnoreLevel;
use super::only::Marks;
use super::{Filter, Selection};
use crate::{Attributes, BuildError, Builder, FileType, Inode, InodeId, Timestamp, Tree, Xattr, XattrSetId};

/// Reads the first bytes of a regular file of the tree, at most as many as the second argument says; `None` if they
/// cannot be read.
pub type ReadFile<'a> = dyn Fn(InodeId, u64) -> Option<Vec<u8>> + 'a;

/// The result of [`select`].
#[derive(Debug)]
pub struct Selected {
    /// The new tree. Its inodes are numbered in walk order, as every source's are.
    pub tree: Tree,
    /// For each inode of the new tree the old tree's inode that has its content.
    pub origins: Vec<InodeId>,
    /// The number of names that the filter excluded, without the content of excluded directories.
    pub filtered: u64,
    /// Paths of [`Selection::only`] that are not in the tree, in the order of the list.
    pub missing: Vec<Vec<u8>>,
}

/// Applies `selection` to `tree`. `read` reads ignore files.
///
/// Fails only if the new tree is too large for 32 bits, which takes more labels than a tree has room for.
pub fn select(tree: &Tree, selection: &Selection, read: &ReadFile<'_>) -> Result<Selected, BuildError> {
    // The list applies to what the filter left: a symlink to something excluded leads nowhere.
    if selection.only.is_some() && !selection.filter.is_empty() {
        let filter = Selection { filter: selection.filter.clone(), ..Selection::default() };
        let first = Walk::new(tree, &filter, read)?.run()?;
        let rest = Selection { filter: Filter::default(), ..selection.clone() };
        let second = Walk::new(&first.tree, &rest, read)?.run()?;
        let origin = |id: &InodeId| first.origins.get(id.index()).copied().unwrap_or(InodeId::ROOT);
        return Ok(Selected {
            origins: second.origins.iter().map(origin).collect(),
            filtered: first.filtered,
            ..second
        });
    }
    Walk::new(tree, selection, read)?.run()
}

/// `tree` with `directories` (paths from the root) and their parents added, empty and owned by root. If something else
/// is at such a path, or at a parent's, it stays and the directory is not added.
pub fn with_directories(tree: &Tree, directories: &[Vec<u8>]) -> Result<Selected, BuildError> {
    let selection = Selection::default();
    let mut walk = Walk::new(tree, &selection, &|_, _| None)?;
    walk.directories = directories;
    walk.run()
}

/// `tree` without the inodes for which `gone` says so, and without what is below them.
pub fn without(tree: &Tree, gone: &dyn Fn(InodeId) -> bool) -> Result<Selected, BuildError> {
    let selection = Selection::default();
    let mut walk = Walk::new(tree, &selection, &|_, _| None)?;
    walk.marks = Some(Marks::without(tree, gone));
    walk.run()
}

/// What is below the directory `top` of `tree`, which becomes the root.
pub fn beneath(tree: &Tree, top: InodeId) -> Result<Selected, BuildError> {
    let selection = Selection::default();
    Walk::from(top, tree, &selection, &|_, _| None)?.run()
}

/// A directory to be listed.
struct Task {
    /// `None` for a new one.
    old: Option<InodeId>,
    new: InodeId,
    /// From the root, without a leading slash.
    path: Vec<u8>,
    /// The ignore files that apply in it.
    ignore: Option<Arc<IgnoreLevel>>,
    /// Whether the list of paths takes everything below it.
    whole: bool,
}

struct Walk<'a> {
    tree: &'a Tree,
    /// The directory that becomes the root.
    top: InodeId,
    selection: &'a Selection,
    read: &'a ReadFile<'a>,
    marks: Option<Marks>,
    /// Directories to be added.
    directories: &'a [Vec<u8>],
    builder: Builder,
    origins: Vec<InodeId>,
    /// For each old inode its new one, `u32::MAX` if it has none yet.
    taken: Vec<u32>,
    /// New sets of extended attributes, by the old set and the label's index in the contexts.
    sets: HashMap<(XattrSetId, Option<u32>), XattrSetId>,
    filtered: u64,
    missing: Vec<Vec<u8>>,
}

impl<'a> Walk<'a> {
    fn new(tree: &'a Tree, selection: &'a Selection, read: &'a ReadFile<'a>) -> Result<Walk<'a>, BuildError> {
        Walk::from(InodeId::ROOT, tree, selection, read)
    }

    fn from(
        top: InodeId,
        tree: &'a Tree,
        selection: &'a Selection,
        read: &'a ReadFile<'a>,
    ) -> Result<Walk<'a>, BuildError> {
        let resolved = selection.only.as_ref().map(|only| Marks::of(tree, only));
        let (marks, missing) = resolved.unzip();
        let root = tree.inode(top);
        let attributes = Attributes { xattrs: XattrSetId::NONE, ..attributes(root, selection) };
        let mut walk = Walk {
            tree,
            top,
            selection,
            read,
            marks,
            directories: &[],
            builder: Builder::new(&attributes)?,
            origins: vec![top],
            taken: vec![u32::MAX; tree.inode_count() as usize],
            sets: HashMap::new(),
            filtered: 0,
            missing: missing.unwrap_or_default(),
        };
        let xattrs = walk.xattrs(root, b"");
        walk.builder.set_xattrs(InodeId::ROOT, xattrs)?;
        Ok(walk)
    }

    fn run(mut self) -> Result<Selected, BuildError> {
        let whole = self.marks.as_ref().is_none_or(|marks| marks.takes_all_below(self.top));
        let root = Task { old: Some(self.top), new: InodeId::ROOT, path: Vec::new(), ignore: None, whole };
        let mut tasks = vec![root];
        while let Some(task) = tasks.pop() {
            let oldest = tasks.len();
            self.directory(task, &mut tasks)?;
            // The first name must be taken first.
            if let Some(new) = tasks.get_mut(oldest..) {
                new.reverse();
            }
        }
        let Walk { builder, origins, filtered, missing, .. } = self;
        Ok(Selected { tree: builder.finish()?, origins, filtered, missing })
    }

    fn directory(&mut self, task: Task, tasks: &mut Vec<Task>) -> Result<(), BuildError> {
        let tree = self.tree;
        let filter = &self.selection.filter;
        let ignore = match task.old {
            Some(old) => ignore_level(tree, filter, (old, &task.path), task.ignore, self.read),
            None => task.ignore,
        };
        self.builder.list(task.new)?;
        let mut missing = self.directories_in(&task.path);
        let mut path = task.path;
        if !path.is_empty() {
            path.push(b'/');
        }
        let parent = path.len();
        for (index, entry) in task.old.map(|old| tree.indexed_entries(old)).into_iter().flatten() {
            if !task.whole && !self.marks.as_ref().is_some_and(|marks| marks.takes(index)) {
                continue;
            }
            path.truncate(parent);
            path.extend_from_slice(entry.name);
            let inode = tree.inode(entry.inode);
            let directory = inode.file_type() == FileType::Directory;
            if !filter.is_empty() && filter.leaves_out(&path, directory, ignore.as_ref()) {
                self.filtered += 1;
                continue;
            }
            let behind = missing.split_off(entry.name);
            for name in std::mem::replace(&mut missing, behind) {
                tasks.push(self.add_directory(name, &path[..parent])?);
            }
            missing.remove(entry.name);
            let new = self.add(entry.name, entry.inode, &path)?;
            if directory {
                let whole = task.whole || self.marks.as_ref().is_some_and(|marks| marks.takes_all_below(entry.inode));
                let old = Some(entry.inode);
                tasks.push(Task { old, new, path: path.clone(), ignore: ignore.clone(), whole });
            }
        }
        for name in missing {
            tasks.push(self.add_directory(name, &path[..parent])?);
        }
        Ok(())
    }

    /// The names to be added in the directory `path`.
    fn directories_in(&self, path: &[u8]) -> BTreeSet<&'a [u8]> {
        let below = self.directories.iter().filter_map(|directory| match path {
            [] => Some(&directory[..]),
            path => directory.strip_prefix(path)?.strip_prefix(b"/"),
        });
        below.filter_map(|rest| rest.split(|byte| *byte == b'/').next()).filter(|name| !name.is_empty()).collect()
    }

    /// Adds a directory that the old tree does not have to the one with path `above`, which ends in a slash or is
    /// empty.
    fn add_directory(&mut self, name: &[u8], above: &[u8]) -> Result<Task, BuildError> {
        let mtime = self.tree.inode(InodeId::ROOT).mtime();
        let attributes = Attributes { mode: 0o040_755, mtime, ctime: mtime, ..Attributes::default() };
        let new = self.builder.add(name, &attributes)?;
        // It has no content.
        self.origins.push(InodeId::ROOT);
        Ok(Task { old: None, new, path: [above, name].concat(), ignore: None, whole: true })
    }

    /// Adds a name and, if it is the inode's first name, the inode.
    fn add(&mut self, name: &[u8], old: InodeId, path: &[u8]) -> Result<InodeId, BuildError> {
        let seen = self.taken.get(old.index()).copied().filter(|new| *new != u32::MAX);
        if let Some(new) = seen.map(InodeId) {
            self.builder.link(name, new)?;
            return Ok(new);
        }
        let inode = self.tree.inode(old);
        let xattrs = self.xattrs(inode, path);
        let new = self.builder.add(name, &Attributes { xattrs, ..attributes(inode, self.selection) })?;
        if inode.file_type() == FileType::Symlink {
            self.builder.set_target(new, self.tree.symlink_target(old))?;
        }
        if let Some(ranges) = self.tree.sparse_ranges(old) {
            self.builder.set_sparse(new, ranges)?;
        }
        if let Some(taken) = self.taken.get_mut(old.index()) {
            *taken = new.0;
        }
        self.origins.push(old);
        Ok(new)
    }

    /// The new attribute set of `inode`, whose first included name is `path`.
    fn xattrs(&mut self, inode: &Inode, path: &[u8]) -> XattrSetId {
        let contexts = self.selection.contexts.as_deref();
        let label = contexts.and_then(|contexts| contexts.lookup(path, inode.file_type()));
        let key = (inode.xattrs(), label);
        if key == (XattrSetId::NONE, None) {
            return XattrSetId::NONE;
        }
        if let Some(set) = self.sets.get(&key) {
            return *set;
        }
        let mut set = self.tree.xattrs(inode.xattrs()).to_vec();
        for xattr in set.iter_mut().filter(|xattr| xattr.name.starts_with(b"system.posix_acl_")) {
            let mut value = std::mem::take(&mut xattr.value).into_vec();
            self.selection.owners.acl(&mut value);
            xattr.value = value.into();
        }
        if let Some(value) = label.and_then(|label| contexts?.value(label)) {
            set.retain(|xattr| &*xattr.name != LABEL);
            set.push(Xattr { name: LABEL.into(), value });
        }
        let id = self.builder.intern_xattrs(set);
        self.sets.insert(key, id);
        id
    }
}

/// The new attributes of an inode, except its extended attributes.
fn attributes(inode: &Inode, selection: &Selection) -> Attributes {
    let clamped = |time: Timestamp| match selection.epoch {
        Some(epoch) => time.min(Timestamp { seconds: epoch, nanoseconds: 0 }),
        None => time,
    };
    Attributes {
        mode: inode.mode(),
        uid: selection.owners.uid(inode.uid()),
        gid: selection.owners.gid(inode.gid()),
        size: inode.size(),
        mtime: clamped(inode.mtime()),
        ctime: clamped(inode.ctime()),
        source_ino: inode.source_ino(),
        device: inode.device(),
        xattrs: XattrSetId::NONE,
    }
}
