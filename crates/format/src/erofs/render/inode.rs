//! Renders inodes and what follows them.

use inarch_block::Inlay;
use inarch_tree::{FileType, InodeId};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::{BLOCK, Renderer, Window};
use crate::erofs::layout::chunks::{ChunkMap, ENTRY};
use crate::erofs::layout::shape::Shape;
use crate::erofs::spec::inode::{DataLayout, EXTENDED_SIZE, ExtendedInode, FORMAT_EXTENDED, encode_device};
use crate::erofs::spec::xattr::area_count;
use crate::erofs::spec::{BLOCK_SIZE, NULL_BLOCK, SLOT_SIZE};

impl Renderer {
    /// The inodes that overlap the device block that starts at byte `start`, with their own starts; the first may end
    /// before it.
    fn inodes_in(&self, start: u64) -> impl Iterator<Item = (InodeId, u64)> {
        let nids = &self.layout.nids;
        let next = nids.partition_point(|nid| u64::from(*nid) * SLOT_SIZE <= start);
        let ids = (next.saturating_sub(1)..nids.len()).map(|index| InodeId(index as u32));
        ids.map(|id| (id, self.place_of(id))).take_while(move |(_, at)| *at < start + BLOCK)
    }

    /// Renders the inodes that overlap `window`, a block of the device.
    pub(super) fn render_inodes(&self, window: &mut Window<'_>) {
        for (id, at) in self.inodes_in(window.start) {
            self.render_inode(id, at, window);
        }
    }

    /// The files inlined behind their inodes in the device block that starts at byte `start`.
    pub(super) fn files_in(&self, start: u64) -> Vec<Inlay> {
        let inlay = |(id, at): (InodeId, u64)| {
            let shape = self.shape(id);
            let at = (at + EXTENDED_SIZE + shape.xattrs).checked_sub(start).filter(|at| *at < BLOCK)?;
            let inlay = Inlay { at: at as usize, inode: id, offset: 0, length: shape.behind as usize };
            (shape.layout == DataLayout::Inline).then_some(inlay)
        };
        let files = self.inodes_in(start).filter(|(id, _)| self.tree.inode(*id).file_type() == FileType::Regular);
        files.filter_map(inlay).collect()
    }

    /// Byte of the device where an inode starts.
    fn place_of(&self, id: InodeId) -> u64 {
        self.layout.nids.get(id.index()).map_or(0, |nid| u64::from(*nid) * SLOT_SIZE)
    }

    pub(super) fn shape(&self, id: InodeId) -> Shape {
        Shape::new(&self.tree, id, &self.layout.tables)
    }

    fn render_inode(&self, id: InodeId, at: u64, window: &mut Window<'_>) {
        let shape = self.shape(id);
        let first_block = self.layout.first_block(&self.tree, id, &shape);
        let inode = self.tree.inode(id);
        let block = match (inode.file_type(), self.layout.tables.chunks.of(id)) {
            (FileType::CharDevice | FileType::BlockDevice, _) => {
                let (major, minor) = inode.device();
                encode_device(major, minor).unwrap_or(0)
            }
            (_, Some(map)) => map.bits,
            _ if shape.layout == DataLayout::CompressedFull => self.compressed_blocks(id, shape.size),
            _ => first_block as u32,
        };
        let record = ExtendedInode {
            format: U16::new(FORMAT_EXTENDED | (shape.layout as u16) << 1),
            xattr_count: U16::new(area_count(shape.xattrs as usize)),
            mode: U16::new(inode.mode() as u16),
            block_high: U16::ZERO,
            size: U64::new(shape.size),
            block: U32::new(block),
            ino: U32::new(id.0.wrapping_add(1)),
            uid: U32::new(inode.uid()),
            gid: U32::new(inode.gid()),
            mtime: U64::new(inode.mtime().seconds as u64),
            mtime_nanoseconds: U32::new(inode.mtime().nanoseconds.min(999_999_999)),
            links: U32::new(inode.links()),
            reserved: [0; 16],
        };
        window.put(at, record.as_bytes());
        let behind = at + EXTENDED_SIZE;
        if shape.xattrs > 0 && behind < window.end() {
            self.render_own_xattrs(inode.xattrs(), behind, window);
        }
        let behind = behind + shape.xattrs;
        match shape.layout {
            DataLayout::Chunked => {
                if let Some(map) = self.layout.tables.chunks.of(id) {
                    self.render_chunks(map, first_block, behind, window);
                }
            }
            DataLayout::CompressedFull => self.render_index(id, &shape, behind, window),
            DataLayout::Inline => self.render_tail(id, &shape, behind, window),
            _ => {}
        }
    }

    /// Renders the part of a chunk map in the window; its chunks with blocks are contiguous from `first_block`.
    fn render_chunks(&self, map: &ChunkMap, first_block: u64, at: u64, window: &mut Window<'_>) {
        let entries = |bytes: u64| bytes / ENTRY;
        let first = entries(window.start.saturating_sub(at));
        let end = entries(window.end().saturating_sub(at)).min(entries(map.bytes()));
        for chunk in first..end {
            window.put(at + chunk * ENTRY, &NULL_BLOCK.to_le_bytes());
        }
        self.layout.tables.chunks.mapped(&self.tree, map, first, end, &mut |chunk, before| {
            let block = first_block + (before << map.bits);
            window.put(at + chunk * ENTRY, &(block as u32).to_le_bytes());
        });
    }

    /// Renders the tail of a listing, or a target. A file is read together with the block: see [`Self::files_in`].
    fn render_tail(&self, id: InodeId, shape: &Shape, at: u64, window: &mut Window<'_>) {
        if at >= window.end() || at + shape.behind <= window.start {
            return;
        }
        match self.tree.inode(id).file_type() {
            FileType::Regular => {}
            FileType::Symlink => window.put(at, self.tree.symlink_target(id)),
            _ => {
                let mut block = [0; BLOCK_SIZE];
                self.render_names(id, shape.blocks, &mut block);
                window.put(at, block.get(..shape.behind as usize).unwrap_or_default());
            }
        }
    }
}
