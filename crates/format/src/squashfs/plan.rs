//! Plans uncompressed images: every byte has its place before any file is opened.

use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, BlockMap, FileExtent};
use inarch_tree::{FileType, InodeId, Tree};
use zerocopy::little_endian::U64;

use super::layout::blocks::Blocks;
use super::layout::inventory::Inventory;
use super::layout::listing::Listings;
use super::layout::places::{Places, Starts};
use super::layout::tables::Tables;
use super::layout::{Error, Layout, MAX_FILE_SIZE, Part, Section, metadata_blocks, path};
use super::render::Renderer;
use crate::squashfs::spec::inode::{Body, DirectoryBody, FileBody, NO_FRAGMENT, SYMLINK_TAIL};
use crate::squashfs::spec::superblock::{Superblock, compressor, flags};
use crate::squashfs::spec::{NO_TABLE, xattr};

/// A plan in the making.
struct Planner<'a> {
    tree: &'a Tree,
    inventory: Inventory,
    block_size: u32,
    positions: Vec<u32>,
    content: Vec<u64>,
    files: Vec<FileExtent>,
    listings: Listings,
    /// End of the content so far, in bytes from the image's start; a multiple of the block size of the map.
    content_end: u64,
    /// End of the inode table so far.
    inodes_end: u64,
}

/// Plans an image of at least `blocks` blocks of 4 KiB, whose own time is `mtime`.
pub(crate) fn plan(
    tree: &Arc<Tree>,
    block_size: u32,
    mtime: Option<u32>,
    blocks: u64,
) -> Result<(BlockMap, Vec<String>), Error> {
    let inventory = Inventory::new(tree)?;
    let notes = inventory.notes(tree);
    let count = inventory.numbers.count() as usize;
    let mut planner = Planner {
        tree,
        inventory,
        block_size,
        positions: Vec::with_capacity(count),
        content: Vec::with_capacity(count),
        files: Vec::with_capacity(count),
        listings: Listings::default(),
        // The first block has the superblock.
        content_end: BLOCK_SIZE as u64,
        inodes_end: 0,
    };
    for place in 0..count {
        if let Some(id) = planner.inventory.numbers.order().get(place).copied() {
            planner.push(id)?;
        }
    }
    let (layout, files) = planner.finish(tree, mtime);
    let metadata = layout.sections.first().map_or(0, |section| section.start / BLOCK_SIZE as u64);
    let end = layout.superblock.bytes_used.get().div_ceil(BLOCK_SIZE as u64);
    let map = BlockMap::new(end.max(blocks), vec![0..1, metadata..end], files, Arc::new(Renderer::new(layout)))?;
    Ok((map, notes))
}

