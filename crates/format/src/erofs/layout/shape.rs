//! The shape of an inode: what follows it, and how many blocks it has elsewhere.

use inarch_tree::{FileType, InodeId, Tree};

use super::chunks::ChunkMaps;
use super::directory::Directories;
use super::xattr::Xattrs;
use crate::erofs::spec::compress::{ClusterIndex, FULL_INDEX_GAP, HEADER_SIZE};
use crate::erofs::spec::inode::{DataLayout, EXTENDED_SIZE};
use crate::erofs::spec::{BLOCK_SIZE, SLOT_SIZE};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The most bytes of a listing, target or file to inline behind an inode at the cost of a gap before it. With more,
/// gaps cost as much as a block would.
const INLINE_MAX: u64 = BLOCK * 3 / 4;

/// What is known of a tree before its inodes get their places.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) directories: Directories,
    pub(crate) xattrs: Xattrs,
    pub(crate) chunks: ChunkMaps,
    /// Whether files without holes that have more than a block are compressed.
    pub(crate) compress: bool,
    /// Whether short files are stored after their inodes.
    pub(crate) inline_files: bool,
}

/// What an inode takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layout: DataLayout,
    /// `i_size` in bytes.
    pub(crate) size: u64,
    /// Bytes of extended attributes after the inode.
    pub(crate) xattrs: u64,
    /// Bytes after those: a listing's tail, a short file, a target, a chunk map, or an index of compressed pieces.
    pub(crate) behind: u64,
    /// Blocks elsewhere, except those of compressed files.
    pub(crate) blocks: u64,
    /// The kernel wants a symlink's target in the block where its inode ends (`erofs_fill_symlink`).
    in_one_block: bool,
}

impl Shape {
    /// The shape of an inode that the tables know.
    pub(crate) fn new(tree: &Tree, id: InodeId, tables: &Tables) -> Shape {
        let inode = tree.inode(id);
        let xattrs = tables.xattrs.area_size(inode.xattrs());
        let empty = Shape { layout: DataLayout::Plain, size: 0, xattrs, behind: 0, blocks: 0, in_one_block: false };
        match inode.file_type() {
            FileType::Regular => match tables.chunks.of(id) {
                Some(map) => {
                    let (size, behind, blocks) = (inode.size(), map.bytes(), map.blocks(inode.size()));
                    Shape { layout: DataLayout::Chunked, size, behind, blocks, ..empty }
                }
                None if tables.compress && inode.size() > BLOCK => {
                    let behind = index_offset(xattrs) + index_size(inode.size());
                    Shape { layout: DataLayout::CompressedFull, size: inode.size(), behind, ..empty }
                }
                // Not the tail of a longer file: its other blocks are elsewhere, so the file would have to be opened
                // twice.
                None if tables.inline_files && inode.size() < BLOCK => {
                    Shape { size: inode.size(), ..empty }.with_tail(BLOCK)
                }
                None => Shape { size: inode.size(), blocks: inode.size().div_ceil(BLOCK), ..empty },
            },
            FileType::Directory => Shape { size: tables.directories.size(tree, id), ..empty }.with_tail(BLOCK),
            FileType::Symlink => {
                let size = tree.symlink_target(id).len() as u64;
                let one_block = Shape { size, in_one_block: true, ..empty };
                one_block.with_tail(BLOCK.saturating_sub(EXTENDED_SIZE + xattrs))
            }
            _ => empty,
        }
    }

    /// Inlines the last block's content, if it is short enough and at most `limit` bytes.
    fn with_tail(self, limit: u64) -> Shape {
        let tail = self.size % BLOCK;
        if tail > 0 && tail <= INLINE_MAX.min(limit) {
            return Shape { layout: DataLayout::Inline, behind: tail, blocks: self.size / BLOCK, ..self };
        }
        Shape { blocks: self.size.div_ceil(BLOCK), in_one_block: false, ..self }
    }

    /// The first possible place at or after `from` (a multiple of 32): inline data must not cross a block's end,
    /// except extended attributes and chunk maps.
    pub(crate) fn fit(&self, from: u64) -> u64 {
        if self.layout != DataLayout::Inline {
            return from;
        }
        let before = if self.in_one_block { 0 } else { EXTENDED_SIZE + self.xattrs };
        let length = EXTENDED_SIZE + self.xattrs + self.behind - before;
        let start = from + before;
        let block_end = start.next_multiple_of(BLOCK);
        if start + length <= block_end || start == block_end {
            return from;
        }
        (block_end - before).next_multiple_of(SLOT_SIZE)
    }

    /// The size of the inode with everything inlined after it, a multiple of 32.
    pub(crate) fn size_in_inodes(&self) -> u64 {
        (EXTENDED_SIZE + self.xattrs + self.behind).next_multiple_of(SLOT_SIZE)
    }
}

/// Bytes between attributes and an index of compressed pieces, whose header is at a multiple of eight.
pub(crate) fn index_offset(xattrs: u64) -> u64 {
    xattrs.next_multiple_of(8) - xattrs
}

/// Bytes of the index of a compressed file of `size` bytes.
fn index_size(size: u64) -> u64 {
    HEADER_SIZE + FULL_INDEX_GAP + size.div_ceil(BLOCK) * size_of::<ClusterIndex>() as u64
}
