//! Where the content of uncompressed inodes is.

use std::ops::Range;

use inarch_tree::Extent;

use super::damaged;
use super::inode::{Inode, block32, block48};
use super::parameters::Parameters;
use crate::erofs::spec::inode::{DataLayout, chunk};
use inarch_volume::{Pages, VolumeError};

/// The number of the image among a volume's backings.
const IMAGE: u32 = 0;

/// Bytes of metadata behind an inode that [`extents`] reads; [`None`] if that is beyond 64 bits.
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

/// Puts the extents of an uncompressed inode that lie in `range` of its content into `extents`, cut to that: ascending and within
/// the image, whose number is 0. What none of them covers is a hole.
pub(crate) fn extents(
    pages: &Pages,
    parameters: &Parameters,
    inode: &Inode,
    range: Range<u64>,
    extents: &mut Vec<Extent>,
) -> Result<(), VolumeError> {
    let range = range.start..range.end.min(inode.size);
    let mut push = |extent: Extent| {
        if !pages.holds(extent.at, extent.length) {
            let (length, at, size) = (extent.length, extent.at, pages.size());
            return Err(damaged(format!("{length} bytes of it at byte {at} lie beyond the image's end at {size}")));
        }
        extents.extend(cut(extent, &range));
        Ok(())
    };
    match inode.layout {
        DataLayout::Plain => flat(inode, parameters, inode.size)?.map_or(Ok(()), push),
        DataLayout::Inline => {
            let tail = map_size(inode, parameters).unwrap_or(0);
            flat(inode, parameters, inode.size - tail)?.map_or(Ok(()), &mut push)?;
            match tail {
                0 => Ok(()),
                _ => push(Extent { offset: inode.size - tail, length: tail, at: inode.behind(), backing: IMAGE }),
            }
        }
        DataLayout::Chunked => chunks(pages, parameters, inode, &range, &mut push),
        DataLayout::CompressedFull | DataLayout::CompressedCompact => Err(damaged("it is compressed")),
    }
}

/// The part of an extent that lies in `range`.
fn cut(extent: Extent, range: &Range<u64>) -> Option<Extent> {
    let start = extent.offset.max(range.start);
    let end = (extent.offset + extent.length).min(range.end);
    if start >= end {
        return None;
    }
    Some(Extent { offset: start, length: end - start, at: extent.at + (start - extent.offset), ..extent })
}

/// One run of blocks that holds the first `length` bytes.
fn flat(inode: &Inode, parameters: &Parameters, length: u64) -> Result<Option<Extent>, VolumeError> {
    match inode.block.filter(|_| length > 0) {
        Some(block) => Ok(Some(Extent { offset: 0, length, at: block_start(block, parameters)?, backing: IMAGE })),
        None => Ok(None),
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

/// Gives `push` the chunks that have a byte of `range`. Chunks that continue each other are joined.
fn chunks(
    pages: &Pages,
    parameters: &Parameters,
    inode: &Inode,
    range: &Range<u64>,
    push: &mut dyn FnMut(Extent) -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let format = inode.value as u16;
    if format & !(chunk::BITS | chunk::INDEXES | chunk::BIT48) != 0 {
        return Err(damaged(format!("its format of chunks, {format:#x}, is unknown")));
    }
    let (chunk_bits, entry) = chunk_format(inode, parameters);
    let start = inode.behind().next_multiple_of(entry);
    let mut last: Option<Extent> = None;
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
        let length = (inode.size - offset).min(1 << chunk_bits);
        let next = Extent { offset, length, at: block_start(block, parameters)?, backing: IMAGE };
        match &mut last {
            Some(last) if joins(last, &next) => last.length += length,
            _ => last.replace(next).map_or(Ok(()), &mut *push)?,
        }
    }
    last.map_or(Ok(()), push)
}

/// Whether `next` goes on where `extent` ends, in the file and on the device.
fn joins(extent: &Extent, next: &Extent) -> bool {
    extent.offset + extent.length == next.offset && extent.at.checked_add(extent.length) == Some(next.at)
}
