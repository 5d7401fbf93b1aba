//! Renders the inode tables.

use inarch_tree::{FileType, InodeId, Timestamp};
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32};

use super::Renderer;
use super::extents::{set_contiguous, set_extents};
use crate::ext4::layout::ROOT_NODE;
use crate::ext4::layout::extents::{Extents, Runs};
use crate::ext4::spec::inode::{
    BLOCK_FIELD, EXTRA_ISIZE, FAST_SYMLINK_MAX, Inode, XATTR_OFFSET, encode_device, flags, seal,
};
use crate::ext4::spec::xattr::value_hash;
use crate::ext4::spec::{
    BLOCK_SIZE, Block, INODE_SIZE, INODES_PER_BLOCK, JOURNAL_INO, LINK_MAX, LOST_AND_FOUND_INO, put,
};

impl Renderer {
    /// Block `index` of the inode tables.
    pub(super) fn render_inodes(&self, index: u64, out: &mut Block) {
        let first = (index * INODES_PER_BLOCK) as u32 + 1;
        let mut data = self.layout.data_starts.get(index as usize).copied().unwrap_or(0);
        let (slots, _) = out.as_chunks_mut::<INODE_SIZE>();
        for (ino, slot) in (first..).zip(slots) {
            match self.layout.nodes.node(ino) {
                Some(node) if node < self.layout.nodes.tree_nodes() => data += self.render_node(node, data, slot),
                Some(node) => self.render_value_inode(node - self.layout.nodes.tree_nodes(), slot),
                None if !self.render_reserved(ino, slot) => continue,
                None => {}
            }
            seal(slot, self.seed, ino);
        }
    }

    /// Renders an inode of the tree, whose content starts `data` blocks into the data region; returns its number of
    /// blocks.
    fn render_node(&self, node: u32, data: u64, slot: &mut [u8; INODE_SIZE]) -> u64 {
        let id = self.layout.nodes.inode(node);
        let source = self.tree.inode(id);
        let mut inode = Inode::new_zeroed();
        inode.mode = U16::new(source.mode() as u16);
        inode.set_owner(source.uid(), source.gid());
        inode.set_times(source.mtime(), source.ctime());
        inode.extra_isize = U16::new(EXTRA_ISIZE);
        let mut links = self.layout.nodes.links(node, source.links());
        let mut content = 0;
        let blocks = match source.file_type() {
            FileType::Regular => {
                inode.set_size(source.size());
                content = self.content_blocks(node, id);
                content + self.set_file_extents(&mut inode, node, id, data)
            }
            FileType::Directory => {
                links = self.directory_links(node, source.links());
                self.set_directory(&mut inode, node, id)
            }
            FileType::Symlink => self.set_symlink(&mut inode, node, id),
            FileType::CharDevice | FileType::BlockDevice => {
                let (major, minor) = source.device();
                put(&mut inode.block, 0, &encode_device(major, minor).unwrap_or_default());
                0
            }
            FileType::Fifo | FileType::Socket => 0,
        };
        inode.links_count = U16::new(links as u16);
        let xattr_blocks = self.set_xattrs(&mut inode, node, source.xattrs(), &mut slot[XATTR_OFFSET..]);
        inode.set_blocks(blocks + xattr_blocks);
        put(slot, 0, &inode);
        content
    }

    /// Blocks of a regular file's content.
    fn content_blocks(&self, node: u32, id: InodeId) -> u64 {
        match self.layout.measured.extent_tree(node) {
            Some(tree) => tree.data_blocks,
            None => Runs::new(&self.tree, id).map(|(_, blocks)| blocks).sum(),
        }
    }

    /// Maps a file's content; returns the blocks its extent tree takes.
    fn set_file_extents(&self, inode: &mut Inode, node: u32, id: InodeId, data: u64) -> u64 {
        let start = self.layout.regions.data.start + data;
        inode.flags = U32::new(flags::EXTENTS);
        match self.layout.measured.extent_tree(node) {
            Some(tree) => self.set_tree_root(&mut inode.block, tree),
            None => {
                set_extents(&mut inode.block, Extents::new(&self.tree, id, start));
                0
            }
        }
    }

    /// Maps a directory's blocks; returns how many they are, with those of its extent tree.
    fn set_directory(&self, inode: &mut Inode, node: u32, id: InodeId) -> u64 {
        let directories = &self.layout.measured.directories;
        let Some(place) = directories.find(id) else { return 0 };
        let Some(directory) = directories.list().get(place) else { return 0 };
        let blocks = u64::from(directories.blocks_of(place));
        let start = self.layout.regions.directories.start + u64::from(directory.block);
        let index = if directories.index(place).is_some() { flags::INDEX } else { 0 };
        inode.flags = U32::new(flags::EXTENTS | index);
        inode.set_size(blocks * BLOCK_SIZE as u64);
        match self.layout.measured.extent_tree(node) {
            Some(tree) => blocks + self.set_tree_root(&mut inode.block, tree),
            None => {
                set_contiguous(&mut inode.block, start, blocks);
                blocks
            }
        }
    }

