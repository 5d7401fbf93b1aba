//! Compares two states of a tree.
//!
//! 1. [`differences`] walks both trees path by path and returns every path at which they differ.
//! 2. [`changes()`] turns the differences into changes: an inode whose name was removed and added elsewhere was renamed.
//!
//! Neither reads content: the caller knows by other means which files are the same ([`Lineage`]).

mod changes;
mod deep;
mod walk;

pub use changes::{Change, ChangeKind, changes};
pub use deep::TooDeep;
pub use walk::{MOST_PATHS, differences, differences_but_deep};

use crate::{FileType, InodeId, Timestamp, Tree};

/// What is known about how the newer tree came from the older one.
pub trait Lineage {
    /// The older tree's inode that became `new`, whatever its names; `None` for an inode that was made later or about
    /// which nothing is known.
    fn origin(&self, new: InodeId) -> Option<InodeId>;

    /// Whether two regular files of the same size have the same bytes. May return false if that is not known.
    fn same_content(&self, old: InodeId, new: InodeId) -> bool;

    /// The older tree's files that hold bytes of the file `new`: it cannot be read without them.
    fn lenders(&self, new: InodeId) -> Vec<InodeId> {
        self.origin(new).into_iter().collect()
    }

    /// A time of the older tree as the newer tree would store it, if its range is smaller.
    fn as_stored(&self, time: Timestamp) -> Timestamp {
        time
    }
}

/// The aspects in which two inodes differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aspects {
    /// The file type.
    pub file_type: bool,
    /// A file's bytes, a symlink's target or a device node's number.
    pub content: bool,
    /// The path leads to another inode of the older tree: one that was renamed or linked over it, whether or not the
    /// content is the same. Never set for directories.
    pub inode: bool,
    /// Permission bits.
    pub mode: bool,
    /// Owner or group.
    pub owner: bool,
    /// The time of the last change of content.
    pub mtime: bool,
    /// Extended attributes, ACLs among them.
    pub xattrs: bool,
}

impl Aspects {
    /// Whether anything differs.
    pub fn any(self) -> bool {
        self != Aspects::default()
    }

    /// Whether anything but attributes differs.
    pub fn beyond_attributes(self) -> bool {
        self.file_type || self.content
    }

    /// These aspects but `ignored` ones.
    #[must_use]
    pub fn without(self, ignored: Aspects) -> Aspects {
        Aspects {
            file_type: self.file_type && !ignored.file_type,
            content: self.content && !ignored.content,
            inode: self.inode && !ignored.inode,
            mode: self.mode && !ignored.mode,
            owner: self.owner && !ignored.owner,
            mtime: self.mtime && !ignored.mtime,
            xattrs: self.xattrs && !ignored.xattrs,
        }
    }

    /// The differences between `old` and `new`. Compares sizes of regular files before it asks `lineage`.
    pub fn between(old: (&Tree, InodeId), new: (&Tree, InodeId), lineage: &dyn Lineage) -> Aspects {
        const PERMISSIONS: u32 = 0o7777;
        let (was, is) = (old.0.inode(old.1), new.0.inode(new.1));
        let file_type = was.file_type() != is.file_type();
        let content = !file_type
            && match was.file_type() {
                FileType::Regular => was.size() != is.size() || !lineage.same_content(old.1, new.1),
                FileType::Symlink => old.0.symlink_target(old.1) != new.0.symlink_target(new.1),
                FileType::CharDevice | FileType::BlockDevice => was.device() != is.device(),
                FileType::Directory | FileType::Fifo | FileType::Socket => false,
            };
        let inode =
            !file_type && was.file_type() != FileType::Directory && lineage.origin(new.1).is_some_and(|id| id != old.1);
        Aspects {
            file_type,
            content,
            inode,
            // A symlink has no permissions of its own.
            mode: was.file_type() != FileType::Symlink
                && is.file_type() != FileType::Symlink
                && (was.mode() ^ is.mode()) & PERMISSIONS != 0,
            owner: (was.uid(), was.gid()) != (is.uid(), is.gid()),
            mtime: lineage.as_stored(was.mtime()) != is.mtime(),
            xattrs: old.0.xattrs(was.xattrs()) != new.0.xattrs(is.xattrs()),
        }
    }
}

/// A path at which two trees differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Path from the root, without a leading slash; empty for the root itself.
    pub path: Vec<u8>,
    /// The inode in the older tree.
    pub old: Option<InodeId>,
    /// The inode in the newer tree.
    pub new: Option<InodeId>,
    /// What differs; nothing if one of the two is missing.
    pub aspects: Aspects,
}
