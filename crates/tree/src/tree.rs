//! [`Tree`]: stores an immutable tree in four flat tables and an arena of names.

use std::ops::Range;
use std::sync::Arc;

use crate::{FileType, Inode, InodeId};

/// One extended attribute: its full name (`user.x`, `security.capability`, `system.posix_acl_access`) and its value
/// as `getxattr` gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xattr {
    /// Name with its namespace, without a final NUL.
    pub name: Box<[u8]>,
    /// Value.
    pub value: Box<[u8]>,
}

/// The id of a set of extended attributes that any number of inodes share; 0 is the empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrSetId(pub u32);

impl XattrSetId {
    /// No extended attributes.
    pub const NONE: XattrSetId = XattrSetId(0);
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// 1 to [`NAME_MAX`](crate::NAME_MAX) bytes, never `/`, NUL, `.` or `..`; not always UTF-8.
    pub name: &'a [u8],
    /// The inode it names.
    pub inode: InodeId,
}

/// A range of a file that holds data, in bytes. Between ranges are holes, which read as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataRange {
    /// Where in the file it starts.
    pub offset: u64,
    /// How long it is; never 0.
    pub length: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RawEntry {
    pub(crate) name: u32,
    pub(crate) inode: InodeId,
    /// The directory it is in.
    pub(crate) parent: InodeId,
    pub(crate) name_len: u16,
}

/// A directory's slice of the entry table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawDirectory {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// An immutable snapshot of a file tree; see the crate's page.
#[derive(Debug)]
pub struct Tree {
    pub(crate) inodes: Vec<Inode>,
    pub(crate) entries: Vec<RawEntry>,
    pub(crate) directories: Vec<RawDirectory>,
    pub(crate) names: Vec<u8>,
    pub(crate) targets: Vec<Range<u32>>,
    pub(crate) target_bytes: Vec<u8>,
    pub(crate) sparse: Vec<Box<[DataRange]>>,
    pub(crate) xattr_sets: Vec<Arc<[Xattr]>>,
}

impl Tree {
    /// Number of inodes including the root; ids are `0..inode_count`.
    pub fn inode_count(&self) -> u32 {
        self.inodes.len() as u32
    }

    /// Number of names without the root: what `find -mindepth 1` prints.
    pub fn entry_count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// An inode's attributes. Panics if the id is not in this tree.
    pub fn inode(&self, id: InodeId) -> &Inode {
        &self.inodes[id.index()]
    }

    /// All inodes in order of their ids.
    pub fn inodes(&self) -> impl ExactSizeIterator<Item = (InodeId, &Inode)> {
        self.inodes.iter().enumerate().map(|(i, inode)| (InodeId(i as u32), inode))
    }

