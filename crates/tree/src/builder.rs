//! [`Builder`]: makes a [`Tree`] one directory at a time.

use std::collections::HashMap;
use std::sync::Arc;

use crate::inode::Inode;
use crate::tree::{RawDirectory, RawEntry};
use crate::{Attributes, DataRange, FileType, InodeId, Tree, Xattr, XattrSetId};

/// The most bytes of a name: FUSE's limit, and no format that we read allows more. Formats that we write refuse names
/// that they cannot hold.
pub const NAME_MAX: usize = 1024;

/// Why input does not make a valid tree.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// A name that no file system can hold.
    #[error("the name {0:?} is not 1 to {NAME_MAX} bytes without '/' and NUL, or is '.' or '..'")]
    BadName(String),
    /// Names of one directory must be sorted by their bytes, without duplicates.
    #[error("the name {0:?} comes twice, or before one that sorts ahead of it")]
    Unsorted(String),
    /// The mode's type bits name no type.
    #[error("the mode {0:#o} has no file type")]
    BadMode(u32),
    /// The call does not suit the inode.
    #[error("{0}")]
    Misuse(&'static str),
    /// More than 2^32 - 16 inodes or entries, or more than 4 GiB of names.
    #[error("the tree has more entries or names than fit 32 bits")]
    TooLarge,
}

/// Builds a [`Tree`]. Directories may be listed in any order, each at most once, its names sorted.
///
/// The order of the calls decides inode ids and, later, the order of data on a device. List a directory, then its
/// subdirectories in the order of their names: then files that are neighbours on the host are neighbours on the device.
#[derive(Debug)]
pub struct Builder {
    tree: Tree,
    xattr_index: HashMap<Arc<[Xattr]>, XattrSetId>,
    listing: Option<InodeId>,
}

impl Builder {
    /// A tree with only its root directory. Fails if `root` is not a directory.
    pub fn new(root: &Attributes) -> Result<Builder, BuildError> {
        Builder::with_capacity(root, 0, 0)
    }

    /// Like [`Builder::new`], with room reserved for `entries` names of `name_bytes` bytes in all.
    pub fn with_capacity(root: &Attributes, entries: usize, name_bytes: usize) -> Result<Builder, BuildError> {
        if FileType::from_mode(root.mode) != Some(FileType::Directory) {
            return Err(BuildError::Misuse("the root of a tree must be a directory"));
        }
        let mut builder = Builder {
            tree: Tree {
                inodes: Vec::with_capacity(entries + 1),
                entries: Vec::with_capacity(entries),
                directories: Vec::new(),
                names: Vec::with_capacity(name_bytes),
                targets: Vec::new(),
                target_bytes: Vec::new(),
                sparse: Vec::new(),
                xattr_sets: vec![Arc::default()],
            },
            xattr_index: HashMap::from([(Arc::default(), XattrSetId::NONE)]),
            listing: None,
        };
        builder.push_inode(root)?;
        builder.tree.inodes[0].links = 2;
        Ok(builder)
    }

    /// Replaces the root's attributes; it stays a directory. For a source that learns them after it began to build.
    pub fn set_root(&mut self, root: &Attributes) -> Result<(), BuildError> {
        if FileType::from_mode(root.mode) != Some(FileType::Directory) {
            return Err(BuildError::Misuse("the root of a tree must be a directory"));
        }
        if let Some(old) = self.tree.inodes.first_mut() {
            let Inode { links, entry, detail, .. } = *old;
            *old = Inode { links, entry, detail, ..Inode::new(root) };
        }
        Ok(())
    }

    /// Starts listing `dir`: names added from now on are its entries, until the next call.
    pub fn list(&mut self, dir: InodeId) -> Result<(), BuildError> {
        let first = self.tree.entries.len() as u32;
        let next = self.tree.directories.len() as u32;
        match self.tree.inodes.get_mut(dir.index()) {
            Some(inode) if inode.file_type() != FileType::Directory => {
                return Err(BuildError::Misuse("only a directory can be listed"));
            }
            Some(inode) if inode.detail != Inode::NO_DETAIL => {
                return Err(BuildError::Misuse("a directory is listed twice"));
            }
            Some(inode) => inode.detail = next,
            None => return Err(BuildError::Misuse("no such inode")),
        }
        self.tree.directories.push(RawDirectory { first, count: 0 });
        self.listing = Some(dir);
        Ok(())
    }

    /// Adds a new inode under `name` to the directory being listed.
    pub fn add(&mut self, name: &[u8], attributes: &Attributes) -> Result<InodeId, BuildError> {
        let parent = self.check_name(name)?;
        let id = self.push_inode(attributes)?;
        self.push_entry(parent, name, id);
        if self.tree.inodes[id.index()].file_type() == FileType::Directory {
            self.tree.inodes[id.index()].links = 2;
            self.tree.inodes[parent.index()].links += 1;
        }
        Ok(id)
    }

    /// Adds another name of an existing inode: a hard link.
    pub fn link(&mut self, name: &[u8], inode: InodeId) -> Result<(), BuildError> {
        match self.tree.inodes.get(inode.index()) {
            None => return Err(BuildError::Misuse("no such inode")),
            Some(i) if i.file_type() == FileType::Directory => {
                return Err(BuildError::Misuse("a directory has one name"));
            }
            Some(_) => {}
        }
        let parent = self.check_name(name)?;
        self.push_entry(parent, name, inode);
        Ok(())
    }

