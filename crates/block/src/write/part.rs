//! [`Part`]: one piece of an image.

use std::ops::AddAssign;

use inarch_tree::InodeId;

use super::{ImageSource, WriteError};
use crate::{BLOCK_SIZE, BlockMap, Content, Run, read_content};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A part of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Blocks of the map's metadata.
    Metadata {
        /// The first of them.
        block: u64,
        /// How many; not 0.
        blocks: u64,
    },
    /// A range of a file's content, zeros beyond its end.
    File {
        /// The file.
        inode: InodeId,
        /// Where in it the range starts, in bytes.
        offset: u64,
        /// How long it is, in bytes; not 0.
        length: u64,
    },
}

/// A part and its offset in the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Where it starts, in bytes.
    pub at: u64,
    /// What is there.
    pub part: Part,
}

impl Part {
    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::Metadata { blocks, .. } => blocks * BLOCK,
            Part::File { length, .. } => *length,
        }
    }

    /// The first `length` bytes (a multiple of the block size for metadata), and the rest.
    pub(super) fn split(self, length: u64) -> (Part, Part) {
        match self {
            Part::Bytes(mut bytes) => {
                let rest = bytes.split_off((length as usize).min(bytes.len()));
                (Part::Bytes(bytes), Part::Bytes(rest))
            }
            Part::Metadata { block, blocks } => {
                let first = (length / BLOCK).min(blocks);
                let rest = Part::Metadata { block: block + first, blocks: blocks - first };
                (Part::Metadata { block, blocks: first }, rest)
            }
            Part::File { inode, offset, length: whole } => {
                let first = length.min(whole);
                let rest = Part::File { inode, offset: offset + first, length: whole - first };
                (Part::File { inode, offset, length: first }, rest)
            }
        }
    }

    /// Writes the part's bytes into `out`, which has its length and any content; returns how much of it is file
    /// content.
    pub(super) fn fill(&self, source: &ImageSource<'_>, out: &mut [u8]) -> Result<Filled, WriteError> {
        let mut filled = Filled::default();
        match self {
            Part::Bytes(bytes) => out.copy_from_slice(bytes),
            Part::Metadata { block, .. } => {
                let (blocks, _) = out.as_chunks_mut::<BLOCK_SIZE>();
                for (number, out) in (*block..).zip(blocks) {
                    match source.map {
                        Some(map) => filled += render(map, number, source.content, out)?,
                        None => out.fill(0),
                    }
                }
            }
            Part::File { inode, offset, length } => {
                read_content(source.content, *inode, *offset, out)
                    .map_err(|error| WriteError::Content { inode: Some(*inode), error })?;
                filled.bytes += length;
            }
        }
        Ok(filled)
    }
}

/// How much of some bytes is file content.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filled {
    /// Bytes of file content, in whole blocks where the image has blocks.
    pub(super) bytes: u64,
    /// Files that lie completely within metadata.
    pub(super) files: u64,
}

impl AddAssign for Filled {
    fn add_assign(&mut self, other: Filled) {
        self.bytes += other.bytes;
        self.files += other.files;
    }
}

/// Renders a metadata block, including the ranges of files in it.
fn render(map: &BlockMap, block: u64, content: &dyn Content, out: &mut [u8; BLOCK_SIZE]) -> Result<Filled, WriteError> {
    map.render(block, out);
    let mut filled = Filled::default();
    for inlay in map.inlays(block) {
        inlay.read(content, out).map_err(|error| WriteError::Content { inode: Some(inlay.inode), error })?;
        filled += Filled { bytes: BLOCK, files: (inlay.offset == 0).into() };
    }
    Ok(filled)
}

/// The parts of a block map.
pub struct MapParts<'a> {
    map: &'a BlockMap,
    block: u64,
}

impl<'a> MapParts<'a> {
    /// All of `map`, from its first block.
    pub fn new(map: &'a BlockMap) -> MapParts<'a> {
        MapParts { map, block: 0 }
    }
}

impl Iterator for MapParts<'_> {
    type Item = Placed;

    fn next(&mut self) -> Option<Placed> {
        while self.block < self.map.blocks() {
            let block = self.block;
            let (run, count) = self.map.lookup(block);
            let blocks = count.min(self.map.blocks() - block);
            self.block += blocks;
            let part = match run {
                Run::Zeros => continue,
                Run::Metadata => Part::Metadata { block, blocks },
                Run::File { inode, block } => Part::File { inode, offset: block * BLOCK, length: blocks * BLOCK },
            };
            return Some(Placed { at: block * BLOCK, part });
        }
        None
    }
}
