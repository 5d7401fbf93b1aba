//! Finds the content of regular files, anew for each read.

use std::sync::Arc;

use inarch_tree::DataRange;
use inarch_volume::join_data;
use zerocopy::little_endian::U32;

use super::image::{Image, wrong};
use super::metadata::{Reader, Table};
use crate::cache::Cache;
use crate::squashfs::spec::inode::NO_FRAGMENT;
use crate::squashfs::spec::superblock::FragmentEntry;
use crate::squashfs::spec::{BLOCK_STORED, METADATA_SIZE, Reference};
use inarch_volume::VolumeError;

/// Blocks between two checkpoints of a large file: a metadata block full of sizes.
const CHECKPOINT: u64 = (METADATA_SIZE / size_of::<u32>()) as u64;
/// Large files whose checkpoints are kept.
const CHECKED: usize = 16;
const FRAGMENTS_PER_BLOCK: u32 = (METADATA_SIZE / size_of::<FragmentEntry>()) as u32;

/// What a regular file's inode says of its content.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilePlace {
    /// Where its first block is, in bytes from the image's start.
    pub(super) start: u64,
    /// Where the sizes of its blocks are, in the inode table.
    pub(super) list: Reference,
    /// The fragment with its end, or [`NO_FRAGMENT`].
    pub(super) fragment: u32,
    /// Where its end is in the fragment.
    pub(super) offset: u32,
}

/// A place in a large file's list of blocks.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    list: Reference,
    position: u64,
}

/// A data block or a part of a fragment, on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    /// Zeros that are not stored.
    Hole,
    /// Bytes of a file as they are.
    Stored {
        /// Bytes from the image's start.
        at: u64,
    },
    /// In a block that is compressed.
    Compressed {
        /// Where the block is, in bytes from the image's start.
        at: u64,
        /// Bytes of the block on disk.
        length: usize,
        /// Where in the uncompressed block the stretch starts.
        within: usize,
        /// Whether other files have bytes in the block.
        shared: bool,
    },
}

/// The lists of blocks of all regular files.
pub(super) struct Files {
    image: Arc<Image>,
    pub(super) inodes: Table,
    /// Of files read last, by their lists.
    checkpoints: Cache<Vec<Checkpoint>>,
    fragment_blocks: Vec<u64>,
    fragments: Table,
}

impl Files {
    pub(super) fn open(image: &Arc<Image>) -> Result<Files, VolumeError> {
        let superblock = &image.superblock;
        let fragments = superblock.fragments.get();
        let blocks = fragments.div_ceil(FRAGMENTS_PER_BLOCK) as usize;
        let start = superblock.fragment_table.get();
        let fragment_blocks = if blocks > 0 { image.read_offsets(start, blocks)? } else { Vec::new() };
        let (inodes, end) = (superblock.inode_table.get(), superblock.directory_table.get());
        Ok(Files {
            image: Arc::clone(image),
            inodes: Table::new(image, "inode", inodes, end),
            checkpoints: Cache::new(CHECKED),
            fragment_blocks,
            fragments: Table::new(image, "fragment", 0, image.bytes_used()),
        })
    }

    fn block_size(&self) -> u64 {
        self.image.block_size().into()
    }

    /// Checks what an inode says of where a file of `size` bytes is.
    pub(super) fn check(&self, mut place: FilePlace, size: u64) -> Result<FilePlace, VolumeError> {
        let block_size = self.block_size();
        let tail = size % block_size;
        if tail == 0 {
            place.fragment = NO_FRAGMENT;
        }
        if place.fragment != NO_FRAGMENT {
            let fits = u64::from(place.offset) + tail <= block_size;
            if place.fragment >= self.image.superblock.fragments.get() || !fits {
                let (number, offset) = (place.fragment, place.offset);
                return Err(wrong(format!("its end is not in a fragment: number {number}, byte {offset}")));
            }
        }
        match i64::try_from(size) {
            Ok(_) => Ok(place),
            Err(_) => Err(wrong(format!("{size} bytes are more than a file can have"))),
        }
    }

    /// How many sizes of blocks a file has.
    pub(super) fn count(&self, place: &FilePlace, size: u64) -> u64 {
        block_count(size, self.block_size(), place)
    }

    /// Collects the ranges with data of a file that was [checked](Files::check) in the empty `ranges`, a few more than `most` at
    /// most. Returns whether there are holes.
    pub(super) fn ranges(
        &self,
        place: &FilePlace,
        size: u64,
        most: usize,
        ranges: &mut Vec<DataRange>,
    ) -> Result<bool, VolumeError> {
        let block_size = self.block_size();
        let count = self.count(place, size);
        let mut holes = false;
        if count > 0 {
            let mut reader = self.inodes.reader(place.list)?;
            let mut position = place.start;
            for block in 0..count {
                let length = read_size(&mut reader, block_size)?.0;
                let end = position.checked_add(length as u64).filter(|end| *end <= self.image.bytes_used());
                position = end.ok_or_else(|| wrong("its blocks reach beyond the end of the image"))?;
                holes |= length == 0;
                if length > 0 && ranges.len() <= most {
                    let offset = block * block_size;
                    join_data(ranges, offset, (size - offset).min(block_size));
                }
            }
        }
        if place.fragment != NO_FRAGMENT {
            join_data(ranges, count * block_size, size % block_size);
        }
        Ok(holes)
    }

