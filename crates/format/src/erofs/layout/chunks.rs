//! Chunk maps of sparse files: chunks of one size, each with blocks or a hole.

use inarch_tree::{DataRange, FileType, InodeId, Tree};

use super::refuse_file;
use crate::FormatError;
use crate::erofs::spec::BLOCK_SIZE;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Chunks have at most 1 GiB: 2^18 blocks.
const BITS_MAX: u32 = 18;
/// Bytes of a chunk's entry in a map.
pub(crate) const ENTRY: u64 = 4;
/// Entries of a map that one [`Mark`] serves.
const STRIDE: u64 = 1024;

/// The runs of blocks of a regular file that hold data, as (first block, number of blocks): ascending, never
/// adjacent.
pub(crate) fn data_runs(tree: &Tree, id: InodeId) -> Runs<'_> {
    let whole = DataRange { offset: 0, length: tree.inode(id).size() };
    match tree.sparse_ranges(id) {
        Some(ranges) => Runs { ranges, whole: None, unit: BLOCK },
        None => Runs { ranges: &[], whole: (whole.length > 0).then_some(whole), unit: BLOCK },
    }
}

/// Ranges of bytes as runs of units that they touch.
#[derive(Clone, Debug)]
pub(crate) struct Runs<'a> {
    ranges: &'a [DataRange],
    /// The one range of a file without holes.
    whole: Option<DataRange>,
    /// Bytes of a unit.
    unit: u64,
}

impl Iterator for Runs<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let range = match self.ranges.split_first() {
            Some((first, rest)) => {
                self.ranges = rest;
                *first
            }
            None => self.whole.take()?,
        };
        let start = range.offset / self.unit;
        let mut end = (range.offset + range.length).div_ceil(self.unit);
        while let Some((next, rest)) = self.ranges.split_first()
            && next.offset / self.unit <= end
        {
            end = (next.offset + next.length).div_ceil(self.unit);
            self.ranges = rest;
        }
        Some((start, end - start))
    }
}

/// Where in a file's ranges a part of its map starts.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Ranges before the part's first chunk.
    range: u32,
    /// Chunks with blocks before it.
    mapped: u32,
}

/// The map of one file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkMap {
    pub(crate) inode: InodeId,
    /// The binary logarithm of blocks in a chunk.
    pub(crate) bits: u32,
    chunks: u64,
    mapped: u64,
    /// Whether the file's last chunk has blocks.
    last_mapped: bool,
    /// Its first mark in [`ChunkMaps::marks`], of one for each [`STRIDE`] chunks.
    first_mark: usize,
}

impl ChunkMap {
    /// Bytes of the map.
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks * ENTRY
    }

    /// Blocks that its chunks take, in a file of `size` bytes: the last chunk ends with the file.
    pub(crate) fn blocks(&self, size: u64) -> u64 {
        let whole = self.mapped << self.bits;
        if !self.last_mapped {
            return whole;
        }
        whole - ((self.chunks << self.bits) - size.div_ceil(BLOCK))
    }

    fn unit(&self) -> u64 {
        BLOCK << self.bits
    }

    /// The runs of chunks with blocks, as (first chunk, number of chunks).
    pub(crate) fn runs<'a>(&self, tree: &'a Tree) -> Runs<'a> {
        Runs { ranges: tree.sparse_ranges(self.inode).unwrap_or_default(), whole: None, unit: self.unit() }
    }
}

/// The maps of all files that have one.
#[derive(Debug, Default)]
pub(crate) struct ChunkMaps {
    /// Ascending by inode.
    maps: Vec<ChunkMap>,
    marks: Vec<Mark>,
}

impl ChunkMaps {
    /// Takes in an inode, if it is a file with holes; they come in the order of their ids.
    pub(crate) fn add(&mut self, tree: &Tree, id: InodeId) -> Result<(), FormatError> {
        let inode = tree.inode(id);
        let Some(ranges) = tree.sparse_ranges(id).filter(|_| inode.file_type() == FileType::Regular) else {
            return Ok(());
        };
        let blocks = inode.size().div_ceil(BLOCK);
        if blocks == 0 || data_runs(tree, id).eq([(0, blocks)]) {
            return Ok(());
        }
        if u32::try_from(ranges.len()).is_err() {
            return Err(refuse_file(tree, id, "its holes are more than 2^32"));
        }
        let bits = best_bits(ranges, inode.size());
        let chunks = inode.size().div_ceil(BLOCK << bits);
        let mut map = ChunkMap { inode: id, bits, chunks, mapped: 0, last_mapped: false, first_mark: self.marks.len() };
        for (start, count) in map.runs(tree) {
            map.mapped += count;
            map.last_mapped = start + count == chunks;
        }
        self.mark(ranges, &map);
        self.maps.push(map);
        Ok(())
    }

    /// Notes where the parts of a map start.
    fn mark(&mut self, ranges: &[DataRange], map: &ChunkMap) {
        let unit = map.unit();
        // The chunks before this one are counted.
        let (mut counted, mut mapped, mut range) = (0, 0, 0);
        for part in 0..map.chunks.div_ceil(STRIDE) {
            let start = part * STRIDE;
            while let Some(next) = ranges.get(range).filter(|next| next.offset / unit < start) {
                let end = (next.offset + next.length).div_ceil(unit);
                let from = counted.max(next.offset / unit);
                mapped += end.min(start).saturating_sub(from);
                counted = counted.max(end.min(start));
                if end > start {
                    break;
                }
                range += 1;
            }
            // Both fit: ranges were counted, and a file has less than 2^32 blocks.
            self.marks.push(Mark { range: range as u32, mapped: mapped as u32 });
        }
    }

    /// The map of an inode that has one.
    pub(crate) fn of(&self, id: InodeId) -> Option<&ChunkMap> {
        let at = self.maps.binary_search_by_key(&id, |map| map.inode).ok()?;
        self.maps.get(at)
    }

    /// Whether there is any.
    pub(crate) fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }

    /// The chunks of `map` from `first` to `end`: for each with blocks, calls `put` with the chunk and how many
    /// chunks with blocks are before it.
    pub(crate) fn mapped(&self, tree: &Tree, map: &ChunkMap, first: u64, end: u64, put: &mut dyn FnMut(u64, u64)) {
        let Some(mark) = self.marks.get(map.first_mark + (first / STRIDE) as usize) else { return };
        let mut runs = map.runs(tree);
        runs.ranges = runs.ranges.get(mark.range as usize..).unwrap_or_default();
        let (mut before, part) = (u64::from(mark.mapped), first / STRIDE * STRIDE);
        for (start, count) in runs {
            // The first run may have begun before the part; those chunks are counted in its mark.
            let (from, to) = (start.max(part), start + count);
            if from >= end {
                break;
            }
            for chunk in from.max(first)..to.min(end) {
                put(chunk, before + (chunk - from));
            }
            before += to - from;
        }
    }
}

/// The size of chunks, as the binary logarithm of blocks, that makes map and zeros in chunks with data together the
/// smallest.
fn best_bits(ranges: &[DataRange], size: u64) -> u32 {
    let cost = |bits: &u32| {
        let unit = BLOCK << bits;
        let runs = Runs { ranges, whole: None, unit };
        let mapped: u64 = runs.map(|(_, count)| count).sum();
        size.div_ceil(unit) * ENTRY + mapped * unit
    };
    (0..=BITS_MAX).min_by_key(cost).unwrap_or(0)
}