    /// A directory's link count: 1 stands for more than the field counts (`dir_nlink`).
    fn directory_links(&self, node: u32, links: u32) -> u32 {
        let added = u32::from(node == ROOT_NODE && self.layout.measured.has_lost_and_found());
        let links = links + added;
        if links > LINK_MAX { 1 } else { links }
    }

    fn set_symlink(&self, inode: &mut Inode, node: u32, id: InodeId) -> u64 {
        let target = self.tree.symlink_target(id);
        inode.set_size(target.len() as u64);
        if target.len() <= FAST_SYMLINK_MAX {
            put(&mut inode.block, 0, target);
            return 0;
        }
        let place = self.layout.measured.symlinks.binary_search(&node).unwrap_or(0) as u64;
        inode.flags = U32::new(flags::EXTENTS);
        set_contiguous(&mut inode.block, self.layout.regions.symlinks.start + place, 1);
        1
    }

    /// Block `index` of the long symlinks.
    pub(super) fn render_symlink(&self, index: usize, out: &mut Block) {
        if let Some(node) = self.layout.measured.symlinks.get(index) {
            put(out, 0, self.tree.symlink_target(self.layout.nodes.inode(*node)));
        }
    }

    /// Renders the inode of attribute value `value`. The kernel keeps the value's hash and reference count in the
    /// fields of times and version (`ext4_xattr_inode_set_hash`, `ext4_xattr_inode_set_ref` in `fs/ext4/xattr.c`).
    fn render_value_inode(&self, value: u32, slot: &mut [u8; INODE_SIZE]) {
        let Some(planned) = self.layout.measured.xattrs.values.get(value as usize) else { return };
        let blocks = u64::from(planned.size).div_ceil(BLOCK_SIZE as u64);
        let hash = self.with_value(planned, |bytes| value_hash(self.seed, bytes));
        let mut inode = Inode::new_zeroed();
        inode.mode = U16::new(0o100600);
        inode.links_count = U16::new(1);
        inode.extra_isize = U16::new(EXTRA_ISIZE);
        inode.flags = U32::new(flags::EXTENTS | flags::EA_INODE);
        inode.atime = U32::new(hash);
        inode.version_lo = U32::new(planned.references);
        inode.set_size(u64::from(planned.size));
        inode.set_blocks(blocks);
        set_contiguous(&mut inode.block, self.layout.regions.xattr_values.start + planned.block, blocks);
        put(slot, 0, &inode);
    }

    /// The file system's own inodes; false for inode 11 where no `lost+found` is added.
    fn render_reserved(&self, ino: u32, slot: &mut [u8; INODE_SIZE]) -> bool {
        let epoch = Timestamp { seconds: self.layout.epoch, nanoseconds: 0 };
        let mut inode = Inode::new_zeroed();
        match ino {
            LOST_AND_FOUND_INO if self.layout.measured.has_lost_and_found() => {
                let region = &self.layout.regions.lost_and_found;
                let blocks = region.end - region.start;
                inode.mode = U16::new(0o040700);
                inode.links_count = U16::new(2);
                inode.extra_isize = U16::new(EXTRA_ISIZE);
                inode.flags = U32::new(flags::EXTENTS);
                inode.set_times(epoch, epoch);
                inode.set_size(blocks * BLOCK_SIZE as u64);
                inode.set_blocks(blocks);
                set_contiguous(&mut inode.block, region.start, blocks);
            }
            JOURNAL_INO if !self.layout.regions.journal.is_empty() => {
                let region = &self.layout.regions.journal;
                let blocks = region.end - region.start;
                inode.mode = U16::new(0o100600);
                inode.links_count = U16::new(1);
                inode.extra_isize = U16::new(EXTRA_ISIZE);
                inode.flags = U32::new(flags::EXTENTS);
                inode.set_times(epoch, epoch);
                inode.set_size(blocks * BLOCK_SIZE as u64);
                inode.set_blocks(blocks);
                inode.block = self.journal_extent_root();
            }
            1..LOST_AND_FOUND_INO => {}
            _ => return false,
        }
        put(slot, 0, &inode);
        true
    }

    /// The journal's extents, as they stand in its inode and in the superblock.
    pub(super) fn journal_extent_root(&self) -> [u8; BLOCK_FIELD] {
        let journal = &self.layout.regions.journal;
        let mut root = [0; BLOCK_FIELD];
        set_contiguous(&mut root, journal.start, journal.end - journal.start);
        root
    }
}
