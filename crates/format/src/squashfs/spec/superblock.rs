//! The superblock (`struct squashfs_super_block`), and what follows it.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `SQUASHFS_MAGIC`: "hsqs"
pub(crate) const MAGIC: u32 = 0x7371_7368;

/// `SQUASHFS_NOI` and so on: how an image was made.
pub(crate) mod flags {
    /// Inodes and directories are stored.
    pub(crate) const STORED_INODES: u16 = 1 << 0;
    /// Data blocks are stored.
    pub(crate) const STORED_DATA: u16 = 1 << 1;
    /// Fragments are stored.
    pub(crate) const STORED_FRAGMENTS: u16 = 1 << 3;
    /// There are no fragments.
    pub(crate) const NO_FRAGMENTS: u16 = 1 << 4;
    /// The ends of large files are in fragments as well.
    pub(crate) const ALWAYS_FRAGMENTS: u16 = 1 << 5;
    /// Files of the same content share it.
    pub(crate) const DUPLICATES: u16 = 1 << 6;
    /// There is an export table.
    pub(crate) const EXPORTABLE: u16 = 1 << 7;
    /// Extended attributes are stored.
    pub(crate) const STORED_XATTRS: u16 = 1 << 8;
    /// There are no extended attributes.
    pub(crate) const NO_XATTRS: u16 = 1 << 9;
    /// A metadata block with the compressor's options follows the superblock.
    pub(crate) const COMPRESSOR_OPTIONS: u16 = 1 << 10;
    /// Owners and groups are stored.
    pub(crate) const STORED_IDS: u16 = 1 << 11;
}

/// How blocks are compressed (`ZLIB_COMPRESSION` and so on).
pub(crate) mod compressor {
    pub(crate) const GZIP: u16 = 1;
    pub(crate) const LZMA: u16 = 2;
    pub(crate) const LZO: u16 = 3;
    pub(crate) const XZ: u16 = 4;
    pub(crate) const LZ4: u16 = 5;
    pub(crate) const ZSTD: u16 = 6;
}

/// The first 96 bytes. Offsets are in bytes from the image's start.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Superblock {
    pub(crate) magic: U32,
    pub(crate) inodes: U32,
    pub(crate) mtime: U32,
    pub(crate) block_size: U32,
    pub(crate) fragments: U32,
    pub(crate) compressor: U16,
    pub(crate) block_log: U16,
    pub(crate) flags: U16,
    pub(crate) ids: U16,
    pub(crate) major: U16,
    pub(crate) minor: U16,
    /// A [`Reference`](super::Reference).
    pub(crate) root: U64,
    pub(crate) bytes_used: U64,
    pub(crate) id_table: U64,
    pub(crate) xattr_table: U64,
    pub(crate) inode_table: U64,
    pub(crate) directory_table: U64,
    pub(crate) fragment_table: U64,
    pub(crate) export_table: U64,
}

impl Superblock {
    /// Of version 4.0, with `inodes` inodes and blocks of `block_size` bytes; all else is 0.
    pub(crate) fn new(inodes: u32, block_size: u32) -> Superblock {
        Superblock {
            magic: MAGIC.into(),
            inodes: inodes.into(),
            block_size: block_size.into(),
            block_log: (block_size.trailing_zeros() as u16).into(),
            major: 4.into(),
            ..Superblock::new_zeroed()
        }
    }
}

/// Where a fragment block lies (`struct squashfs_fragment_entry`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FragmentEntry {
    pub(crate) start: U64,
    /// As the size of a data block.
    pub(crate) size: U32,
    pub(crate) unused: U32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_their_sizes() {
        assert_eq!(size_of::<Superblock>(), 96);
        assert_eq!(size_of::<FragmentEntry>(), 16);
    }
}
