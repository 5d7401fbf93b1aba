//! Renders any metadata block of a planned EROFS image on demand.

mod index;
mod inode;
mod listing;
mod xattr;

use std::sync::Arc;

use inarch_block::{Inlay, Metadata};
use inarch_tree::Tree;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::layout::Layout;
use super::spec::compress::Lz4Config;
use super::spec::compress::PIECE_BLOCKS;
use super::spec::superblock::{MAGIC, OFFSET, Superblock, checksum, compat, incompat};
use super::spec::{BLOCK_SIZE, Block};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Renders the metadata of one image. Holds no block: each is made from the tree and the layout's tables.
pub(crate) struct Renderer {
    tree: Arc<Tree>,
    layout: Layout,
}

impl Renderer {
    pub(crate) fn new(tree: Arc<Tree>, layout: Layout) -> Renderer {
        Renderer { tree, layout }
    }

    fn render_superblock(&self, out: &mut Block) {
        let layout = &self.layout;
        let mut volume_name = [0; 16];
        for (to, from) in volume_name.iter_mut().zip(layout.label.bytes()) {
            *to = from;
        }
        let chunked = if layout.tables.chunks.is_empty() { 0 } else { incompat::CHUNKED_FILE };
        let compressed = if layout.tables.compress { incompat::ZERO_PADDING | incompat::COMPR_CFGS } else { 0 };
        let mut superblock = Superblock {
            magic: U32::new(MAGIC),
            checksum: U32::ZERO,
            feature_compat: U32::new(compat::SB_CHKSUM | compat::MTIME),
            block_bits: BLOCK_SIZE.ilog2() as u8,
            ext_slots: 0,
            root_nid: U16::new(layout.nids.first().map_or(0, |nid| *nid as u16)),
            inodes: U64::new(layout.nids.len() as u64),
            epoch: U64::new(layout.epoch as u64),
            epoch_nanoseconds: U32::ZERO,
            blocks: U32::new(layout.regions.packed.end as u32),
            meta_block: U32::ZERO,
            xattr_block: U32::new(layout.regions.xattrs.start as u32),
            uuid: layout.uuid,
            volume_name,
            feature_incompat: U32::new(chunked | compressed),
            // A bit for LZ4, the first algorithm.
            algorithms: U16::new(layout.tables.compress.into()),
            extra_devices: U16::ZERO,
            device_table_slot: U16::ZERO,
            directory_block_bits: 0,
            xattr_prefix_count: 0,
            xattr_prefix_start: U32::ZERO,
            packed_nid: U64::ZERO,
            xattr_filter_reserved: 0,
            reserved: [0; 3],
            build_time: U32::ZERO,
            root_nid_long: U64::ZERO,
            reserved_tail: U64::ZERO,
        };
        let mut window = Window { start: 0, out };
        window.put(OFFSET as u64, superblock.as_bytes());
        if layout.tables.compress {
            let config = Lz4Config::new(PIECE_BLOCKS as u16);
            window.put((OFFSET + size_of::<Superblock>()) as u64, config.as_bytes());
        }
        superblock.checksum = U32::new(checksum(window.out.get(OFFSET..).unwrap_or_default()));
        window.put(OFFSET as u64, superblock.as_bytes());
    }
}

impl Metadata for Renderer {
    fn render(&self, block: u64, out: &mut Block) {
        let regions = &self.layout.regions;
        if block == 0 {
            self.render_superblock(out);
        } else if block < regions.inodes.end {
            self.render_inodes(&mut Window { start: block * BLOCK, out });
        } else if block < regions.xattrs.end {
            self.render_shared_xattrs(&mut Window { start: (block - regions.xattrs.start) * BLOCK, out });
        } else if block < regions.listings.end {
            self.render_listing(block - regions.listings.start, out);
        }
    }

    fn inlays(&self, block: u64) -> Vec<Inlay> {
        if !self.layout.tables.inline_files || !self.layout.regions.inodes.contains(&block) {
            return Vec::new();
        }
        self.files_in(block * BLOCK)
    }
}

/// The block being rendered, as a window of its region: writes outside of it are dropped.
pub(crate) struct Window<'a> {
    /// Byte of the region where the block starts.
    start: u64,
    out: &'a mut Block,
}

impl Window<'_> {
    /// Puts `bytes` at byte `at` of the region.
    fn put(&mut self, at: u64, bytes: &[u8]) {
        let skip = self.start.saturating_sub(at) as usize;
        let bytes = bytes.get(skip..).unwrap_or_default();
        let to = at.max(self.start) - self.start;
        let Some(out) = self.out.get_mut(to.min(BLOCK) as usize..) else { return };
        for (to, from) in out.iter_mut().zip(bytes) {
            *to = *from;
        }
    }

    fn end(&self) -> u64 {
        self.start + BLOCK
    }
}
