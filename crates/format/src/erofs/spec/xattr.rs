//! Extended attributes (`struct erofs_xattr_ibody_header`, `struct erofs_xattr_entry`).
//!
//! An area after the inode has a header, the addresses of shared attributes, and the inode's own attributes. POSIX
//! ACLs are stored as `getxattr` returns them.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the area's header: a name filter of four bytes, the number of shared attributes, and seven reserved.
pub(crate) const HEADER_SIZE: usize = 12;
/// Offset of the number of shared attributes in the header.
pub(crate) const SHARED_COUNT: usize = 4;
/// Shared attributes of an inode at most: they are counted in a byte.
pub(crate) const SHARED_MAX: usize = 255;
/// What addresses of shared attributes count in, and what attributes are aligned to, in bytes.
pub(crate) const UNIT: usize = 4;
/// Bytes of an area at most: its size is counted in units in 16 bits, see [`area_count`].
pub(crate) const AREA_MAX: usize = HEADER_SIZE + UNIT * (u16::MAX as usize - 1);
/// Bytes of a value at most: its length is a 16-bit number.
pub(crate) const VALUE_MAX: usize = u16::MAX as usize;
/// Bit 7 of a name's index: it is the number of a prefix that the superblock's list gives.
pub(crate) const LONG_PREFIX: u8 = 0x80;

/// 4 bytes, then the name's rest and the value, then zeros up to a multiple of four.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct XattrEntry {
    pub(crate) name_length: u8,
    /// Which prefix the name has.
    pub(crate) index: u8,
    pub(crate) value_length: U16,
}

/// Bytes of an entry without name and value.
pub(crate) const ENTRY_SIZE: usize = 4;

const _: () = assert!(size_of::<XattrEntry>() == ENTRY_SIZE);

/// The prefixes that have an index of their own, `EROFS_XATTR_INDEX_*`; longer ones first.
const PREFIXES: [(u8, &[u8]); 6] = [
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (1, b"user."),
    (4, b"trusted."),
    (5, b"lustre."),
    (6, b"security."),
];

/// A name as prefix index and rest; `None` if no index stands for its namespace, or the rest exceeds 255 bytes.
pub(crate) fn split_name(name: &[u8]) -> Option<(u8, &[u8])> {
    let (index, rest) = PREFIXES.iter().find_map(|(index, prefix)| Some((*index, name.strip_prefix(*prefix)?)))?;
    let is_acl = matches!(index, 2 | 3);
    (rest.len() <= 255 && rest.is_empty() == is_acl).then_some((index, rest))
}

/// The prefix that an index stands for; `None` for one without meaning.
pub(crate) fn prefix(index: u8) -> Option<&'static [u8]> {
    PREFIXES.iter().find(|(known, _)| *known == index).map(|(_, prefix)| *prefix)
}

/// Bytes of an entry whose name's rest and value have these lengths.
pub(crate) fn entry_size(rest: usize, value: usize) -> usize {
    (ENTRY_SIZE + rest + value).next_multiple_of(UNIT)
}

/// Bytes of the area that an inode's `xattr_count` stands for (`erofs_xattr_ibody_size`).
pub(crate) fn area_size(count: u16) -> u64 {
    if count == 0 { 0 } else { (HEADER_SIZE + UNIT * usize::from(count - 1)) as u64 }
}

/// The reverse of [`area_size`], for sizes up to [`AREA_MAX`].
pub(crate) fn area_count(size: usize) -> u16 {
    if size == 0 { 0 } else { ((size - HEADER_SIZE) / UNIT + 1) as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_by_their_prefix() {
        assert_eq!(split_name(b"user.a"), Some((1, &b"a"[..])));
        assert_eq!(split_name(b"security.capability"), Some((6, &b"capability"[..])));
        assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
        assert_eq!(split_name(b"system.posix_acl_access2"), None);
        assert_eq!(split_name(b"system.other"), None);
        assert_eq!(split_name(b"user."), None);
        assert_eq!(split_name(&[b"user.".as_slice(), &[b'x'; 255]].concat()).map(|(index, _)| index), Some(1));
        assert_eq!(split_name(&[b"user.".as_slice(), &[b'x'; 256]].concat()), None);
    }

    #[test]
    fn sizes_of_areas_come_back() {
        for count in [0, 1, 2, u16::MAX] {
            assert_eq!(area_count(area_size(count) as usize), count);
        }
        assert_eq!(area_size(u16::MAX) as usize, AREA_MAX);
    }
}
