//! Reads the content of files, decompressed where it is compressed.

use std::ops::Range;
use std::sync::Arc;

use inarch_block::{Cursor, read_backing};
use inarch_tree::{DataRange, Extent};
use inarch_volume::VolumeError;

use super::blocks::Blocks;
use super::damaged;
use super::extents::{Packed, PiecePlace, Source};
use super::search::Root;
use super::spec::MAX_COMPRESSED;
use crate::cache::Cache;

/// Bytes of decompressed extents that are kept.
const CACHED_BYTES: usize = 32 << 20;

/// A regular file or symlink.
#[derive(Clone, Copy)]
pub(super) struct File {
    pub(super) root: Root,
    pub(super) inode: u64,
    /// Bytes.
    pub(super) size: u64,
}

impl File {
    fn wanted(&self, offset: u64, count: u64) -> Range<u64> {
        offset..offset.saturating_add(count).min(self.size)
    }
}

/// The files of an image.
pub(super) struct Contents {
    /// Decompressed extents by their logical addresses.
    cache: Cache<Vec<u8>>,
}

impl Contents {
    pub(super) fn new() -> Contents {
        Contents { cache: Cache::new(CACHED_BYTES / MAX_COMPRESSED as usize) }
    }

    /// Puts `count` bytes of a file from `offset` into `out`: zeros in its holes and behind its end.
    pub(super) fn read(
        &self,
        blocks: &Blocks,
        file: &File,
        offset: u64,
        count: u64,
        out: &mut Cursor<'_, '_>,
    ) -> Result<(), VolumeError> {
        let mut at = offset;
        blocks.each_piece(&file.root, file.inode, file.wanted(offset, count), &mut |piece| {
            out.fill_zeros(piece.offset - at);
            match piece.place {
                PiecePlace::Stored(from) => {
                    let read = blocks.image.read(from, piece.length, out);
                    read.map_err(|error| VolumeError::Io { offset: from, error })?;
                }
                PiecePlace::Packed(packed) => self.with(blocks, &packed, |bytes| {
                    out.copy_from(part_of(bytes, &packed, piece.length)?);
                    Ok(())
                })?,
            }
            at = piece.offset + piece.length;
            Ok(true)
        })?;
        out.fill_zeros(count - (at - offset));
        Ok(())
    }

    /// Fills `out`, which is small and zeros, with the first bytes of a file.
    pub(super) fn read_start(&self, blocks: &Blocks, file: &File, out: &mut [u8]) -> Result<(), VolumeError> {
        blocks.each_piece(&file.root, file.inode, file.wanted(0, out.len() as u64), &mut |piece| {
            let place = piece.offset as usize..(piece.offset + piece.length) as usize;
            let part = out.get_mut(place).unwrap_or_default();
            match piece.place {
                PiecePlace::Stored(from) => part.copy_from_slice(&read(blocks, from, piece.length)?),
                PiecePlace::Packed(packed) => self.with(blocks, &packed, |bytes| {
                    part.copy_from_slice(part_of(bytes, &packed, piece.length)?);
                    Ok(())
                })?,
            }
            Ok(true)
        })
    }

    /// Gives `take` the decompressed bytes of an extent.
    fn with(
        &self,
        blocks: &Blocks,
        packed: &Packed,
        take: impl FnOnce(&[u8]) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        match packed.source {
            Source::Image(at) => take(&unpack(blocks, packed, read(blocks, at, packed.stored)?)?),
            Source::Logical(address) => {
                if let Some(bytes) = self.cache.get(address) {
                    return take(&bytes);
                }
                let bytes = Arc::new(unpack(blocks, packed, read_logical(blocks, address, packed.stored)?)?);
                take(&bytes)?;
                self.cache.put(address, bytes);
                Ok(())
            }
        }
    }

    /// The parts of a range that are in the image as they are, neighbours joined; `None` if any is compressed.
    pub(super) fn extents(
        &self,
        blocks: &Blocks,
        file: &File,
        offset: u64,
        count: u64,
    ) -> Result<Option<Vec<Extent>>, VolumeError> {
        let (mut extents, mut stored) = (Vec::new(), true);
        blocks.each_piece(&file.root, file.inode, file.wanted(offset, count), &mut |piece| {
            match piece.place {
                PiecePlace::Stored(at) => join(&mut extents, piece.offset, piece.length, at),
                PiecePlace::Packed(_) => stored = false,
            }
            Ok(stored)
        })?;
        Ok(stored.then_some(extents))
    }

    /// The first range with data that ends behind `offset`, from there on.
    pub(super) fn data(&self, blocks: &Blocks, file: &File, offset: u64) -> Result<Option<DataRange>, VolumeError> {
        let mut found: Option<DataRange> = None;
        blocks.each_piece(&file.root, file.inode, file.wanted(offset, u64::MAX), &mut |piece| {
            let goes_on = match &mut found {
                None => {
                    found = Some(DataRange { offset: piece.offset, length: piece.length });
                    true
                }
                Some(range) => {
                    let goes_on = range.offset + range.length == piece.offset;
                    range.length += if goes_on { piece.length } else { 0 };
                    goes_on
                }
            };
            Ok(goes_on)
        })?;
        Ok(found)
    }
}

/// The part of a decompressed extent that a piece is.
fn part_of<'a>(bytes: &'a [u8], packed: &Packed, length: u64) -> Result<&'a [u8], VolumeError> {
    let part = bytes.get(packed.within as usize..).and_then(|bytes| bytes.get(..length as usize));
    part.ok_or_else(|| damaged("has a compressed extent that is too short"))
}

/// Adds a part that is in the image, as part of the last one if it continues that.
pub(super) fn join(extents: &mut Vec<Extent>, offset: u64, length: u64, at: u64) {
    match extents.last_mut() {
        Some(last) if last.offset + last.length == offset && last.at + last.length == at => last.length += length,
        _ => extents.push(Extent { offset, length, at, backing: 0 }),
    }
}

fn read(blocks: &Blocks, at: u64, length: u64) -> Result<Vec<u8>, VolumeError> {
    if at.checked_add(length).is_none_or(|end| end > blocks.image.size()) {
        return Err(damaged("has content behind the end of the image"));
    }
    let mut bytes = vec![0; length as usize];
    read_backing(&*blocks.image, at, &mut bytes).map_err(|error| VolumeError::Io { offset: at, error })?;
    Ok(bytes)
}

/// The bytes from a logical address on, which may be in several stripes.
fn read_logical(blocks: &Blocks, mut address: u64, mut length: u64) -> Result<Vec<u8>, VolumeError> {
    let mut bytes = Vec::with_capacity(length.min(MAX_COMPRESSED) as usize);
    while length > 0 {
        let run = blocks.chunks.run(address)?;
        let now = run.length.min(length);
        bytes.append(&mut read(blocks, run.place()?, now)?);
        address = address.checked_add(now).ok_or_else(|| damaged("has content beyond 2^64 bytes"))?;
        length -= now;
    }
    Ok(bytes)
}

/// The decompressed extent, with zeros where it is shorter than its sectors.
fn unpack(blocks: &Blocks, packed: &Packed, bytes: Vec<u8>) -> Result<Vec<u8>, VolumeError> {
    let mut out = vec![0; packed.unpacked as usize];
    let sector = blocks.parameters.sector_size as usize;
    match packed.method.decompress(&bytes, &mut out, sector) {
        Some(_) => Ok(out),
        None => Err(damaged(format!("has an extent that does not decompress ({:?})", packed.method))),
    }
}
