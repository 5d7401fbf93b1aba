//! Extended attributes (`struct squashfs_xattr_*`).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The supported namespaces, by number (`SQUASHFS_XATTR_USER` and so on). POSIX ACLs are not among them.
pub(crate) const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// The bits of a type that name the namespace (`SQUASHFS_XATTR_PREFIX_MASK`).
pub(crate) const PREFIX_MASK: u16 = 0xFF;
/// In a type: the value is a reference to where it lies (`SQUASHFS_XATTR_VALUE_OOL`).
pub(crate) const OUT_OF_LINE: u16 = 1 << 8;

/// The start of a pair; the name without its prefix follows, then [`ValueHeader`] and the value.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct NameHeader {
    pub(crate) kind: U16,
    pub(crate) length: U16,
}

/// Bytes of a value.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ValueHeader {
    pub(crate) length: U32,
}

/// A set of attributes that any number of inodes share (`struct squashfs_xattr_id`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Set {
    /// A [`Reference`](super::Reference) to its first pair.
    pub(crate) pairs: U64,
    /// How many pairs there are.
    pub(crate) count: U32,
    /// Bytes of the pairs.
    pub(crate) size: U32,
}

/// The start of the table that the superblock points at (`struct squashfs_xattr_id_table`); the offsets of the
/// blocks of [`Set`]s follow.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Table {
    /// Where the pairs start, in bytes from the image's start.
    pub(crate) pairs: U64,
    pub(crate) sets: U32,
    pub(crate) unused: U32,
}

/// The number of a name's namespace and what remains of the name; `None` if squashfs has no such namespace.
pub(crate) fn split_name(name: &[u8]) -> Option<(u16, &[u8])> {
    let found = |(kind, prefix): (usize, &&[u8])| Some((kind as u16, name.strip_prefix(*prefix)?));
    PREFIXES.iter().enumerate().find_map(found)
}
