//! Where the content of uncompressed inodes is.

use std::ops::Range;

use super::damaged;
use super::inode::{Inode, block32, block48};
use super::parameters::Parameters;
use crate::erofs::spec::inode::{DataLayout, chunk};
use inarch_volume::{Pages, VolumeError};

/// A part of an inode's content: `length` bytes from `offset` are those of the image from `at`. What no part covers is
/// a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) at: u64,
}

/// Bytes of metadata behind an inode that [`parts`] reads; [`None`] if that is beyond 64 bits.
pub(crate) fn map_size(inode: &Inode, parameters: &Parameters) -> Option<u64> {
    match inode.layout {
        DataLayout::Inline if inode.size > 0 => Some((inode.size - 1) % parameters.block() + 1),
        DataLayout::Chunked => {
            let (chunk_bits, entry) = chunk_format(inode, parameters);
            inode.size.div_ceil(1 << chunk_bits).checked_mul(entry)
        }
        _ => Some(0),
    }
}

/// The parts of an uncompressed inode that lie in `range` of its content, cut to that: ascending and within the image.
pub(crate) fn parts(
    pages: &Pages,
    parameters: &Parameters,
    inode: &Inode,
    range: Range<u64>,
) -> Result<Vec<Part>, VolumeError> {
    let range = range.start..range.end.min(inode.size);
    let mut parts = match inode.layout {
        DataLayout::Plain => flat(inode, parameters, inode.size),
        DataLayout::Inline => {
            let tail = map_size(inode, parameters).unwrap_or(0);
            let mut parts = flat(inode, parameters, inode.size - tail)?;
            if tail > 0 {
                parts.push(Part { offset: inode.size - tail, length: tail, at: inode.behind() });
            }
            Ok(parts)
        }
        DataLayout::Chunked => chunks(pages, parameters, inode, &range),
        DataLayout::CompressedFull | DataLayout::CompressedCompact => Err(damaged("it is compressed")),
    }?;
    if let Some(part) = parts.iter().find(|part| !pages.holds(part.at, part.length)) {
        let (length, at, size) = (part.length, part.at, pages.size());
        return Err(damaged(format!("{length} bytes of it at byte {at} lie beyond the image's end at {size}")));
    }
    parts.retain_mut(|part| part.cut(&range));
    Ok(parts)
}

impl Part {
    /// Leaves of it what lies in `range`; false if that is nothing.
    fn cut(&mut self, range: &Range<u64>) -> bool {
        let start = self.offset.max(range.start);
        let end = (self.offset + self.length).min(range.end);
        if start >= end {
            return false;
        }
        *self = Part { offset: start, length: end - start, at: self.at + (start - self.offset) };
        true
    }
}

/// One run of blocks that holds the first `length` bytes.
fn flat(inode: &Inode, parameters: &Parameters, length: u64) -> Result<Vec<Part>, VolumeError> {
    match inode.block {
        Some(block) if length > 0 => Ok(vec![Part { offset: 0, length, at: block_start(block, parameters)? }]),
        _ => Ok(Vec::new()),
    }
}

fn block_start(block: u64, parameters: &Parameters) -> Result<u64, VolumeError> {
    let start = block.checked_mul(parameters.block());
    start.ok_or_else(|| damaged(format!("its block {block} lies beyond 2^64 bytes")))
}

/// The binary logarithm of bytes in a chunk, and the bytes of an entry of the map.
fn chunk_format(inode: &Inode, parameters: &Parameters) -> (u32, u64) {
    let format = inode.value as u16;
    let entry = if format & chunk::INDEXES == 0 { 4 } else { 8 };
    (parameters.block_bits + u32::from(format & chunk::BITS), entry)
}

/// The chunks that have a byte of `range`.
fn chunks(pages: &Pages, parameters: &Parameters, inode: &Inode, range: &Range<u64>) -> Result<Vec<Part>, VolumeError> {
    let format = inode.value as u16;
    if format & !(chunk::BITS | chunk::INDEXES | chunk::BIT48) != 0 {
        return Err(damaged(format!("its format of chunks, {format:#x}, is unknown")));
    }
    let (chunk_bits, entry) = chunk_format(inode, parameters);
    let start = inode.behind().next_multiple_of(entry);
    let mut parts: Vec<Part> = Vec::new();
    for index in range.start >> chunk_bits..range.end.div_ceil(1 << chunk_bits) {
        let at = index.checked_mul(entry).and_then(|at| at.checked_add(start));
        let at = at.ok_or_else(|| damaged("its map of chunks lies beyond 2^64 bytes"))?;
        let block = if entry == 4 {
            block32(u32::from_le_bytes(pages.array(at)?))
        } else {
            let [high0, high1, _, _, low @ ..] = pages.array::<8>(at)?;
            let low = u32::from_le_bytes(low);
            let high = u16::from_le_bytes([high0, high1]);
            if format & chunk::BIT48 == 0 { block32(low) } else { block48(low, high) }
        };
        let Some(block) = block else { continue };
        let offset = index << chunk_bits;
        let part =
            Part { offset, length: (inode.size - offset).min(1 << chunk_bits), at: block_start(block, parameters)? };
        match parts.last_mut() {
            Some(last) if joins(last, &part) => last.length += part.length,
            _ => parts.push(part),
        }
    }
    Ok(parts)
}

/// Whether `next` goes on where `part` ends, in the file and on the device.
fn joins(part: &Part, next: &Part) -> bool {
    part.offset + part.length == next.offset && part.at.checked_add(part.length) == Some(next.at)
}
