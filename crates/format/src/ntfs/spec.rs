//! Numbers of the format, as Linux's `fs/ntfs3/ntfs.h` names them. All are little-endian.

/// Types of attributes.
pub(super) mod kind {
    pub(crate) const STANDARD_INFORMATION: u32 = 0x10;
    pub(crate) const ATTRIBUTE_LIST: u32 = 0x20;
    pub(crate) const FILE_NAME: u32 = 0x30;
    pub(crate) const VOLUME_INFORMATION: u32 = 0x70;
    pub(crate) const DATA: u32 = 0x80;
    pub(crate) const INDEX_ROOT: u32 = 0x90;
    pub(crate) const INDEX_ALLOCATION: u32 = 0xA0;
    pub(crate) const BITMAP: u32 = 0xB0;
    pub(crate) const REPARSE_POINT: u32 = 0xC0;
    pub(crate) const END: u32 = 0xFFFF_FFFF;
}

/// Records with a fixed place in the MFT.
pub(super) mod record {
    pub(crate) const MFT: u64 = 0;
    pub(crate) const LOG_FILE: u64 = 2;
    pub(crate) const VOLUME: u64 = 3;
    pub(crate) const ROOT: u64 = 5;
    pub(crate) const BITMAP: u64 = 6;
    pub(crate) const UPCASE: u64 = 10;
    /// The first record that is not the file system's own.
    pub(crate) const FIRST_USER: u64 = 16;
}

/// Flags of an attribute.
pub(super) mod attribute_flag {
    /// The compression method; 1 is LZNT1.
    pub(crate) const COMPRESSION: u16 = 0x00FF;
    pub(crate) const ENCRYPTED: u16 = 0x4000;
    pub(crate) const SPARSE: u16 = 0x8000;
}

/// Flags of a file, in `$STANDARD_INFORMATION` and in names.
pub(super) mod file_flag {
    pub(crate) const HIDDEN: u32 = 0x2;
    pub(crate) const SYSTEM: u32 = 0x4;
    pub(crate) const REPARSE_POINT: u32 = 0x400;
    /// The content is elsewhere, and comes when it is opened (`FILE_ATTRIBUTE_OFFLINE`, `..._RECALL_ON_DATA_ACCESS`).
    pub(crate) const ELSEWHERE: u32 = 0x1000 | 0x40_0000;
    /// In a name of an index: it names a directory.
    pub(crate) const DIRECTORY: u32 = 0x1000_0000;
}

/// The name of a directory's index: `$I30`, in UTF-16.
pub(super) const INDEX_NAME: &[u8] = b"$\0I\x003\x000\0";
/// Bytes between two places that a fixup replaced, whatever the disk's sectors are.
pub(super) const STRIDE: usize = 512;
/// The bits of a file reference that are a record's number; the others are the record's sequence number.
pub(super) const NUMBER: u64 = (1 << 48) - 1;

/// The `N` bytes at `at`.
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

/// A byte range given by two numbers of the image.
pub(super) fn part(bytes: &[u8], start: usize, length: usize) -> Option<&[u8]> {
    bytes.get(start..start.checked_add(length)?)
}
