//! Blocks of trees.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// A key, in the order of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) objectid: u64,
    /// One of [`kind`](super::kind).
    pub(crate) kind: u8,
    pub(crate) offset: u64,
}

impl Key {
    pub(crate) fn new(objectid: u64, kind: u8, offset: u64) -> Key {
        Key { objectid, kind, offset }
    }
}

/// `struct btrfs_disk_key`
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DiskKey {
    objectid: U64,
    kind: u8,
    offset: U64,
}

impl DiskKey {
    pub(crate) fn key(&self) -> Key {
        Key { objectid: self.objectid.get(), kind: self.kind, offset: self.offset.get() }
    }
}

/// `struct btrfs_header`
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) checksum: [u8; 32],
    pub(crate) fsid: [u8; 16],
    /// Its own logical address.
    pub(crate) address: U64,
    pub(crate) flags: U64,
    pub(crate) chunk_tree_uuid: [u8; 16],
    pub(crate) generation: U64,
    /// The tree that it was written for; a snapshot's tree has blocks of others.
    pub(crate) owner: U64,
    pub(crate) items: U32,
    pub(crate) level: u8,
}

/// `struct btrfs_item`: in a leaf, the place of an item's data.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Item {
    pub(crate) key: DiskKey,
    /// Bytes behind the header.
    pub(crate) offset: U32,
    pub(crate) size: U32,
}

/// `struct btrfs_key_ptr`: in a node, the block with all keys from this one to the next.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Pointer {
    pub(crate) key: DiskKey,
    pub(crate) address: U64,
    pub(crate) generation: U64,
}

pub(crate) const HEADER: usize = size_of::<Header>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((HEADER, size_of::<Item>(), size_of::<Pointer>(), size_of::<DiskKey>()), (101, 25, 33, 17));
    }

    #[test]
    fn keys_are_ordered_by_objectid_then_type_then_offset() {
        assert!(Key::new(1, 200, 9) < Key::new(2, 1, 0));
        assert!(Key::new(2, 1, 9) < Key::new(2, 2, 0));
        assert!(Key::new(2, 2, 0) < Key::new(2, 2, 1));
    }
}
