//! The header of a hive and of a log ("Base block").

use crate::HiveError;

/// Bytes of the header of a hive. That of a log is its first sector.
pub const LENGTH: usize = 4096;
/// Bytes of a sector, in which logs count.
pub const SECTOR: usize = 512;

/// A header.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    /// The number of the last write that was begun, and of the last that was completed.
    pub sequences: (u32, u32),
    /// When it was written.
    pub written: u64,
    /// Bytes of the bins.
    pub length: u32,
    /// The root key's cell.
    pub root: u32,
    /// 0 for a hive, 1 and 2 for a log with a bitmap, 6 for a log with entries.
    pub kind: u32,
    /// Whether its checksum is right.
    pub is_sound: bool,
}

impl Base {
    /// Whether the hive was not written back completely.
    pub fn is_dirty(&self) -> bool {
        !self.is_sound || self.sequences.0 != self.sequences.1
    }
}

/// A 16-bit number.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

/// A 32-bit number.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

/// A 64-bit number.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes)
}

/// Reads the header at the start of `head`.
pub fn parse(head: &[u8]) -> Result<Base, HiveError> {
    if !head.starts_with(b"regf") {
        return Err(HiveError::NoHive("it does not begin with \"regf\""));
    }
    let number = |at| u32_at(head, at).ok_or(HiveError::NoHive("it is shorter than a header"));
    if number(20)? != 1 {
        return Err(HiveError::NoHive("its major version is not 1"));
    }
    Ok(Base {
        sequences: (number(4)?, number(8)?),
        written: u64_at(head, 12).unwrap_or(0),
        kind: number(28)?,
        root: number(36)?,
        length: number(40)?,
        is_sound: number(508)? == checksum(head),
    })
}

/// The XOR of the first 127 numbers, which is neither 0 nor -1.
pub fn checksum(head: &[u8]) -> u32 {
    let words = head.as_chunks().0.iter().take(127);
    match words.fold(0, |sum, word| sum ^ u32::from_le_bytes(*word)) {
        0 => 1,
        u32::MAX => u32::MAX - 1,
        sum => sum,
    }
}
