//! What distinguishes two states of a tree.
//!
//! 1. [`differences`] walks both trees path by path and gives every path at which they differ.
//! 2. [`changes`] reads that as what somebody did: names that went and came with the same inode are renames.
//!
//! Neither reads content: whoever compares knows by other means which files are the same ([`Lineage`]).

mod changes;
mod deep;
mod walk;

pub use changes::{Change, ChangeKind, changes};
pub use deep::TooDeep;
pub use walk::{MOST_PATHS, differences, differences_but_deep};

use crate::{FileType, InodeId, Timestamp, Tree};

/// What is known of how the newer tree came from the older.
pub trait Lineage {
    /// The inode of the older tree that `new` has been since then, under whatever names; `None` for one that was made
    /// later, and where nothing is known.
    fn origin(&self, new: InodeId) -> Option<InodeId>;

    /// Whether two regular files of the same size hold the same bytes. It may say no where it cannot know.
    fn same_content(&self, old: InodeId, new: InodeId) -> bool;

    /// The files of the older tree in which bytes of the file `new` lie: without them it cannot be read.
    fn lenders(&self, new: InodeId) -> Vec<InodeId> {
        self.origin(new).into_iter().collect()
    }

    /// A time of the older tree as the newer one would hold it, where that has a smaller range.
    fn as_stored(&self, time: Timestamp) -> Timestamp {
        time
    }
}

/// In what an inode differs from another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aspects {
    /// What kind of object it is.
    pub file_type: bool,
    /// A file's bytes, a symlink's target or a device node's number.
    pub content: bool,
    /// It is another object of the older tree, of the same content or not: one that was renamed over this path, or linked in its
    /// place. Never so of directories.
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
    /// Whether there is any difference.
    pub fn any(self) -> bool {
        self != Aspects::default()
    }

    /// Whether more than attributes differ.
    pub fn beyond_attributes(self) -> bool {
        self.file_type || self.content
    }

    /// The differences between `old` and `new`. Sizes of regular files decide before `lineage` is asked.
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
            mode: was.file_type() != FileType::Symlink && (was.mode() ^ is.mode()) & PERMISSIONS != 0,
            owner: (was.uid(), was.gid()) != (is.uid(), is.gid()),
            mtime: lineage.as_stored(was.mtime()) != is.mtime(),
            xattrs: old.0.xattrs(was.xattrs()) != new.0.xattrs(is.xattrs()),
        }
    }
}

/// A path at which two trees differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// From the root, without a leading slash; empty for the root itself.
    pub path: Vec<u8>,
    /// What is there in the older tree.
    pub old: Option<InodeId>,
    /// What is there in the newer tree.
    pub new: Option<InodeId>,
    /// In what they differ; nothing where one is missing.
    pub aspects: Aspects,
}
