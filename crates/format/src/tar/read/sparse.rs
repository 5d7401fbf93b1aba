//! Parses the maps of sparse files: GNU tar's old format, and its three PAX formats.

use inarch_tree::DataRange;

use super::window::Window;
use crate::ReadError;
use crate::tar::spec::header::Header;
use crate::tar::spec::{BLOCK_BYTES, number};

/// A part of a sparse file that holds data; an empty part marks the file's end.
pub(super) type Part = DataRange;

/// The most bytes of a map: several hundred thousand parts.
const MAX_MAP: u64 = 16 << 20;

/// Adds a part after the earlier ones; `None` if it is not after them. Neighbours are merged, and empty parts are
/// ignored.
pub(super) fn push_part(parts: &mut Vec<Part>, offset: u64, length: u64) -> Option<()> {
    let end = offset.checked_add(length)?;
    let before = parts.last().map_or(0, |last| last.offset + last.length);
    if offset < before || i64::try_from(end).is_err() {
        return None;
    }
    match parts.last_mut() {
        _ if length == 0 => {}
        Some(last) if offset == before => last.length += length,
        _ => parts.push(Part { offset, length }),
    }
    Some(())
}

/// Why a map cannot be read.
pub(super) enum MapError {
    Read(ReadError),
    /// It is invalid.
    Malformed,
    /// It exceeds the limit.
    TooLarge,
}

impl From<ReadError> for MapError {
    fn from(error: ReadError) -> MapError {
        MapError::Read(error)
    }
}

/// The parts of a file in GNU tar's old format, whose header is `header`, and the position of its data. More blocks of
/// parts follow from byte `at`.
pub(super) fn old_map(window: &mut Window<'_>, header: Header<'_>, mut at: u64) -> Result<(Vec<Part>, u64), MapError> {
    let mut parts = Vec::new();
    let (fields, mut more) = header.sparse_parts();
    let start = at;
    push_fields(&mut parts, fields).ok_or(MapError::Malformed)?;
    while more {
        let block = window.block(at)?.ok_or(MapError::Malformed)?;
        let fields = block.get(..21 * 24).unwrap_or_default();
        more = block.get(504).is_some_and(|flag| *flag != 0);
        push_fields(&mut parts, fields).ok_or(MapError::Malformed)?;
        at += BLOCK_BYTES;
        if at - start > MAX_MAP {
            return Err(MapError::TooLarge);
        }
    }
    Ok((parts, at))
}

fn push_fields(parts: &mut Vec<Part>, fields: &[u8]) -> Option<()> {
    for field in fields.chunks_exact(24) {
        let (offset, length) = field.split_at(12);
        // An unused field is all NULs; the writer's last, empty part is not.
        if field.first() == Some(&0) {
            continue;
        }
        let offset = u64::try_from(number::field(offset)?).ok()?;
        let length = u64::try_from(number::field(length)?).ok()?;
        push_part(parts, offset, length)?;
    }
    Some(())
}

/// The parts of a file in PAX format 1.0, and the position of its data. Its `stored` bytes from byte `at` begin with
/// the map: decimal numbers, one on each line, in whole blocks.
pub(super) fn leading_map(window: &mut Window<'_>, at: u64, stored: u64) -> Result<(Vec<Part>, u64), MapError> {
    let mut lines = Lines { window, at, end: at.saturating_add(stored), start: at, block: Vec::new(), within: 0 };
    let count = lines.number()?;
    let mut parts = Vec::new();
    for _ in 0..count {
        let (offset, length) = (lines.number()?, lines.number()?);
        push_part(&mut parts, offset, length).ok_or(MapError::Malformed)?;
    }
    Ok((parts, lines.at))
}

/// Reads lines of digits, block by block.
struct Lines<'w, 'a> {
    window: &'w mut Window<'a>,
    start: u64,
    /// The position of the next block.
    at: u64,
    end: u64,
    block: Vec<u8>,
    within: usize,
}

impl Lines<'_, '_> {
    fn number(&mut self) -> Result<u64, MapError> {
        let mut digits = Vec::with_capacity(20);
        loop {
            match self.byte()? {
                b'\n' => return number::decimal(&digits).ok_or(MapError::Malformed),
                digit if digits.len() < 20 => digits.push(digit),
                _ => return Err(MapError::Malformed),
            }
        }
    }

    fn byte(&mut self) -> Result<u8, MapError> {
        if self.within == self.block.len() {
            if self.at >= self.end {
                return Err(MapError::Malformed);
            }
            if self.at - self.start >= MAX_MAP {
                return Err(MapError::TooLarge);
            }
            let block = self.window.block(self.at)?.ok_or(MapError::Malformed)?;
            self.block.clear();
            self.block.extend_from_slice(block);
            self.at += BLOCK_BYTES;
            self.within = 0;
        }
        let byte = self.block.get(self.within).copied().ok_or(MapError::Malformed)?;
        self.within += 1;
        Ok(byte)
    }
}
