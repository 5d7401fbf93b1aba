//! Adds a tree to a hash: all of it but the content of its files.

use inarch_tree::Tree;
use sha2::{Digest, Sha256};

/// Adds every name, attribute, target, hole and extended attribute of a tree.
pub(super) fn add_tree(hash: &mut Sha256, tree: &Tree) {
    for (id, inode) in tree.inodes() {
        for number in [inode.mode(), inode.uid(), inode.gid(), inode.links(), inode.device().0, inode.device().1] {
            hash.update(number.to_le_bytes());
        }
        for time in [inode.mtime(), inode.ctime()] {
            hash.update(time.seconds.to_le_bytes());
            hash.update(time.nanoseconds.to_le_bytes());
        }
        hash.update(inode.size().to_le_bytes());
        hash.update(inode.source_ino().to_le_bytes());
        bytes(hash, tree.symlink_target(id));
        for range in tree.sparse_ranges(id).unwrap_or_default() {
            hash.update(range.offset.to_le_bytes());
            hash.update(range.length.to_le_bytes());
        }
        for xattr in tree.xattrs(inode.xattrs()) {
            bytes(hash, &xattr.name);
            bytes(hash, &xattr.value);
        }
        for entry in tree.entries(id) {
            bytes(hash, entry.name);
            hash.update(entry.inode.0.to_le_bytes());
        }
        hash.update([0xff]);
    }
}

/// Adds the length and then the bytes, so that two different sequences never give the same input.
pub(super) fn bytes(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}
