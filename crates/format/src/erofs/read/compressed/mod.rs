//! Compressed files: finds pieces through their index and decompresses them on read.

mod cache;
mod decode;
mod index;
mod lz4;
mod store;

use zerocopy::FromBytes;

use super::damaged;
use super::inode::Inode;
use super::parameters::Parameters;
use crate::erofs::spec::compress::{HEADER_SIZE, MapHeader, WHOLE_FRAGMENT, advice};
use crate::erofs::spec::inode::DataLayout;
use decode::Algorithm;
use inarch_volume::{Pages, VolumeError};
pub(crate) use store::{Packed, Store};

/// A compressed file, without its index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compressed {
    size: u64,
    /// Byte of the image behind the header.
    index_at: u64,
    block_bits: u32,
    /// The binary logarithm of bytes in a logical cluster.
    cluster_bits: u32,
    packed_index: bool,
    advice: u16,
    algorithms: u8,
    end: End,
}

/// Where a file's last piece is.
#[derive(Clone, Copy, Debug)]
enum End {
    /// In blocks of its own, as the others.
    Blocks,
    /// Behind the index: so many bytes.
    Inline(u64),
    /// In the packed inode from this byte on; a full index has the upper half of the number.
    Fragment(u64),
    /// The whole file is there.
    WholeFragment(u64),
}

/// A run of content that is decompressed as one.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Where in the file it starts, and how long it is, in bytes.
    start: u64,
    length: u64,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// `length` bytes of the image from `at`.
    Image { at: u64, length: u64, form: Form },
    /// In the packed inode from this byte.
    Packed(u64),
}

/// How a piece is stored.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// As it is.
    Plain,
    /// Rotated by as many bytes as it begins behind a block's start.
    Rotated,
    Compressed(Algorithm),
}

impl Compressed {
    /// Reads what stands before the index of a compressed inode.
    pub(crate) fn read(pages: &Pages, parameters: &Parameters, inode: &Inode) -> Result<Compressed, VolumeError> {
        let header_at = inode.behind().next_multiple_of(8);
        let bytes: [u8; HEADER_SIZE as usize] = pages.array(header_at)?;
        let Ok(header) = MapHeader::read_from_bytes(&bytes) else {
            return Err(damaged("internal: a header of an index has 8 bytes"));
        };
        let number = u64::from_le_bytes(bytes);
        let advice = header.advice.get();
        let packed_index = inode.layout == DataLayout::CompressedCompact;
        let cluster_bits = parameters.block_bits + u32::from(header.cluster_bits & 0xF);
        let value = header.fragment_or_inline.get();
        let end = if number & WHOLE_FRAGMENT != 0 {
            End::WholeFragment(number & !WHOLE_FRAGMENT)
        } else if advice & advice::FRAGMENT != 0 {
            End::Fragment(value.into())
        } else if advice & advice::INLINE != 0 && value >> 16 != 0 {
            End::Inline((value >> 16).into())
        } else {
            End::Blocks
        };
        let compressed = Compressed {
            size: inode.size,
            index_at: header_at + HEADER_SIZE,
            block_bits: parameters.block_bits,
            cluster_bits,
            packed_index,
            advice,
            algorithms: header.algorithms,
            end,
        };
        compressed.check().map(|()| compressed)
    }

    fn check(&self) -> Result<(), VolumeError> {
        if let End::WholeFragment(_) = self.end {
            return Ok(());
        }
        if !self.packed_index && self.advice & advice::EXTENTS != 0 {
            return Err(damaged("it is compressed with a record for each extent, which is not supported"));
        }
        if self.cluster_bits > if self.packed_index { 14 } else { 16 } {
            return Err(damaged(format!("it is compressed in clusters of 2^{} bytes", self.cluster_bits)));
        }
        let big = |bit: u16| self.advice & bit != 0;
        if self.packed_index && big(advice::BIG_1) != big(advice::BIG_2) {
            return Err(damaged("its packed index is of two kinds at once"));
        }
        self.algorithm(0).map(|_| ())
    }

    fn has(&self, advice: u16) -> bool {
        self.advice & advice != 0
    }

    /// The first or second algorithm.
    fn algorithm(&self, which: u32) -> Result<Algorithm, VolumeError> {
        Algorithm::from_number(self.algorithms >> (4 * which) & 0xF)
    }
}
