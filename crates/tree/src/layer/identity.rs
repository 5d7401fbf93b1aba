//! [`Identity`]: the attributes that distinguish one state of a host file from another.

use serde::{Deserialize, Serialize};

use crate::{Attributes, FileType, Inode, Timestamp, Tree};

/// What a tree had at a path. Two states are the same if no attribute changed. A directory's times change with the
/// names in it, so for a directory only inode number, permissions and owner count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity {
    mode: u32,
    owner: (u32, u32),
    ino: u64,
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
}

impl Identity {
    /// The identity of an inode of a scan.
    pub fn of(inode: &Inode) -> Identity {
        let time = |time: crate::Timestamp| (time.seconds, time.nanoseconds);
        Identity {
            mode: inode.mode(),
            owner: (inode.uid(), inode.gid()),
            ino: inode.source_ino(),
            size: inode.size(),
            mtime: time(inode.mtime()),
            ctime: time(inode.ctime()),
        }
    }

    /// The attributes of a file whose content the layer did not change. `above` are the layer's, `now` is the lower
    /// tree's file. An attribute that the layer did not change is as it is now. If both changed the mtime, the later
    /// one counts, because its content is newer.
    pub(super) fn with_changes_of(&self, above: &Attributes, now: &Inode) -> Attributes {
        let time = |time: Timestamp| (time.seconds, time.nanoseconds);
        let mtime = match (time(above.mtime) == self.mtime, time(now.mtime()) == self.mtime) {
            (_, true) => above.mtime,
            (true, false) => now.mtime(),
            (false, false) => above.mtime.max(now.mtime()),
        };
        let (uid, gid) = match (above.uid, above.gid) == self.owner {
            true => (now.uid(), now.gid()),
            false => (above.uid, above.gid),
        };
        let mode = if above.mode == self.mode { now.mode() } else { above.mode };
        Attributes { mode, uid, gid, mtime, size: now.size(), ..*above }
    }

    /// Whether `inode` is the same inode in the same state.
    pub fn is(&self, inode: &Inode) -> bool {
        let now = Identity::of(inode);
        if FileType::from_mode(self.mode) == Some(FileType::Directory) {
            return (self.mode, self.owner, self.ino) == (now.mode, now.owner, now.ino);
        }
        *self == now
    }
}

/// A file of the lower tree that lends its bytes, or one of its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lender {
    /// Its path, without a leading slash.
    pub path: Vec<u8>,
    /// What the file was: only while it is unchanged are its bytes those that the layer needs.
    pub identity: Identity,
}

impl Lender {
    /// The inode `id` of `tree`, with its path.
    pub fn of(tree: &Tree, id: crate::InodeId) -> Lender {
        Lender { path: tree.path(id), identity: Identity::of(tree.inode(id)) }
    }
}
