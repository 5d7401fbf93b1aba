//! The superblock of an empty journal (`include/linux/jbd2.h`); all of it is big-endian.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BLOCK_SIZE, Block, put};

/// `JBD2_MAGIC_NUMBER`
const MAGIC: u32 = 0xC03B_3998;
/// `JBD2_SUPERBLOCK_V2`
const SUPERBLOCK_V2: u32 = 4;
/// Blocks of a journal at least (`JBD2_MIN_JOURNAL_BLOCKS`).
pub(crate) const MIN_BLOCKS: u64 = 1024;

/// The fields of `journal_superblock_t` that an empty journal sets.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct JournalSuperblock {
    magic: U32,
    block_type: U32,
    header_sequence: U32,
    block_size: U32,
    max_len: U32,
    first: U32,
    sequence: U32,
    start: U32,
    errno: U32,
    features: [U32; 3],
    uuid: [u8; 16],
    nr_users: U32,
}

/// Writes the first block of an empty journal of `blocks` blocks; the others are zeros.
pub(crate) fn render_superblock(out: &mut Block, blocks: u32, uuid: [u8; 16]) {
    let superblock = JournalSuperblock {
        magic: U32::new(MAGIC),
        block_type: U32::new(SUPERBLOCK_V2),
        header_sequence: U32::ZERO,
        block_size: U32::new(BLOCK_SIZE as u32),
        max_len: U32::new(blocks),
        first: U32::new(1),
        sequence: U32::new(1),
        start: U32::ZERO,
        errno: U32::ZERO,
        features: [U32::ZERO; 3],
        uuid,
        nr_users: U32::new(1),
    };
    put(out, 0, &superblock);
}