    /// Sets a symlink's target: 1 to 4095 bytes without NUL.
    pub fn set_target(&mut self, inode: InodeId, target: &[u8]) -> Result<(), BuildError> {
        if target.is_empty() || target.len() > 4095 || target.contains(&0) {
            return Err(BuildError::Misuse("a symlink's target is 1 to 4095 bytes without NUL"));
        }
        let start = u32::try_from(self.tree.target_bytes.len()).map_err(|_| BuildError::TooLarge)?;
        let end = start.checked_add(target.len() as u32).ok_or(BuildError::TooLarge)?;
        let index = self.tree.targets.len() as u32;
        self.set_detail(inode, FileType::Symlink, index)?;
        self.tree.target_bytes.extend_from_slice(target);
        self.tree.targets.push(start..end);
        Ok(())
    }

    /// Sets the ranges of a regular file that hold data; without this call the whole file does. The ranges must ascend,
    /// be disjoint and lie within the file's size.
    pub fn set_sparse(&mut self, inode: InodeId, ranges: &[DataRange]) -> Result<(), BuildError> {
        let size = self.tree.inodes.get(inode.index()).map_or(0, Inode::size);
        let mut end = 0;
        for range in ranges {
            let stop = range.offset.checked_add(range.length);
            if range.length == 0 || range.offset < end || stop.is_none_or(|stop| stop > size) {
                return Err(BuildError::Misuse("data ranges must ascend, be disjoint and lie within the file"));
            }
            end = range.offset + range.length;
        }
        let index = self.tree.sparse.len() as u32;
        self.set_detail(inode, FileType::Regular, index)?;
        self.tree.sparse.push(ranges.into());
        Ok(())
    }

    /// Replaces an inode's set of extended attributes. Needed for the root, which exists before any set.
    pub fn set_xattrs(&mut self, inode: InodeId, set: XattrSetId) -> Result<(), BuildError> {
        let inode = self.tree.inodes.get_mut(inode.index()).ok_or(BuildError::Misuse("no such inode"))?;
        inode.xattrs = set;
        Ok(())
    }

    /// The id of a set of extended attributes; equal sets have the same id, whatever their order.
    pub fn intern_xattrs(&mut self, mut set: Vec<Xattr>) -> XattrSetId {
        set.sort();
        set.dedup_by(|b, a| a.name == b.name);
        if let Some(id) = self.xattr_index.get(&*set) {
            return *id;
        }
        let set: Arc<[Xattr]> = set.into();
        let id = XattrSetId(self.tree.xattr_sets.len() as u32);
        self.tree.xattr_sets.push(Arc::clone(&set));
        self.xattr_index.insert(set, id);
        id
    }

    /// The finished tree. Directories that were never listed are empty. Fails if a symlink has no target.
    pub fn finish(mut self) -> Result<Tree, BuildError> {
        let untargeted = |i: &Inode| i.file_type() == FileType::Symlink && i.detail == Inode::NO_DETAIL;
        if self.tree.inodes.iter().any(untargeted) {
            return Err(BuildError::Misuse("a symlink has no target"));
        }
        self.tree.targets.shrink_to_fit();
        Ok(self.tree)
    }

    fn check_name(&self, name: &[u8]) -> Result<InodeId, BuildError> {
        let lossy = || String::from_utf8_lossy(name).into_owned();
        let Some(parent) = self.listing else {
            return Err(BuildError::Misuse("no directory is being listed"));
        };
        if name.is_empty() || name.len() > NAME_MAX || name == b"." || name == b".." {
            return Err(BuildError::BadName(lossy()));
        }
        if name.iter().any(|b| *b == b'/' || *b == 0) {
            return Err(BuildError::BadName(lossy()));
        }
        let names_fit = u32::try_from(self.tree.names.len() + name.len()).is_ok();
        if !names_fit || self.tree.entries.len() >= (u32::MAX - 16) as usize {
            return Err(BuildError::TooLarge);
        }
        let dir = self.tree.directories.last().filter(|dir| dir.count > 0);
        if let (Some(_), Some(last)) = (dir, self.tree.entries.last()) {
            let last = &self.tree.names[last.name as usize..][..usize::from(last.name_len)];
            if last >= name {
                return Err(BuildError::Unsorted(lossy()));
            }
        }
        Ok(parent)
    }

    fn push_inode(&mut self, attributes: &Attributes) -> Result<InodeId, BuildError> {
        if FileType::from_mode(attributes.mode).is_none() {
            return Err(BuildError::BadMode(attributes.mode));
        }
        // Formats reserve a few inode numbers.
        let id = u32::try_from(self.tree.inodes.len()).ok().filter(|id| *id < u32::MAX - 16);
        let id = InodeId(id.ok_or(BuildError::TooLarge)?);
        self.tree.inodes.push(Inode::new(attributes));
        Ok(id)
    }

    fn push_entry(&mut self, parent: InodeId, name: &[u8], inode: InodeId) {
        let tree = &mut self.tree;
        let index = tree.entries.len() as u32;
        let raw = RawEntry { name: tree.names.len() as u32, inode, parent, name_len: name.len() as u16 };
        tree.entries.push(raw);
        tree.names.extend_from_slice(name);
        if let Some(dir) = tree.directories.last_mut() {
            dir.count += 1;
        }
        let inode = &mut tree.inodes[inode.index()];
        if inode.entry == u32::MAX {
            inode.entry = index;
        }
        inode.links += 1;
    }

    fn set_detail(&mut self, inode: InodeId, wanted: FileType, detail: u32) -> Result<(), BuildError> {
        match self.tree.inodes.get_mut(inode.index()) {
            Some(i) if i.file_type() == wanted && i.detail == Inode::NO_DETAIL => {
                i.detail = detail;
                Ok(())
            }
            _ => Err(BuildError::Misuse("this detail does not belong to that inode, or is given twice")),
        }
    }
}
