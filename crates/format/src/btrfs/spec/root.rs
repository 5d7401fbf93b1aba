//! Items of the root tree: trees, and where subvolumes are linked.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::inode::Inode;
use super::tree::DiskKey;

/// `struct btrfs_root_item`, as far as it always was.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Root {
    inode: Inode,
    pub(crate) generation: U64,
    /// The inode of its root directory.
    pub(crate) directory: U64,
    /// Logical address of its root block.
    pub(crate) address: U64,
    byte_limit: U64,
    bytes_used: U64,
    last_snapshot: U64,
    pub(crate) flags: U64,
    /// 0 while it is deleted.
    pub(crate) references: U32,
    drop_progress: DiskKey,
    drop_level: u8,
    pub(crate) level: u8,
}

/// `BTRFS_ROOT_SUBVOL_RDONLY`.
pub(crate) const READ_ONLY: u64 = 1;
/// Where `parent_uuid` of `struct btrfs_root_item` is: of a snapshot, the identifier of what it is a snapshot of. Old items end before it.
pub(crate) const PARENT_UUID: std::ops::Range<usize> = 263..279;

/// `struct btrfs_root_ref`: where a subvolume is linked. Its name follows.
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RootReference {
    /// The directory's inode.
    pub(crate) directory: U64,
    sequence: U64,
    pub(crate) name: U16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Root>(), size_of::<RootReference>()), (239, 18));
    }
}
