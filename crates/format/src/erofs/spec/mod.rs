//! The bytes of EROFS: structures, constants and limits, with no decision in them.
//!
//! Everything on disk is little-endian. Sources: `fs/erofs/erofs_fs.h` of the Linux kernel, and the kernel's
//! `Documentation/filesystems/erofs.rst`.

pub(crate) mod compress;
pub(crate) mod directory;
pub(crate) mod inode;
pub(crate) mod superblock;
pub(crate) mod xattr;

/// Bytes in a block: the only block size written. Readers of other sizes exist, writers of a served disk do not.
pub(crate) const BLOCK_SIZE: usize = inarch_block::BLOCK_SIZE;
/// Bytes that one step of an inode's number (`nid`) stands for: a compact inode's size.
pub(crate) const SLOT_SIZE: u64 = 32;
/// The block address of nothing: a hole.
pub(crate) const NULL_BLOCK: u32 = u32::MAX;

/// A block under construction.
pub(crate) type Block = [u8; BLOCK_SIZE];
