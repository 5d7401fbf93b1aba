//! Directories (`struct erofs_dirent`): blocks of entries, followed by their names.
//!
//! The entries of all blocks are sorted by name bytes, `.` and `..` among them.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// 12 bytes; the first entry's name starts where the entries end, which gives their number.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct Dirent {
    pub(crate) nid: U64,
    /// Where the name starts in its block; it ends where the next begins, the last at a NUL or the block's end.
    pub(crate) name_offset: U16,
    pub(crate) file_type: u8,
    pub(crate) reserved: u8,
}

/// Bytes of an entry without its name.
pub(crate) const DIRENT_SIZE: usize = 12;

const _: () = assert!(size_of::<Dirent>() == DIRENT_SIZE);