impl Planner<'_> {
    /// Places an inode, its content and its listing.
    fn push(&mut self, id: InodeId) -> Result<(), Error> {
        let position = u32::try_from(self.inodes_end).ok();
        // References to inodes have 32 bits for a byte on disk, where each metadata block has a header as well.
        let on_disk = Starts::Stored.of(metadata_blocks(self.inodes_end));
        let position = position.filter(|_| on_disk < u64::from(u32::MAX));
        self.positions.push(position.ok_or_else(|| Error::InodesTooLarge { path: path(self.tree, id) })?);
        self.content.push(0);
        let (body, rest) = match self.tree.inode(id).file_type() {
            FileType::Regular => self.place_file(id)?,
            FileType::Directory => self.place_directory(id)?,
            FileType::Symlink => {
                (self.inventory.special_body(self.tree, id), self.tree.symlink_target(id).len() as u64)
            }
            _ => (self.inventory.special_body(self.tree, id), 0),
        };
        let inode = self.inventory.inode(self.tree, id, body);
        let is_long_symlink = matches!(body, Body::Symlink { .. }) && inode.is_extended();
        let tail = if is_long_symlink { SYMLINK_TAIL } else { 0 };
        self.inodes_end += (inode.length() + tail) as u64 + rest;
        Ok(())
    }

    /// A file's content; gives the bytes of its list of blocks as well.
    fn place_file(&mut self, id: InodeId) -> Result<(Body, u64), Error> {
        let size = self.tree.inode(id).size();
        if size > MAX_FILE_SIZE {
            return Err(Error::FileTooLarge { path: path(self.tree, id), size });
        }
        let blocks = Blocks::new(self.tree, id, self.block_size);
        let start = self.content_end;
        let per_block = u64::from(self.block_size) / BLOCK_SIZE as u64;
        for run in blocks.runs() {
            let length = blocks.bytes(&run).div_ceil(BLOCK_SIZE as u64);
            // No file has more than 2^32 blocks of the map, and none of its runs is the whole of such a file.
            self.files.push(FileExtent {
                start: self.content_end / BLOCK_SIZE as u64,
                blocks: u32::try_from(length).unwrap_or(u32::MAX),
                first: (run.start * per_block) as u32,
                inode: id,
            });
            self.content_end += length * BLOCK_SIZE as u64;
        }
        let start = if self.content_end > start { start } else { 0 };
        if let Some(slot) = self.content.last_mut() {
            *slot = start;
        }
        let body = FileBody { start, size, sparse: blocks.sparse_bytes(), fragment: NO_FRAGMENT, offset: 0 };
        Ok((Body::File(body), blocks.count() * size_of::<u32>() as u64))
    }

    /// A directory's listing; gives the bytes of its index as well.
    fn place_directory(&mut self, id: InodeId) -> Result<(Body, u64), Error> {
        let places = Places { numbers: &self.inventory.numbers, positions: &self.positions };
        let listing = self.listings.push(self.tree, &places, id)?;
        let end = Starts::Stored.of(metadata_blocks(self.listings.length().into()));
        if end > u64::from(u32::MAX) {
            return Err(Error::DirectoriesTooLarge { path: path(self.tree, id) });
        }
        // Where things are makes no difference to an inode's length.
        let body = DirectoryBody { block: 0, offset: 0, size: listing.size(), parent: 0, indexes: listing.indexes };
        Ok((Body::Directory(body), listing.index_bytes.into()))
    }

    /// Places the tables behind the content.
    fn finish(self, tree: &Arc<Tree>, mtime: Option<u32>) -> (Layout, Vec<FileExtent>) {
        let inodes = u64::from(self.inventory.numbers.count());
        let xattrs = &self.inventory.xattrs;
        let sets = xattrs.sets().len() as u64;
        let sizes = [
            (Part::Inodes, self.inodes_end),
            (Part::Directories, self.listings.length().into()),
            (Part::Exports, inodes * size_of::<U64>() as u64),
            (Part::ExportIndex, 0),
            (Part::Ids, (self.inventory.ids.len() * size_of::<u32>()) as u64),
            (Part::IdIndex, 0),
            (Part::XattrPairs, xattrs.length()),
            (Part::XattrSets, sets * size_of::<xattr::Set>() as u64),
            (Part::XattrIndex, size_of::<xattr::Table>() as u64),
        ];
        let mut sections: Vec<Section> = Vec::with_capacity(sizes.len());
        let mut at = self.content_end;
        for (part, length) in sizes {
            let framed = !matches!(part, Part::ExportIndex | Part::IdIndex | Part::XattrIndex);
            let indexed = sections.last().map_or(0, |section| metadata_blocks(section.length));
            let length = if framed { length } else { length + indexed * size_of::<U64>() as u64 };
            if sets == 0 && part == Part::XattrPairs {
                break;
            }
            let section = Section { part, start: at, length, framed };
            at = section.end();
            sections.push(section);
        }
        let start_of = |part| sections.iter().find(|section| section.part == part).map_or(NO_TABLE, |s| s.start);
        let places = Places { numbers: &self.inventory.numbers, positions: &self.positions };
        let root = Starts::Stored.reference(places.position(InodeId::ROOT).into());
        let superblock = Superblock {
            compressor: compressor::GZIP.into(),
            flags: stored_flags(sets > 0).into(),
            root: root.0.into(),
            bytes_used: at.into(),
            id_table: start_of(Part::IdIndex).into(),
            xattr_table: start_of(Part::XattrIndex).into(),
            inode_table: start_of(Part::Inodes).into(),
            directory_table: start_of(Part::Directories).into(),
            fragment_table: start_of(Part::Exports).into(),
            export_table: start_of(Part::ExportIndex).into(),
            mtime: mtime.unwrap_or(self.inventory.newest_mtime).into(),
            ids: (self.inventory.ids.len() as u16).into(),
            ..Superblock::new(self.inventory.numbers.count(), self.block_size)
        };
        let tables = Tables {
            tree: Arc::clone(tree),
            inventory: Arc::new(self.inventory),
            positions: self.positions,
            listings: self.listings,
            inode_starts: Starts::Stored,
            directory_starts: Starts::Stored,
            pair_starts: Starts::Stored,
        };
        (Layout { block_size: self.block_size, tables, content: self.content, sections, superblock }, self.files)
    }
}

/// How an image without compression says that it is one.
fn stored_flags(xattrs: bool) -> u16 {
    let kept = flags::STORED_INODES | flags::STORED_DATA | flags::STORED_FRAGMENTS | flags::STORED_XATTRS;
    let none = if xattrs { 0 } else { flags::NO_XATTRS };
    kept | flags::STORED_IDS | flags::NO_FRAGMENTS | flags::EXPORTABLE | none
}
