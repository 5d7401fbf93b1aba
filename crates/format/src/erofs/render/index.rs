//! Renders the indexes of compressed files.

use inarch_tree::InodeId;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use super::{BLOCK, Renderer, Window};
use crate::erofs::layout::shape::{Shape, index_offset};
use crate::erofs::spec::compress::{
    BLOCK_COUNT, ClusterIndex, FULL_INDEX_GAP, HEADER_SIZE, Kind, MapHeader, PIECE_BLOCKS, advice,
};

/// Bytes of a cluster's entry.
const ENTRY: u64 = size_of::<ClusterIndex>() as u64;

impl Renderer {
    /// Blocks of a compressed file.
    pub(super) fn compressed_blocks(&self, id: InodeId, size: u64) -> u32 {
        let last = (size - 1) / (PIECE_BLOCKS * BLOCK);
        let piece = |piece| self.layout.pieces.of(id, piece).unwrap_or_default();
        let ((first, _), (start, blocks)) = (piece(0), piece(last));
        start + blocks - first
    }

    /// Renders the part of a compressed file's index in the window; `at` is the end of the attributes.
    pub(super) fn render_index(&self, id: InodeId, shape: &Shape, at: u64, window: &mut Window<'_>) {
        let header_at = at + index_offset(shape.xattrs);
        let header = MapHeader {
            fragment_or_inline: U32::ZERO,
            advice: U16::new(advice::BIG_1),
            // LZ4, in clusters of a block.
            algorithms: 0,
            cluster_bits: 0,
        };
        window.put(header_at, header.as_bytes());
        let start = header_at + HEADER_SIZE + FULL_INDEX_GAP;
        let clusters = shape.size.div_ceil(BLOCK);
        let first = window.start.saturating_sub(start) / ENTRY;
        let end = window.end().saturating_sub(start).div_ceil(ENTRY).min(clusters);
        for cluster in first..end {
            let piece = cluster / PIECE_BLOCKS;
            let within = cluster % PIECE_BLOCKS;
            let count = PIECE_BLOCKS.min(clusters - piece * PIECE_BLOCKS);
            let (block, blocks) = self.layout.pieces.of(id, piece).unwrap_or_default();
            let entry = entry(within as u32, count as u32, block, blocks);
            window.put(start + cluster * ENTRY, entry.as_bytes());
        }
    }
}

/// The entry of cluster `within` of a piece that has `count` clusters of content in `blocks` blocks from `block`.
fn entry(within: u32, count: u32, block: u32, blocks: u32) -> ClusterIndex {
    let ahead = count - within;
    let (kind, value) = match within {
        // A piece that was not compressed: the kernel wants such ones no longer than a cluster.
        _ if blocks == count => (Kind::Plain, block + within),
        0 => (Kind::First, block),
        1 => (Kind::Inside, BLOCK_COUNT | blocks | ahead << 16),
        _ => (Kind::Inside, within | ahead << 16),
    };
    ClusterIndex { kind: U16::new(kind as u16), offset: U16::ZERO, block_or_distances: U32::new(value) }
}
