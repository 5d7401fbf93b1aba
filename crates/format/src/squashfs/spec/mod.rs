//! The bytes of squashfs 4.0: structures and limits, with no decision in them.
//!
//! Everything on disk is little-endian. Source: `fs/squashfs/squashfs_fs.h` of the Linux kernel.

pub(crate) mod directory;
pub(crate) mod inode;
pub(crate) mod superblock;
pub(crate) mod xattr;

/// Bytes of a metadata block, uncompressed (`SQUASHFS_METADATA_SIZE`).
pub(crate) const METADATA_SIZE: usize = 8192;
/// Bytes of the header in front of each metadata block: its length on disk.
pub(crate) const METADATA_HEADER: usize = 2;
/// In a metadata block's header: it is stored, not compressed (`SQUASHFS_COMPRESSED_BIT`).
pub(crate) const METADATA_STORED: u16 = 1 << 15;
/// In the size of a data block: it is stored, not compressed (`SQUASHFS_COMPRESSED_BIT_BLOCK`).
pub(crate) const BLOCK_STORED: u32 = 1 << 24;
/// Where a table that is not there starts (`SQUASHFS_INVALID_BLK`).
pub(crate) const NO_TABLE: u64 = u64::MAX;

/// Bytes of a data block at least.
pub(crate) const MIN_BLOCK_SIZE: u32 = 4096;
/// Bytes of a data block at most (`SQUASHFS_FILE_MAX_SIZE`).
pub(crate) const MAX_BLOCK_SIZE: u32 = 1 << 20;
/// Bytes of a data block where nobody asks for another size, as `mksquashfs` has it.
pub(crate) const DEFAULT_BLOCK_SIZE: u32 = 128 << 10;

/// Different owners and groups at most: the superblock counts them in 16 bits.
pub(crate) const MAX_IDS: usize = u16::MAX as usize;

/// A place in a table of metadata blocks: the block's offset from the table's start on disk, and the offset in the
/// uncompressed block, in 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Reference(pub(crate) u64);

impl Reference {
    pub(crate) fn new(block: u64, offset: u16) -> Reference {
        Reference(block << 16 | u64::from(offset))
    }

    /// Offset of the metadata block from the start of its table, on disk.
    pub(crate) fn block(self) -> u64 {
        self.0 >> 16
    }

    /// Offset within the uncompressed metadata block.
    pub(crate) fn offset(self) -> u16 {
        self.0 as u16
    }
}
