//! The two trees that an apply brings together: the base, which the guest was given, and the tree that the guest left.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use inarch_block::Content;
use inarch_lifecycle::shown;
use inarch_tree::compare::{Aspects, Difference, Lineage};
use inarch_tree::{FileType, Inode, InodeId, Tree};

use super::links::Names;
use super::paths::parent;
use super::progress::Mark;
use crate::OwnersBack;

/// A kept tree as an apply sees it. A difference is identified by its place in the list.
pub(super) struct Sides<'a> {
    /// The host's tree as it was scanned.
    pub base: &'a Tree,
    /// The guest's tree.
    pub guest: &'a Tree,
    /// The content of the guest's files.
    pub content: &'a dyn Content,
    pub lineage: &'a (dyn Lineage + Sync),
    pub owners: &'a OwnersBack,
    pub differences: &'a [Difference],
    /// Files of the guest that are not copied, because they share blocks.
    pub overlapping: HashSet<InodeId>,
    /// Paths that the host, too, had changed before the last command of the run began.
    pub conflicting: HashSet<Vec<u8>>,
    /// Those of them whose version of the guest cannot be read any more.
    pub lost: HashSet<Vec<u8>>,
    source: PathBuf,
    destination: PathBuf,
    pub names: Names,
    index: HashMap<&'a [u8], usize>,
    /// Differences by the marks of their paths, once one is looked for.
    marks: OnceLock<HashMap<Mark, usize>>,
    /// For each difference, the base's inode that became the guest's.
    origins: Vec<Option<InodeId>>,
    /// Inodes of the base that are among `origins`.
    successors: HashSet<InodeId>,
    /// For each inode of the base, the guest's inodes that come and have bytes of it.
    borrowers: HashMap<InodeId, Vec<InodeId>>,
    /// For each inode of the base that goes, files of the guest that have bytes of it and stay on the host, where the
    /// same bytes are in another file.
    quiet_borrowers: HashMap<InodeId, Vec<InodeId>>,
}

/// What [`Sides`] are made of.
pub(super) struct Parts<'a> {
    pub trees: (&'a Tree, &'a Tree),
    pub content: &'a dyn Content,
    pub lineage: &'a (dyn Lineage + Sync),
    pub owners: &'a OwnersBack,
    pub differences: &'a [Difference],
    pub overlapping: HashSet<InodeId>,
    pub conflicting: HashSet<Vec<u8>>,
    pub lost: HashSet<Vec<u8>>,
    /// Where the host has the tree.
    pub source: PathBuf,
    /// Where the guest has it.
    pub destination: PathBuf,
}

impl<'a> Sides<'a> {
    pub fn new(parts: Parts<'a>) -> Sides<'a> {
        let Parts {
            trees: (base, guest), content, lineage, owners, differences, overlapping, conflicting, lost, ..
        } = parts;
        let (source, destination) = (parts.source, parts.destination);
        let names = Names::new(base, guest, differences, lineage);
        let index = differences.iter().enumerate().map(|(i, difference)| (&difference.path[..], i)).collect();
        let origins: Vec<_> =
            differences.iter().map(|difference| difference.new.and_then(|id| lineage.origin(id))).collect();
        let successors = origins.iter().flatten().copied().collect();
        let mut sides = Sides {
            base,
            guest,
            content,
            lineage,
            owners,
            differences,
            overlapping,
            conflicting,
            lost,
            source,
            destination,
            names,
            index,
            marks: OnceLock::new(),
            origins,
            successors,
            borrowers: HashMap::new(),
            quiet_borrowers: HashMap::new(),
        };
        sides.find_borrowers();
        sides.find_quiet_borrowers();
        sides
    }

    fn find_borrowers(&mut self) {
        let mut news: Vec<InodeId> = (0..self.differences.len())
            .filter(|i| self.brings(*i))
            .filter_map(|i| self.new_inode(i).map(|(new, _)| new))
            .collect();
        news.sort_unstable();
        news.dedup();
        for new in news {
            for lender in self.lenders(new) {
                self.borrowers.entry(lender).or_default().push(new);
            }
        }
    }

    fn find_quiet_borrowers(&mut self) {
        let takes = (0..self.differences.len()).filter(|i| self.takes(*i)).filter_map(|i| self.old(i));
        let taken: HashSet<InodeId> = takes.map(|(old, _)| old).collect();
        if taken.is_empty() {
            return;
        }
        let brought = (0..self.differences.len()).filter(|i| self.brings(*i)).filter_map(|i| self.new_inode(i));
        let loud: HashSet<InodeId> = brought.map(|(new, _)| new).collect();
        for (new, inode) in self.guest.inodes() {
            if inode.file_type() != FileType::Regular || loud.contains(&new) {
                continue;
            }
            for lender in self.lenders(new).into_iter().filter(|lender| taken.contains(lender)) {
                self.quiet_borrowers.entry(lender).or_default().push(new);
            }
        }
    }

    /// Where the guest has files that stay on the host, with other attributes at most, and have bytes of a file that
    /// goes.
    pub fn quiet_borrowers(&self, old: InodeId) -> Vec<Vec<u8>> {
        let quiet = self.quiet_borrowers.get(&old);
        quiet.into_iter().flatten().map(|new| self.guest.path(*new)).collect()
    }

    /// The files of the guest that come and have bytes of a file of the base.
    pub fn borrowers(&self, old: InodeId) -> &[InodeId] {
        self.borrowers.get(&old).map_or(&[], Vec::as_slice)
    }

    pub fn path(&self, i: usize) -> &'a [u8] {
        self.differences.get(i).map_or(&[], |difference| &difference.path)
    }

