//! Where the content of regular files is: found once, when the image is opened, and again when it is read.

use std::collections::HashMap;
use std::sync::Arc;

use inarch_tree::{DataRange, InodeId};
use zerocopy::little_endian::U32;

use super::image::{Image, wrong};
use super::metadata::{Reader, Table};
use crate::ReadError;
use crate::squashfs::spec::inode::NO_FRAGMENT;
use crate::squashfs::spec::superblock::FragmentEntry;
use crate::squashfs::spec::{BLOCK_STORED, METADATA_SIZE, Reference};

/// Blocks between two checkpoints of a large file: a metadata block full of sizes.
const CHECKPOINT: u64 = (METADATA_SIZE / size_of::<u32>()) as u64;
/// Blocks of all files at most: 32 TiB of content in blocks of 128 KiB.
const MAX_BLOCKS: u64 = 1 << 28;
/// Ranges of data between holes at most; a file that would exceed them is taken as one without holes, which read as
/// zeros all the same.
const MAX_RANGES: usize = 1 << 22;
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

const NOWHERE: FilePlace = FilePlace { start: 0, list: Reference(0), fragment: NO_FRAGMENT, offset: 0 };

/// A place in a large file's list of blocks.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    list: Reference,
    position: u64,
}

/// A data block or a part of a fragment, on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stretch {
    /// Zeros that are not there.
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

/// The places of all regular files.
pub(super) struct Files {
    image: Arc<Image>,
    pub(super) inodes: Table,
    /// By inode of the tree.
    places: Vec<FilePlace>,
    checkpoints: HashMap<InodeId, Box<[Checkpoint]>>,
    fragment_blocks: Vec<u64>,
    fragments: Table,
    /// Blocks of all files so far.
    blocks: u64,
    /// Ranges of data of all files so far.
    ranges: usize,
}

impl Files {
    pub(super) fn open(image: &Arc<Image>) -> Result<Files, ReadError> {
        let superblock = &image.superblock;
        let fragments = superblock.fragments.get();
        let blocks = fragments.div_ceil(FRAGMENTS_PER_BLOCK) as usize;
        let start = superblock.fragment_table.get();
        let fragment_blocks = if blocks > 0 { image.read_offsets(start, blocks)? } else { Vec::new() };
        let (inodes, end) = (superblock.inode_table.get(), superblock.directory_table.get());
        Ok(Files {
            image: Arc::clone(image),
            inodes: Table::new(image, "inode", inodes, end),
            places: Vec::new(),
            checkpoints: HashMap::new(),
            fragment_blocks,
            fragments: Table::new(image, "fragment", 0, image.bytes_used()),
            blocks: 0,
            ranges: 0,
        })
    }

    fn block_size(&self) -> u64 {
        self.image.block_size().into()
    }

    /// Checks where a file of `size` bytes is, and remembers it. Gives the ranges with data if there are holes.
    pub(super) fn add(
        &mut self,
        id: InodeId,
        mut place: FilePlace,
        size: u64,
    ) -> Result<Option<Vec<DataRange>>, ReadError> {
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
        if i64::try_from(size).is_err() {
            return Err(wrong(format!("{size} bytes are more than a file can have")));
        }
        self.places.resize(self.places.len().max(id.index() + 1), NOWHERE);
        let count = block_count(size, block_size, &place);
        self.blocks = self.blocks.saturating_add(count);
        if self.blocks > MAX_BLOCKS {
            return Err(wrong(format!("the files so far have more than {MAX_BLOCKS} blocks")));
        }
        let ranges = self.walk_blocks(id, &place, size, count)?;
        if let Some(slot) = self.places.get_mut(id.index()) {
            *slot = place;
        }
        Ok(ranges)
    }

    /// Goes through the sizes of a file's blocks.
    fn walk_blocks(
        &mut self,
        id: InodeId,
        place: &FilePlace,
        size: u64,
        count: u64,
    ) -> Result<Option<Vec<DataRange>>, ReadError> {
        let block_size = self.block_size();
        let image = Arc::clone(&self.image);
        let mut checkpoints = Vec::new();
        let mut holes = Holes::default();
        if count > 0 {
            let mut reader = self.inodes.reader(place.list)?;
            let mut position = place.start;
            for block in 0..count {
                if block % CHECKPOINT == 0 && block > 0 {
                    checkpoints.push(Checkpoint { list: reader.reference(), position });
                }
                let length = read_size(&mut reader, block_size)?.0;
                let end = position.checked_add(length as u64).filter(|end| *end <= image.bytes_used());
                position = end.ok_or_else(|| wrong("its blocks reach beyond the end of the image"))?;
                holes.push(block * block_size..((block + 1) * block_size).min(size), length > 0);
            }
        }
        if place.fragment != NO_FRAGMENT {
            holes.push(count * block_size..size, true);
        }
        if !checkpoints.is_empty() {
            self.checkpoints.insert(id, checkpoints.into());
        }
        if !holes.any || self.ranges + holes.ranges.len() > MAX_RANGES {
            return Ok(None);
        }
        self.ranges += holes.ranges.len();
        Ok(Some(holes.ranges))
    }

