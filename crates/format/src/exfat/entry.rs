//! Entries of a directory.

use inarch_tree::Timestamp;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::fat::time::unpacked;

/// Bytes of an entry.
pub(super) const ENTRY: usize = 32;
/// The type of an entry that ends the directory.
pub(super) const LAST: u8 = 0;
/// In a type: the entry is in use.
pub(super) const IN_USE: u8 = 0x80;
/// In a type: the entry belongs to the one before it.
pub(super) const SECONDARY: u8 = 0x40;
/// Types (section 6.2).
pub(super) const FILE: u8 = 0x85;
pub(super) const STREAM: u8 = 0xC0;
pub(super) const NAME: u8 = 0xC1;

const READ_ONLY: u16 = 0x01;
const DIRECTORY: u16 = 0x10;
/// The clusters follow one another, and the table does not have them.
const CONTIGUOUS: u8 = 0x02;

/// The first entry of a file's set (section 7.4).
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FileEntry {
    pub(super) kind: u8,
    pub(super) secondaries: u8,
    pub(super) checksum: U16,
    attributes: U16,
    _reserved: U16,
    created: U32,
    written: U32,
    read: U32,
    created_hundredths: u8,
    written_hundredths: u8,
    created_offset: u8,
    written_offset: u8,
    read_offset: u8,
    _end: [u8; 7],
}

/// The second one (section 7.6).
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct StreamEntry {
    pub(super) kind: u8,
    flags: u8,
    _reserved: u8,
    pub(super) name_length: u8,
    _hash: U16,
    _reserved2: U16,
    valid: U64,
    _reserved3: U32,
    pub(super) first: U32,
    length: U64,
}

/// A time with its offset from UTC in quarters of an hour, if bit 7 says that it is known.
fn time(stamp: U32, hundredths: u8, offset: u8) -> Timestamp {
    // Seven bits with a sign.
    let quarters = i64::from((offset << 1).cast_signed() >> 1);
    let minutes = if offset & 0x80 != 0 { quarters * 15 } else { 0 };
    unpacked((stamp.get() >> 16) as u16, (stamp.get() & 0xFFFF) as u16, hundredths, minutes)
}

impl FileEntry {
    pub(super) fn read(bytes: &[u8; ENTRY]) -> FileEntry {
        zerocopy::transmute!(*bytes)
    }

    pub(super) fn is_directory(&self) -> bool {
        self.attributes.get() & DIRECTORY != 0
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.attributes.get() & READ_ONLY != 0
    }

    pub(super) fn written(&self) -> Timestamp {
        time(self.written, self.written_hundredths, self.written_offset)
    }

    pub(super) fn created(&self) -> Timestamp {
        time(self.created, self.created_hundredths, self.created_offset)
    }

    pub(super) fn read_at(&self) -> Timestamp {
        time(self.read, 0, self.read_offset)
    }
}

impl StreamEntry {
    pub(super) fn read(bytes: &[u8; ENTRY]) -> StreamEntry {
        zerocopy::transmute!(*bytes)
    }

    pub(super) fn is_contiguous(&self) -> bool {
        self.flags & CONTIGUOUS != 0
    }

    /// Bytes of the content.
    pub(super) fn length(&self) -> u64 {
        self.length.get()
    }

    /// Bytes that were written; behind them are zeros.
    pub(super) fn valid(&self) -> u64 {
        self.valid.get().min(self.length())
    }
}

/// Adds an entry to a set's checksum (section 6.3.3), which the first one has in itself.
pub(super) fn add_to_sum(sum: u16, bytes: &[u8; ENTRY], is_first: bool) -> u16 {
    let counted = bytes.iter().enumerate().filter(|(at, _)| !(is_first && matches!(at, 2 | 3)));
    counted.fold(sum, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u16::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_from_utc_has_a_sign_and_may_be_unknown() {
        // 2024-07-04 12:34:56.
        let stamp = U32::new(((44 << 9) | (7 << 5) | 4) << 16 | (12 << 11) | (34 << 5) | 28);
        let seconds = |offset| time(stamp, 150, offset).seconds;
        let utc = seconds(0x80);
        assert_eq!(utc, 1_720_096_497);
        assert_eq!(seconds(0x16), utc);
        assert_eq!(seconds(0x80 | 22), utc - 330 * 60);
        assert_eq!(seconds(0x80 | 0x60), utc + 8 * 3600);
        assert_eq!(time(stamp, 150, 0x80).nanoseconds, 500_000_000);
    }
}
