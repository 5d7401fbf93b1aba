//! The bytes of XFS: structures, magic numbers and checksums.

pub(crate) mod attribute;
pub(crate) mod directory;
pub(crate) mod extent;
pub(crate) mod inode;
pub(crate) mod log;
pub(crate) mod seal;
pub(crate) mod superblock;

use zerocopy::FromBytes;
use zerocopy::big_endian::{U16, U32, U64};

/// The number of two bytes at `at`; `None` beyond the end.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    U16::read_from_prefix(bytes.get(at..)?).ok().map(|(number, _)| number.get())
}

/// The number of four bytes at `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    U32::read_from_prefix(bytes.get(at..)?).ok().map(|(number, _)| number.get())
}

/// The number of eight bytes at `at`.
pub(crate) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    U64::read_from_prefix(bytes.get(at..)?).ok().map(|(number, _)| number.get())
}
