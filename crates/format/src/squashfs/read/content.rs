//! The content of an image's files, decompressed on read.

use std::sync::{Arc, Mutex, PoisonError};

use inarch_block::Cursor;
use inarch_tree::{DataRange, Extent};
use inarch_volume::VolumeError;

use super::files::{FilePlace, Files, Stretch};
use super::image::{Image, wrong};
use crate::cache::Cache;

/// Bytes of decompressed blocks that are kept.
const CACHED_BYTES: usize = 32 << 20;
/// Blocks of a file that are looked up at once.
const BATCH: usize = 256;

/// A file, as its inode says.
#[derive(Clone, Copy)]
pub(super) struct File {
    pub(super) place: FilePlace,
    /// Bytes.
    pub(super) size: u64,
}

/// The blocks of one image.
pub(super) struct Packed {
    image: Arc<Image>,
    cache: Cache<Vec<u8>>,
    /// Buffers for blocks that are read whole, and not kept.
    spare: Mutex<Vec<Vec<u8>>>,
}

impl Packed {
    pub(super) fn new(image: Arc<Image>) -> Packed {
        let blocks = CACHED_BYTES / image.block_size() as usize;
        Packed { image, cache: Cache::new(blocks), spare: Mutex::default() }
    }

    /// Calls `take` for each block of a range of a file: the block's place, the range's start in the block, the bytes
    /// of the block in the range, and all bytes of the block. The range ends within the file.
    fn each_stretch(
        &self,
        files: &Files,
        file: &File,
        offset: u64,
        end: u64,
        take: &mut dyn FnMut(Stretch, u64, u64, u64) -> Result<bool, VolumeError>,
    ) -> Result<(), VolumeError> {
        let block_size = u64::from(self.image.block_size());
        let mut at = offset;
        while at < end {
            let first = at / block_size;
            let wanted = (end.div_ceil(block_size) - first).min(BATCH as u64) as usize;
            let stretches = files.stretches(&file.place, file.size, first, wanted)?;
            if stretches.is_empty() {
                return Err(wrong("a file has no block where it should have"));
            }
            for (stretch, bytes) in stretches {
                let within = at % block_size;
                let count = bytes.saturating_sub(within).min(end - at);
                if count == 0 || !take(stretch, within, count, bytes)? {
                    return Ok(());
                }
                at += count;
            }
        }
        Ok(())
    }

    /// Puts `count` bytes of a file from `offset` into `out`, zeros behind its end.
    pub(super) fn read(
        &self,
        files: &Files,
        file: &File,
        offset: u64,
        count: u64,
        out: &mut Cursor<'_, '_>,
    ) -> Result<(), VolumeError> {
        let end = offset.saturating_add(count).min(file.size);
        self.each_stretch(files, file, offset, end, &mut |stretch, within, count, bytes| {
            match stretch {
                Stretch::Hole => out.fill_zeros(count),
                Stretch::Stored { at } => {
                    let from = at.saturating_add(within);
                    let read = self.image.backing.read(from, count, out);
                    read.map_err(|error| VolumeError::Io { offset: from, error })?;
                }
                Stretch::Compressed { at, length, within: start, shared } => {
                    let from = start + within as usize;
                    let range = from..from + count as usize;
                    let keep = shared || count < bytes;
                    self.with_block(at, length, start + bytes as usize, keep, &mut |block| {
                        out.copy_from(block.get(range.clone()).unwrap_or_default());
                    })?;
                }
            }
            Ok(true)
        })?;
        out.fill_zeros(count - end.saturating_sub(offset));
        Ok(())
    }

    /// Gives `take` the block at a byte of the image, which has `bytes` bytes or more when it is decompressed.
    fn with_block(
        &self,
        at: u64,
        length: usize,
        bytes: usize,
        keep: bool,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), VolumeError> {
        let short = || wrong(format!("the block at byte {at} decompresses to fewer bytes than {bytes}"));
        if let Some(block) = self.cache.get(at) {
            take(block.get(..bytes).ok_or_else(short)?);
            return Ok(());
        }
        let mut buffer = match keep {
            true => Vec::new(),
            false => self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default(),
        };
        buffer.resize(self.image.block_size() as usize, 0);
        let decoded = self.image.decode(at, length, &mut buffer)?;
        let decoded = decoded.map_err(|corrupt| wrong(format!("{corrupt}: the one at byte {at}")))?;
        take(buffer.get(..decoded.min(buffer.len())).and_then(|block| block.get(..bytes)).ok_or_else(short)?);
        if keep {
            buffer.truncate(decoded);
            buffer.shrink_to_fit();
            self.cache.put(at, Arc::new(buffer));
        } else {
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        }
        Ok(())
    }

    /// The parts of a range that lie in the image as they are, neighbours joined; `None` if any is compressed.
    pub(super) fn extents(
        &self,
        files: &Files,
        file: &File,
        offset: u64,
        end: u64,
    ) -> Result<Option<Vec<Extent>>, VolumeError> {
        let mut parts: Vec<Extent> = Vec::new();
        let mut stored = true;
        let mut position = offset;
        self.each_stretch(files, file, offset, end.min(file.size), &mut |stretch, within, count, _| {
            match stretch {
                Stretch::Hole => {}
                Stretch::Compressed { .. } => stored = false,
                Stretch::Stored { at } => match parts.last_mut() {
                    Some(last) if last.offset + last.length == position && last.at + last.length == at + within => {
                        last.length += count;
                    }
                    _ => parts.push(Extent { offset: position, at: at + within, length: count, backing: 0 }),
                },
            }
            position += count;
            Ok(stored)
        })?;
        Ok(stored.then_some(parts))
    }

    /// The first range of data that ends behind `offset`, as far as that can be told from the block with `offset` on.
    pub(super) fn data(&self, files: &Files, file: &File, offset: u64) -> Result<Option<DataRange>, VolumeError> {
        let mut found: Option<DataRange> = None;
        let mut position = offset;
        self.each_stretch(files, file, offset, file.size, &mut |stretch, _, count, _| {
            let is_data = stretch != Stretch::Hole;
            match &mut found {
                Some(range) if is_data => range.length += count,
                Some(_) => return Ok(false),
                None if is_data => found = Some(DataRange { offset: position, length: count }),
                None => {}
            }
            position += count;
            Ok(true)
        })?;
        Ok(found)
    }
}
