//! The bytes of ext4: structures, checksums, hashes and limits, with no decision in them.
//!
//! Everything on disk is little-endian. Sources: `fs/ext4/*.h` and `include/linux/jbd2.h` of the Linux kernel, and
//! the kernel's `Documentation/filesystems/ext4/`.

pub(crate) mod acl;
pub(crate) mod checksum;
pub(crate) mod directory;
pub(crate) mod extent;
pub(crate) mod group;
pub(crate) mod hash;
pub(crate) mod inode;
pub(crate) mod journal;
pub(crate) mod superblock;
pub(crate) mod xattr;

use zerocopy::{Immutable, IntoBytes};

/// Bytes in a block: the only block size written.
pub(crate) const BLOCK_SIZE: usize = inarch_block::BLOCK_SIZE;
/// Blocks in a block group: as many as one bitmap block has bits.
pub(crate) const BLOCKS_PER_GROUP: u64 = 8 * BLOCK_SIZE as u64;
/// Inodes in a block group at most: as many as one bitmap block has bits.
pub(crate) const MAX_INODES_PER_GROUP: u64 = 8 * BLOCK_SIZE as u64;
/// Bytes of an inode in the inode table.
pub(crate) const INODE_SIZE: usize = 256;
/// Inodes in a block of the inode table.
pub(crate) const INODES_PER_BLOCK: u64 = (BLOCK_SIZE / INODE_SIZE) as u64;

/// `EXT4_ROOT_INO`
pub(crate) const ROOT_INO: u32 = 2;
/// `EXT4_JOURNAL_INO`
pub(crate) const JOURNAL_INO: u32 = 8;
/// `EXT4_GOOD_OLD_FIRST_INO`: by convention `lost+found`; the inodes before it are reserved.
pub(crate) const LOST_AND_FOUND_INO: u32 = 11;

/// Links of an inode at most; a directory with more subdirectories has a count of 1 (`EXT4_LINK_MAX`).
pub(crate) const LINK_MAX: u32 = 65_000;

/// A block under construction.
pub(crate) type Block = [u8; BLOCK_SIZE];

/// Writes `value` at byte `offset` of `out`; `offset` is the writer's own, so it always lies within.
pub(crate) fn put<T: IntoBytes + Immutable + ?Sized>(out: &mut [u8], offset: usize, value: &T) {
    let bytes = value.as_bytes();
    out[offset..offset + bytes.len()].copy_from_slice(bytes);
}