    /// A directory's entries, sorted by name bytes, without `.` and `..`; empty for anything else.
    pub fn entries(&self, dir: InodeId) -> Entries<'_> {
        Entries { tree: self, raw: self.entries[self.entry_range(dir)].iter() }
    }

    /// The first inode with a name of more than `bytes` bytes, in the order of entries; none if no name is so long.
    pub fn longer_name(&self, bytes: usize) -> Option<InodeId> {
        self.entries.iter().find(|raw| usize::from(raw.name_len) > bytes).map(|raw| raw.inode)
    }

    /// A directory's entries, each with its index in the table of all entries.
    pub(crate) fn indexed_entries(&self, dir: InodeId) -> impl Iterator<Item = (usize, Entry<'_>)> {
        self.entry_range(dir).zip(self.entries(dir))
    }

    /// What a name in a directory leads to.
    pub fn find(&self, dir: InodeId, name: &[u8]) -> Option<InodeId> {
        self.find_entry(dir, name).map(|(_, inode)| inode)
    }

    /// The entry of this name in a directory: its index in the table of all entries, and its inode.
    pub(crate) fn find_entry(&self, dir: InodeId, name: &[u8]) -> Option<(usize, InodeId)> {
        let range = self.entry_range(dir);
        let entries = &self.entries[range.clone()];
        let found = entries.binary_search_by(|raw| self.name(raw).cmp(name)).ok()?;
        Some((range.start + found, entries[found].inode))
    }

    /// A directory's slice of the table of entries; empty for anything else.
    fn entry_range(&self, dir: InodeId) -> Range<usize> {
        let inode = self.inode(dir);
        match (inode.file_type(), self.directories.get(inode.detail as usize)) {
            (FileType::Directory, Some(d)) => d.first as usize..(d.first + d.count) as usize,
            _ => 0..0,
        }
    }

    /// An inode's parent directory (that of its first name, if it has several); the root's parent is the root.
    pub fn parent(&self, id: InodeId) -> InodeId {
        match self.entries.get(self.inode(id).entry as usize) {
            Some(entry) => entry.parent,
            None => InodeId::ROOT,
        }
    }

    /// A symlink's target: 1 to 4095 bytes; empty for anything else.
    pub fn symlink_target(&self, id: InodeId) -> &[u8] {
        let inode = self.inode(id);
        match (inode.file_type(), self.targets.get(inode.detail as usize)) {
            (FileType::Symlink, Some(r)) => &self.target_bytes[r.start as usize..r.end as usize],
            _ => &[],
        }
    }

    /// The ranges of a sparse regular file that hold data: ascending, disjoint, within its size. `None` for a file
    /// without holes, whose one range is `0..size`.
    pub fn sparse_ranges(&self, id: InodeId) -> Option<&[DataRange]> {
        let inode = self.inode(id);
        match inode.file_type() {
            FileType::Regular => self.sparse.get(inode.detail as usize).map(|ranges| &**ranges),
            _ => None,
        }
    }

    /// A set of extended attributes, sorted by name.
    pub fn xattrs(&self, set: XattrSetId) -> &[Xattr] {
        self.xattr_sets.get(set.0 as usize).map_or(&[], |set| set)
    }

    /// The path from the root to an inode (by its first name), without a leading slash; empty for the root.
    pub fn path(&self, id: InodeId) -> Vec<u8> {
        let mut names = Vec::new();
        let mut entry = self.inode(id).entry;
        while let Some(raw) = self.entries.get(entry as usize) {
            names.push(self.name(raw));
            entry = self.inode(raw.parent).entry;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Resolves a path from the root; `None` if a component is missing. Follows no symlinks.
    pub fn lookup(&self, path: &[u8]) -> Option<InodeId> {
        let mut at = InodeId::ROOT;
        for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            (_, at) = self.find_entry(at, name)?;
        }
        Some(at)
    }

    /// Bytes of memory that the tree uses, within a few percent: the content of its tables, without the allocator's
    /// overhead.
    pub fn memory_bytes(&self) -> usize {
        let xattr = |xattr: &Xattr| size_of::<Xattr>() + xattr.name.len() + xattr.value.len();
        let sets: usize = self.xattr_sets.iter().flat_map(|set| set.iter()).map(xattr).sum();
        let ranges: usize = self.sparse.iter().map(|ranges| size_of_val(&**ranges)).sum();
        self.inodes.capacity() * size_of::<Inode>()
            + self.entries.capacity() * size_of::<RawEntry>()
            + self.directories.capacity() * size_of::<RawDirectory>()
            + self.names.capacity()
            + self.targets.capacity() * size_of::<Range<u32>>()
            + self.target_bytes.capacity()
            + self.sparse.capacity() * size_of::<Box<[DataRange]>>()
            + self.xattr_sets.capacity() * size_of::<Arc<[Xattr]>>()
            + ranges
            + sets
    }

    fn name(&self, raw: &RawEntry) -> &[u8] {
        &self.names[raw.name as usize..raw.name as usize + usize::from(raw.name_len)]
    }
}

/// Iterator over a directory's entries; see [`Tree::entries`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    tree: &'a Tree,
    raw: std::slice::Iter<'a, RawEntry>,
}

impl<'a> Entries<'a> {
    /// The entry `index` places after the next one; does not advance the iterator.
    pub fn get(&self, index: usize) -> Option<Entry<'a>> {
        let raw = self.raw.as_slice().get(index)?;
        Some(Entry { name: self.tree.name(raw), inode: raw.inode })
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let raw = self.raw.next()?;
        Some(Entry { name: self.tree.name(raw), inode: raw.inode })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.raw.size_hint()
    }
}

impl ExactSizeIterator for Entries<'_> {}