    /// Where the blocks of a file from block `first` are, up to `limit` of them: each with its bytes in the file.
    pub(super) fn stretches(
        &self,
        id: InodeId,
        size: u64,
        first: u64,
        limit: usize,
    ) -> Result<Vec<(Stretch, u64)>, ReadError> {
        let place = self.places.get(id.index()).copied().unwrap_or(NOWHERE);
        let block_size = self.block_size();
        let count = block_count(size, block_size, &place);
        let end = size.div_ceil(block_size).min(first.saturating_add(limit as u64));
        let mut list = Vec::with_capacity(end.saturating_sub(first) as usize);
        if first < count {
            let (mut reader, mut position) = self.seek(id, &place, first, block_size)?;
            for block in first..end.min(count) {
                let (length, stored) = read_size(&mut reader, block_size)?;
                let bytes = (size - block * block_size).min(block_size);
                list.push((stretch(position, length, stored, bytes)?, bytes));
                position = position.saturating_add(length as u64);
            }
        }
        if end > count && place.fragment != NO_FRAGMENT {
            list.push((self.fragment(&place, size % block_size)?, size % block_size));
        }
        Ok(list)
    }

    /// A reader of the sizes of a file's blocks at block `first`, and where that block is.
    fn seek(
        &self,
        id: InodeId,
        place: &FilePlace,
        first: u64,
        block_size: u64,
    ) -> Result<(Reader<'_>, u64), ReadError> {
        let checkpoints = self.checkpoints.get(&id).map_or(&[][..], |list| list);
        let passed = (first / CHECKPOINT).min(checkpoints.len() as u64);
        let start = Checkpoint { list: place.list, position: place.start };
        let before = passed.checked_sub(1).and_then(|last| checkpoints.get(last as usize)).copied().unwrap_or(start);
        let mut reader = self.inodes.reader(before.list)?;
        let mut position = before.position;
        for _ in passed * CHECKPOINT..first {
            position = position.saturating_add(read_size(&mut reader, block_size)?.0 as u64);
        }
        Ok((reader, position))
    }

    /// The end of a file, of `tail` bytes.
    fn fragment(&self, place: &FilePlace, tail: u64) -> Result<Stretch, ReadError> {
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
fn read_size(reader: &mut Reader<'_>, block_size: u64) -> Result<(usize, bool), ReadError> {
    split_size(reader.read_struct::<U32>()?.get(), block_size)
}

fn split_size(size: u32, block_size: u64) -> Result<(usize, bool), ReadError> {
    let length = size & !BLOCK_STORED;
    if u64::from(length) > block_size {
        return Err(wrong(format!("a block of {length} bytes on disk, where {block_size} are the most")));
    }
    Ok((length as usize, size & BLOCK_STORED != 0))
}

fn stretch(at: u64, length: usize, stored: bool, bytes: u64) -> Result<Stretch, ReadError> {
    match (length, stored) {
        (0, _) => Ok(Stretch::Hole),
        (_, true) if length as u64 == bytes => Ok(Stretch::Stored { at }),
        (_, true) => Err(wrong(format!("a stored block at byte {at} has {length} bytes, and should have {bytes}"))),
        (_, false) => Ok(Stretch::Compressed { at, length, within: 0, shared: false }),
    }
}

/// Collects ranges of data.
#[derive(Default)]
struct Holes {
    any: bool,
    ranges: Vec<DataRange>,
}

impl Holes {
    fn push(&mut self, range: std::ops::Range<u64>, data: bool) {
        if !data {
            self.any = true;
            return;
        }
        let full = self.ranges.len() > MAX_RANGES;
        match self.ranges.last_mut() {
            Some(last) if last.offset + last.length == range.start => last.length = range.end - last.offset,
            // One more than may be kept says that there are too many.
            _ if full => {}
            _ => self.ranges.push(DataRange { offset: range.start, length: range.end - range.start }),
        }
    }
}
