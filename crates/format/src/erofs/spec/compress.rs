//! Compressed files (`struct z_erofs_map_header`, `struct z_erofs_lcluster_index`, and the packed indexes).
//!
//! A file is cut into logical clusters of one size. Content is compressed in pieces that begin and end anywhere. For
//! each logical cluster the index has the offset in it where a piece begins and that piece's block; or, if none
//! begins there, the distances to the clusters where one does.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// 8 bytes at the first multiple of eight after the inode's extended attributes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct MapHeader {
    /// Where the file's end is in the packed inode; or, in the upper half, the length of the inline end.
    pub(crate) fragment_or_inline: U32,
    pub(crate) advice: U16,
    /// Bits 0 to 3: the algorithm of pieces of kind 1; bits 4 to 7: of kind 3.
    pub(crate) algorithms: u8,
    /// Bits 0 to 3: the binary logarithm of blocks in a logical cluster; bit 7: [`WHOLE_FRAGMENT`].
    pub(crate) cluster_bits: u8,
}

/// Blocks of a piece that is written here: 64 KiB, which is also how far LZ4 looks back.
pub(crate) const PIECE_BLOCKS: u64 = 16;
/// Bytes of the header.
pub(crate) const HEADER_SIZE: u64 = 8;
/// Bytes between the header and a full index.
pub(crate) const FULL_INDEX_GAP: u64 = 8;
/// Bit 63 of the header as one number: the file is in the packed inode as a whole, at what the other bits say.
pub(crate) const WHOLE_FRAGMENT: u64 = 1 << 63;

const _: () = assert!(size_of::<MapHeader>() == HEADER_SIZE as usize);

/// `Z_EROFS_ADVISE_*`: bits of [`MapHeader::advice`].
pub(crate) mod advice {
    /// A packed index has entries of two bytes too.
    pub(crate) const PACKED_2B: u16 = 0x1;
    /// With a full index: there is none, but a record for each piece.
    pub(crate) const EXTENTS: u16 = 0x1;
    /// Pieces of kind 1 may have more than one block; likewise those of kinds 0 and 3.
    pub(crate) const BIG_1: u16 = 0x2;
    pub(crate) const BIG_2: u16 = 0x4;
    /// The last piece follows the index.
    pub(crate) const INLINE: u16 = 0x8;
    /// Pieces that are not compressed are rotated, so that each byte keeps its place within a block.
    pub(crate) const INTERLACED: u16 = 0x10;
    /// The last piece is in the packed inode.
    pub(crate) const FRAGMENT: u16 = 0x20;
}

/// What the superblock is followed by where files are compressed by LZ4: a length and `struct z_erofs_lz4_cfgs`.
#[derive(IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct Lz4Config {
    /// Bytes of what follows.
    length: U16,
    /// How far matches look back, in bytes.
    max_distance: U16,
    /// Blocks of a compressed piece at most.
    max_blocks: U16,
    reserved: [u8; 10],
}

impl Lz4Config {
    /// Of pieces of up to `max_blocks` blocks, with matches of any distance that LZ4 can express.
    pub(crate) fn new(max_blocks: u16) -> Lz4Config {
        let length = size_of::<Lz4Config>() as u16 - 2;
        let max_blocks = U16::new(max_blocks);
        Lz4Config { length: U16::new(length), max_distance: U16::new(u16::MAX), max_blocks, reserved: [0; 10] }
    }
}

/// 8 bytes of a full index.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct ClusterIndex {
    /// Bits 0 and 1: the kind. Bit 15: the piece continues beyond this file's part, which does not matter to a reader
    /// that knows the length.
    pub(crate) kind: U16,
    /// Where in the cluster the piece begins.
    pub(crate) offset: U16,
    /// The piece's block; or, if none begins here, the distances to the clusters before and after where one does.
    pub(crate) block_or_distances: U32,
}

const _: () = assert!(size_of::<ClusterIndex>() == 8);

/// What begins in a logical cluster (`Z_EROFS_LCLUSTER_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A piece that is not compressed.
    Plain,
    /// A piece compressed by the first algorithm.
    First,
    /// Nothing.
    Inside,
    /// A piece compressed by the second algorithm.
    Second,
}

impl Kind {
    /// From the lowest two bits.
    pub(crate) fn from_bits(bits: u32) -> Kind {
        match bits & 3 {
            0 => Kind::Plain,
            1 => Kind::First,
            2 => Kind::Inside,
            _ => Kind::Second,
        }
    }
}

/// Set in the distance of the cluster after a piece's first: the rest is the piece's number of blocks instead of a
/// distance of 1.
pub(crate) const BLOCK_COUNT: u32 = 1 << 11;
/// Bytes of a compressed piece at most (`Z_EROFS_PCLUSTER_MAX_SIZE`).
pub(crate) const PIECE_MAX: u64 = 1 << 20;
/// Bytes of a decompressed piece at most (`Z_EROFS_PCLUSTER_MAX_DSIZE`).
pub(crate) const CONTENT_MAX: u64 = 12 << 20;