    /// Where the blocks of a file from block `first` are, up to `limit` of them: each with its bytes in the file.
    pub(super) fn stretches(
        &self,
        place: &FilePlace,
        size: u64,
        first: u64,
        limit: usize,
    ) -> Result<Vec<(Stretch, u64)>, VolumeError> {
        let block_size = self.block_size();
        let count = self.count(place, size);
        let end = size.div_ceil(block_size).min(first.saturating_add(limit as u64));
        let mut list = Vec::with_capacity(end.saturating_sub(first) as usize);
        if first < count {
            let (mut reader, mut position) = self.seek(place, first, block_size)?;
            for block in first..end.min(count) {
                let (length, stored) = read_size(&mut reader, block_size)?;
                let bytes = (size - block * block_size).min(block_size);
                list.push((stretch(position, length, stored, bytes)?, bytes));
                position = position.saturating_add(length as u64);
            }
        }
        if end > count && place.fragment != NO_FRAGMENT {
            list.push((self.fragment(place, size % block_size)?, size % block_size));
        }
        Ok(list)
    }

    /// A reader of the sizes of a file's blocks at block `first`, and where that block is.
    fn seek(&self, place: &FilePlace, first: u64, block_size: u64) -> Result<(Reader<'_>, u64), VolumeError> {
        let passed = first / CHECKPOINT;
        let before = self.checkpoint(place, passed as usize, block_size)?;
        let mut reader = self.inodes.reader(before.list)?;
        let mut position = before.position;
        for _ in passed * CHECKPOINT..first {
            position = position.saturating_add(read_size(&mut reader, block_size)?.0 as u64);
        }
        Ok((reader, position))
    }

    /// The place in a file's list after so many checkpoints; those that were not passed yet are made and kept.
    fn checkpoint(&self, place: &FilePlace, passed: usize, block_size: u64) -> Result<Checkpoint, VolumeError> {
        let start = Checkpoint { list: place.list, position: place.start };
        let Some(wanted) = passed.checked_sub(1) else { return Ok(start) };
        let known = self.checkpoints.get(place.list.0);
        if let Some(checkpoint) = known.as_ref().and_then(|known| known.get(wanted)) {
            return Ok(*checkpoint);
        }
        let mut list = known.map(|known| Vec::clone(&known)).unwrap_or_default();
        let Checkpoint { list: at, mut position } = list.last().copied().unwrap_or(start);
        let mut reader = self.inodes.reader(at)?;
        while list.len() < passed {
            for _ in 0..CHECKPOINT {
                position = position.saturating_add(read_size(&mut reader, block_size)?.0 as u64);
            }
            list.push(Checkpoint { list: reader.reference(), position });
        }
        let last = list.last().copied().unwrap_or(start);
        self.checkpoints.put(place.list.0, Arc::new(list));
        Ok(last)
    }

    /// The end of a file, of `tail` bytes.
    fn fragment(&self, place: &FilePlace, tail: u64) -> Result<Stretch, VolumeError> {
        let block = self.fragment_blocks.get((place.fragment / FRAGMENTS_PER_BLOCK) as usize).copied();
        let block = block.ok_or_else(|| wrong(format!("there is no fragment {}", place.fragment)))?;
        let within = (place.fragment % FRAGMENTS_PER_BLOCK) as usize * size_of::<FragmentEntry>();
        let entry: FragmentEntry = self.fragments.reader_at(block, within)?.read_struct()?;
        let (length, stored) = split_size(entry.size.get(), self.block_size())?;
        let (at, offset) = (entry.start.get(), place.offset);
        if length == 0
            || (stored && u64::from(offset) + tail > length as u64)
            || !self.image.contains(at, length as u64)
        {
            return Err(wrong(format!("fragment {} has {length} bytes at byte {at}", place.fragment)));
        }
        Ok(match stored {
            true => Stretch::Stored { at: at + u64::from(offset) },
            false => Stretch::Compressed { at, length, within: offset as usize, shared: true },
        })
    }
}

/// A file's blocks, without its end if that is in a fragment.
fn block_count(size: u64, block_size: u64, place: &FilePlace) -> u64 {
    if place.fragment == NO_FRAGMENT { size.div_ceil(block_size) } else { size / block_size }
}

/// The next size of a block: bytes on disk, and whether they are stored.
fn read_size(reader: &mut Reader<'_>, block_size: u64) -> Result<(usize, bool), VolumeError> {
    split_size(reader.read_struct::<U32>()?.get(), block_size)
}

fn split_size(size: u32, block_size: u64) -> Result<(usize, bool), VolumeError> {
    let length = size & !BLOCK_STORED;
    if u64::from(length) > block_size {
        return Err(wrong(format!("a block of {length} bytes on disk, where {block_size} are the most")));
    }
    Ok((length as usize, size & BLOCK_STORED != 0))
}

fn stretch(at: u64, length: usize, stored: bool, bytes: u64) -> Result<Stretch, VolumeError> {
    match (length, stored) {
        (0, _) => Ok(Stretch::Hole),
        (_, true) if length as u64 == bytes => Ok(Stretch::Stored { at }),
        (_, true) => Err(wrong(format!("a stored block at byte {at} has {length} bytes, and should have {bytes}"))),
        (_, false) => Ok(Stretch::Compressed { at, length, within: 0, shared: false }),
    }
}