    /// A path of the tree as the host has it, fit to be printed.
    pub fn host_path(&self, path: &[u8]) -> String {
        within(&self.source, path)
    }

    /// A path of the tree as the guest has it, fit to be printed.
    pub fn guest_path(&self, path: &[u8]) -> String {
        within(&self.destination, path)
    }

    /// The difference at a path.
    pub fn at(&self, path: &[u8]) -> Option<usize> {
        self.index.get(path).copied()
    }

    /// The difference whose path has this mark.
    pub fn marked(&self, mark: Mark) -> Option<usize> {
        let marks = || (0..self.differences.len()).map(|i| (Mark::of(self.path(i)), i)).collect();
        let marked: &HashMap<Mark, usize> = self.marks.get_or_init(marks);
        marked.get(&mark).copied()
    }

    /// The difference of the directory that a path is in.
    pub fn above(&self, i: usize) -> Option<usize> {
        let path = self.path(i);
        if path.is_empty() { None } else { self.at(parent(path)) }
    }

    pub fn old(&self, i: usize) -> Option<(InodeId, &'a Inode)> {
        self.differences.get(i)?.old.map(|id| (id, self.base.inode(id)))
    }

    pub fn new_inode(&self, i: usize) -> Option<(InodeId, &'a Inode)> {
        self.differences.get(i)?.new.map(|id| (id, self.guest.inode(id)))
    }

    pub fn origin(&self, i: usize) -> Option<InodeId> {
        self.origins.get(i).copied().flatten()
    }

    pub fn was_directory(&self, i: usize) -> bool {
        self.old(i).is_some_and(|(_, inode)| inode.file_type() == FileType::Directory)
    }

    pub fn is_directory(&self, i: usize) -> bool {
        self.new_inode(i).is_some_and(|(_, inode)| inode.file_type() == FileType::Directory)
    }

    /// Whether only attributes differ, and can be set without a change to another path.
    pub fn in_place(&self, i: usize) -> bool {
        let (Some((old, was)), Some((new, _))) = (self.old(i), self.new_inode(i)) else { return false };
        if self.was_directory(i) && self.is_directory(i) {
            return true;
        }
        let is_beyond = |aspects: Aspects| aspects.beyond_attributes() || aspects.inode;
        let beyond = self.differences.get(i).is_some_and(|difference| is_beyond(difference.aspects));
        // Another name of the host's file may lead to another file in the guest.
        let is_alone = |name: &Vec<u8>| self.guest.lookup(name).is_none_or(|id| id == new);
        let is_the_same = self.origin(i) == Some(old) || !self.successors.contains(&old);
        !beyond && is_the_same && (was.links() == 1 || self.names.of_base(self.base, old).iter().all(is_alone))
    }

    /// The file of the base that gets attributes or another name, if other files have bytes of it. They cannot be read
    /// from it afterwards, since the change looks like somebody else's.
    pub fn touches(&self, i: usize) -> Option<InodeId> {
        let (new, _) = self.new_inode(i).filter(|_| !self.is_directory(i))?;
        let old = match self.in_place(i) {
            true => self.old(i).map(|(old, _)| old),
            false => self.origin(i).filter(|old| self.is_unmodified(*old, new)),
        }?;
        self.borrowers(old).iter().any(|borrower| *borrower != new).then_some(old)
    }

    /// Whether the old object goes and is no directory.
    pub fn takes(&self, i: usize) -> bool {
        self.old(i).is_some() && !self.was_directory(i) && !self.in_place(i)
    }

    /// Whether a new object comes and is no directory.
    pub fn brings(&self, i: usize) -> bool {
        self.new_inode(i).is_some() && !self.is_directory(i) && !self.in_place(i)
    }

    /// Whether a directory comes.
    pub fn brings_directory(&self, i: usize) -> bool {
        self.is_directory(i) && !self.was_directory(i)
    }

    /// Whether a directory goes.
    pub fn takes_directory(&self, i: usize) -> bool {
        self.was_directory(i) && !self.is_directory(i)
    }

    /// The files of the base without which a file of the guest cannot be read.
    pub fn lenders(&self, new: InodeId) -> Vec<InodeId> {
        match self.guest.inode(new).file_type() {
            FileType::Regular => self.lineage.lenders(new),
            _ => Vec::new(),
        }
    }

    /// Whether a file of the guest has the content of the file of the base that it was.
    pub fn is_unmodified(&self, old: InodeId, new: InodeId) -> bool {
        !Aspects::between((self.base, old), (self.guest, new), self.lineage).beyond_attributes()
    }
}

/// A path below `top`, fit to be printed.
fn within(top: &Path, path: &[u8]) -> String {
    match path {
        b"" => shown(top),
        _ => shown(&top.join(OsStr::from_bytes(path))),
    }
}
