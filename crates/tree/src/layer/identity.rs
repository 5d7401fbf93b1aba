//! [`Identity`]: the attributes that distinguish one state of a host file from another.

use serde::{Deserialize, Serialize};

use crate::{Attributes, FileType, Inode, InodeId, Timestamp, Tree, Xattr};

/// What a tree had at a path. Two states are the same if no attribute changed. A directory's times change with the
/// names in it, so for a directory only inode number, permissions, owner and extended attributes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity {
    mode: u32,
    owner: (u32, u32),
    ino: u64,
    /// A file's size in bytes. Of a directory, a digest of its extended attributes, or [`UNKNOWN`].
    size_or_xattrs: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
}

/// The digest of extended attributes that a layer of version 1 did not record.
const UNKNOWN: u64 = u64::MAX;

impl Identity {
    /// The identity of an inode of a scan.
    pub fn of(tree: &Tree, id: InodeId) -> Identity {
        let inode = tree.inode(id);
        let time = |time: crate::Timestamp| (time.seconds, time.nanoseconds);
        let size_or_xattrs = match inode.file_type() {
            FileType::Directory => digest(tree.xattrs(inode.xattrs())),
            _ => inode.size(),
        };
        Identity {
            mode: inode.mode(),
            owner: (inode.uid(), inode.gid()),
            ino: inode.source_ino(),
            size_or_xattrs,
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

    /// Whether an inode is the same one in the same state.
    pub fn is(&self, tree: &Tree, id: InodeId) -> bool {
        let now = Identity::of(tree, id);
        if self.is_directory() {
            return self.ino == now.ino && self.has_attributes_of(&now);
        }
        *self == now
    }

    /// Whether a directory has the permissions, owner and extended attributes of another one.
    pub(super) fn has_attributes_of(&self, other: &Identity) -> bool {
        let has_xattrs = self.size_or_xattrs == UNKNOWN || self.size_or_xattrs == other.size_or_xattrs;
        (self.mode, self.owner) == (other.mode, other.owner) && has_xattrs
    }

    /// The identity as a layer of version 1 has it, in which directories have no digest.
    pub(super) fn of_version_1(self) -> Identity {
        Identity { size_or_xattrs: if self.is_directory() { UNKNOWN } else { self.size_or_xattrs }, ..self }
    }

    fn is_directory(&self) -> bool {
        FileType::from_mode(self.mode) == Some(FileType::Directory)
    }
}

/// A digest of extended attributes, in any order; never [`UNKNOWN`]. A label of SELinux does not count: this machine's
/// policy gives it, and the guest's need not.
fn digest(xattrs: &[Xattr]) -> u64 {
    let mut sorted: Vec<&Xattr> = xattrs.iter().filter(|xattr| *xattr.name != *b"security.selinux").collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let sum = sorted.iter().flat_map(|xattr| [&xattr.name, &xattr.value]).fold(0, |sum, bytes| {
        crc32c::crc32c_append(crc32c::crc32c_append(sum, &(bytes.len() as u64).to_le_bytes()), bytes)
    });
    (sorted.len() as u64 & 0x7fff_ffff) << 32 | u64::from(sum)
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
    pub fn of(tree: &Tree, id: InodeId) -> Lender {
        Lender { path: tree.path(id), identity: Identity::of(tree, id) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;

    /// A tree whose root has these extended attributes.
    fn tree(xattrs: &[(&str, &str)]) -> Tree {
        let mut builder = Builder::new(&Attributes { mode: 0o040_755, ..Attributes::default() }).unwrap();
        let xattr =
            |(name, value): &(&str, &str)| Xattr { name: name.as_bytes().into(), value: value.as_bytes().into() };
        let set = builder.intern_xattrs(xattrs.iter().map(xattr).collect());
        builder.set_xattrs(InodeId::ROOT, set).unwrap();
        builder.finish().unwrap()
    }

    #[test]
    fn a_directory_with_other_extended_attributes_is_in_another_state() {
        let before = tree(&[("user.a", "b")]);
        let identity = Identity::of(&before, InodeId::ROOT);
        assert!(identity.is(&before, InodeId::ROOT));
        assert!(identity.is(&tree(&[("security.selinux", "label"), ("user.a", "b")]), InodeId::ROOT));
        for other in [&[][..], &[("user.a", "c")], &[("user.ab", "")], &[("user.a", "b"), ("user.c", "")]] {
            let now = tree(other);
            assert!(!identity.is(&now, InodeId::ROOT), "{other:?}");
            assert!(identity.of_version_1().is(&now, InodeId::ROOT), "{other:?}");
        }
    }
}
