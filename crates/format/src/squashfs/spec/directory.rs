//! Directory listings (`struct squashfs_dir_header`, `squashfs_dir_entry`, `squashfs_dir_index`).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Entries below one header at most (`SQUASHFS_DIR_COUNT`).
pub(crate) const MAX_RUN: usize = 256;

/// Bytes of a name at most (`SQUASHFS_NAME_LEN`).
pub(crate) const MAX_NAME: usize = 256;

/// Precedes entries whose inodes are in one metadata block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    /// Entries, less one.
    pub(crate) count: U32,
    /// The inodes' metadata block, as its offset from the start of the inode table.
    pub(crate) block: U32,
    /// The inode number that the entries' numbers are relative to.
    pub(crate) number: U32,
}

/// An entry; its name follows.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Entry {
    /// Of the inode in its metadata block.
    pub(crate) offset: U16,
    /// Inode number, less the header's; signed.
    pub(crate) delta: U16,
    /// The basic type.
    pub(crate) kind: U16,
    /// Bytes of the name, less one.
    pub(crate) name_size: U16,
}

/// Where in a long listing a header is; the name of its first entry follows.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Index {
    /// Of the header, in bytes from the listing's start.
    pub(crate) position: U32,
    /// The header's metadata block, as its offset from the start of the directory table.
    pub(crate) block: U32,
    /// Bytes of the name, less one.
    pub(crate) name_size: U32,
}

/// Bytes of a header.
pub(crate) const HEADER_LENGTH: usize = size_of::<Header>();

/// Bytes of an entry with its name.
pub(crate) fn entry_length(name: &[u8]) -> usize {
    size_of::<Entry>() + name.len()
}

/// Bytes of an index with its name.
pub(crate) fn index_length(name: &[u8]) -> usize {
    size_of::<Index>() + name.len()
}
