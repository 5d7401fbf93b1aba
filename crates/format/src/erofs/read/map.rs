//! Where the content of uncompressed inodes is.

use super::damaged;
use super::image::Pages;
use super::inode::{Inode, block32, block48};
use super::volume::Volume;
use crate::ReadError;
use crate::erofs::spec::inode::{DataLayout, chunk};

/// A part of an inode's content: `length` bytes from `offset` are those of the image from `at`. What no part covers is
/// a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) at: u64,
}

/// Bytes of metadata behind an inode that [`parts`] reads; [`None`] if that is beyond 64 bits.
pub(crate) fn map_size(inode: &Inode, volume: &Volume) -> Option<u64> {
    match inode.layout {
        DataLayout::Inline if inode.size > 0 => Some((inode.size - 1) % volume.block() + 1),
        DataLayout::Chunked => {
            let (chunk_bits, entry) = chunk_format(inode, volume);
            inode.size.div_ceil(1 << chunk_bits).checked_mul(entry)
        }
        _ => Some(0),
    }
}

/// The parts of an uncompressed inode, ascending and within the image. The caller has seen to it that the map's size
/// is in proportion to the image's.
pub(crate) fn parts(pages: &mut Pages, volume: &Volume, inode: &Inode) -> Result<Vec<Part>, ReadError> {
    let parts = match inode.layout {
        DataLayout::Plain => flat(inode, volume, inode.size),
        DataLayout::Inline => {
            let tail = map_size(inode, volume).unwrap_or(0);
            let mut parts = flat(inode, volume, inode.size - tail)?;
            if tail > 0 {
                parts.push(Part { offset: inode.size - tail, length: tail, at: inode.behind() });
            }
            Ok(parts)
        }
        DataLayout::Chunked => chunks(pages, volume, inode),
        DataLayout::CompressedFull | DataLayout::CompressedCompact => Err(damaged("it is compressed")),
    }?;
    match parts.iter().find(|part| !pages.image().holds(part.at, part.length)) {
        Some(part) => {
            let (length, at, size) = (part.length, part.at, pages.image().size());
            Err(damaged(format!("{length} bytes of it at byte {at} lie beyond the image's end at {size}")))
        }
        None => Ok(parts),
    }
}

/// One run of blocks that holds the first `length` bytes.
fn flat(inode: &Inode, volume: &Volume, length: u64) -> Result<Vec<Part>, ReadError> {
    match inode.block {
        Some(block) if length > 0 => Ok(vec![Part { offset: 0, length, at: block_start(block, volume)? }]),
        _ => Ok(Vec::new()),
    }
}

fn block_start(block: u64, volume: &Volume) -> Result<u64, ReadError> {
    let start = block.checked_mul(volume.block());
    start.ok_or_else(|| damaged(format!("its block {block} lies beyond 2^64 bytes")))
}

/// The binary logarithm of bytes in a chunk, and the bytes of an entry of the map.
fn chunk_format(inode: &Inode, volume: &Volume) -> (u32, u64) {
    let format = inode.value as u16;
    let entry = if format & chunk::INDEXES == 0 { 4 } else { 8 };
    (volume.block_bits + u32::from(format & chunk::BITS), entry)
}

fn chunks(pages: &mut Pages, volume: &Volume, inode: &Inode) -> Result<Vec<Part>, ReadError> {
    let format = inode.value as u16;
    if format & !(chunk::BITS | chunk::INDEXES | chunk::BIT48) != 0 {
        return Err(damaged(format!("its format of chunks, {format:#x}, is unknown")));
    }
    let (chunk_bits, entry) = chunk_format(inode, volume);
    let start = inode.behind().next_multiple_of(entry);
    let mut parts: Vec<Part> = Vec::new();
    for index in 0..inode.size.div_ceil(1 << chunk_bits) {
        let at = start + index * entry;
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
        let part = Part { offset, length: (inode.size - offset).min(1 << chunk_bits), at: block_start(block, volume)? };
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
