//! The bytes of Btrfs, as in `include/uapi/linux/btrfs_tree.h` and `fs/btrfs/accessors.h` of the kernel. All numbers are
//! little-endian, and nothing is aligned.

pub(super) mod chunk;
pub(super) mod inode;
pub(super) mod root;
pub(super) mod superblock;
pub(super) mod tree;

/// `BTRFS_MAX_LEVEL`: a tree has levels 0 (leaves) to 7.
pub(super) const MAX_LEVEL: u8 = 8;

/// `BTRFS_FS_TREE_OBJECTID`: the subvolume that all others are below.
pub(super) const TOP_LEVEL: u64 = 5;
/// `BTRFS_FIRST_FREE_OBJECTID`: the first number of a subvolume, and of an inode.
pub(super) const FIRST_FREE: u64 = 256;
/// `BTRFS_FIRST_CHUNK_TREE_OBJECTID`: the objectid of every chunk's key.
pub(super) const CHUNKS: u64 = 256;

/// `BTRFS_EXTENT_TREE_OBJECTID`: the tree of what is used.
pub(super) const EXTENT_TREE: u64 = 2;
/// `BTRFS_BLOCK_GROUP_TREE_OBJECTID`: where the counts of chunks are, with that feature; else they are in the extent tree.
pub(super) const BLOCK_GROUP_TREE: u64 = 11;

/// `BTRFS_MAX_COMPRESSED` and `BTRFS_MAX_UNCOMPRESSED`: the most bytes of a compressed extent, before and after.
pub(super) const MAX_COMPRESSED: u64 = 128 << 10;

/// Types of keys (`BTRFS_*_KEY`).
pub(super) mod kind {
    pub(crate) const INODE_ITEM: u8 = 1;
    pub(crate) const INODE_REF: u8 = 12;
    pub(crate) const XATTR_ITEM: u8 = 24;
    pub(crate) const DIR_ITEM: u8 = 84;
    pub(crate) const DIR_INDEX: u8 = 96;
    pub(crate) const EXTENT_DATA: u8 = 108;
    pub(crate) const ROOT_ITEM: u8 = 132;
    pub(crate) const ROOT_BACKREF: u8 = 144;
    pub(crate) const ROOT_REF: u8 = 156;
    pub(crate) const BLOCK_GROUP_ITEM: u8 = 192;
    pub(crate) const CHUNK_ITEM: u8 = 228;
}
