//! [`BlockMap`]: maps device blocks to zeros, metadata, or a file's range.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use inarch_tree::InodeId;

use crate::{Content, read_content};

/// Bytes in a block; every offset of a map counts in blocks of this size.
pub const BLOCK_SIZE: usize = 4096;

/// Renders a format's metadata blocks when they are read. Pure: the same block always has the same bytes.
pub trait Metadata: Send + Sync {
    /// Writes device block `block` into `out`, which holds zeros. Called only for blocks in the map's metadata ranges,
    /// from several threads at once; must be cheap enough for every read (tens of microseconds).
    fn render(&self, block: u64, out: &mut [u8; BLOCK_SIZE]);

    /// The ranges of files within metadata block `block`; [`Metadata::render`] leaves them zero.
    fn inlays(&self, block: u64) -> Vec<Inlay> {
        let _ = block;
        Vec::new()
    }
}

/// A range of a file that lies within one metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inlay {
    /// Where in the block it starts, in bytes.
    pub at: usize,
    /// The file.
    pub inode: InodeId,
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// How long it is, in bytes; never 0.
    pub length: usize,
}

impl Inlay {
    /// Reads the range to its place in `block`; errors are those of [`Content::read`].
    pub fn read(&self, content: &dyn Content, block: &mut [u8; BLOCK_SIZE]) -> io::Result<()> {
        let out = block.get_mut(self.at..self.at.saturating_add(self.length)).unwrap_or_default();
        read_content(content, self.inode, self.offset, out)
    }
}

/// `blocks` blocks of the device, from block `start`, that hold the file `inode` from its block `first`. The last block
/// may extend beyond the file's end; that tail reads as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// First block on the device.
    pub start: u64,
    /// Number of blocks, not 0.
    pub blocks: u32,
    /// First block within the file.
    pub first: u32,
    /// The file.
    pub inode: InodeId,
}

/// What a run of blocks is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Zeros.
    Zeros,
    /// Rendered by the map's [`Metadata`].
    Metadata,
    /// A range of a file that starts at its block `block`.
    File {
        /// The file.
        inode: InodeId,
        /// Block within the file where the run starts.
        block: u64,
    },
}

/// Why parts do not make a map: a bug in a format's planner, never a result of its input.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MapError {
    /// Ranges overlap, are empty, out of order or beyond the device's end.
    #[error("{0} at block {1} overlaps what is before it, is empty, or ends beyond the device")]
    Disorder(&'static str, u64),
}

/// What every block of a device is. Blocks in no range are zeros.
pub struct BlockMap {
    blocks: u64,
    metadata: Vec<Range<u64>>,
    files: Vec<FileExtent>,
    renderer: Arc<dyn Metadata>,
}

impl BlockMap {
    /// A map of `blocks` blocks from metadata ranges and file extents, each ascending and disjoint.
    pub fn new(
        blocks: u64,
        metadata: Vec<Range<u64>>,
        files: Vec<FileExtent>,
        renderer: Arc<dyn Metadata>,
    ) -> Result<BlockMap, MapError> {
        let mut end = 0;
        for range in &metadata {
            if range.start < end || range.is_empty() || range.end > blocks {
                return Err(MapError::Disorder("metadata", range.start));
            }
            end = range.end;
        }
        end = 0;
        for file in &files {
            let stop = file.start.checked_add(file.blocks.into()).filter(|stop| *stop <= blocks);
            end = match stop {
                Some(stop) if file.start >= end && file.blocks > 0 => stop,
                _ => return Err(MapError::Disorder("a file", file.start)),
            };
        }
        Ok(BlockMap { blocks, metadata, files, renderer })
    }

    /// Blocks of the whole map.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Number of blocks that hold metadata or a file; the others read as zeros.
    pub fn used_blocks(&self) -> u64 {
        let metadata: u64 = self.metadata.iter().map(|range| range.end - range.start).sum();
        metadata + self.files.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>()
    }

    /// The ranges of blocks that are metadata, ascending.
    pub fn metadata(&self) -> &[Range<u64>] {
        &self.metadata
    }

    /// The files' extents, ascending by device block.
    pub fn files(&self) -> &[FileExtent] {
        &self.files
    }

    /// What `block` is, and for how many blocks (at least 1) that continues; zeros beyond the end.
    pub fn lookup(&self, block: u64) -> (Run, u64) {
        let mut limit = u64::MAX;
        let next = self.files.partition_point(|file| file.start <= block);
        if let Some(file) = next.checked_sub(1).and_then(|i| self.files.get(i)) {
            let within = block - file.start;
            if within < u64::from(file.blocks) {
                let run = Run::File { inode: file.inode, block: u64::from(file.first) + within };
                return (run, u64::from(file.blocks) - within);
            }
        }
        if let Some(file) = self.files.get(next) {
            limit = file.start;
        }
        let next = self.metadata.partition_point(|range| range.start <= block);
        if let Some(range) = next.checked_sub(1).and_then(|i| self.metadata.get(i))
            && block < range.end
        {
            return (Run::Metadata, range.end.min(limit) - block);
        }
        if let Some(range) = self.metadata.get(next) {
            limit = limit.min(range.start);
        }
        (Run::Zeros, limit - block)
    }

    /// The ranges of files within metadata block `block`; [`BlockMap::render`] leaves them zero.
    pub fn inlays(&self, block: u64) -> Vec<Inlay> {
        self.renderer.inlays(block)
    }

    /// Renders metadata block `block` into `out`, overwriting it.
    pub fn render(&self, block: u64, out: &mut [u8; BLOCK_SIZE]) {
        out.fill(0);
        self.renderer.render(block, out);
    }
}
