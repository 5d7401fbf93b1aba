//! The layout of an EROFS image: shape and place of everything. The planner fills it, the renderer reads it.

pub(crate) mod chunks;
pub(crate) mod directory;
pub(crate) mod pieces;
pub(crate) mod shape;
pub(crate) mod xattr;

use std::ops::Range;

use inarch_tree::{FileType, InodeId, Tree};

use super::spec::BLOCK_SIZE;
use crate::{FormatError, ImageOptions};
use chunks::ChunkMaps;
use directory::Directories;
use pieces::Pieces;
use shape::{Shape, Tables};
use xattr::Xattrs;

/// The UUID of an image that is given none.
const DEFAULT_UUID: [u8; 16] =
    [0x6a, 0x1d, 0x9c, 0x52, 0x0b, 0x7e, 0x4f, 0x3a, 0x9d, 0x41, 0xe2, 0x08, 0x5b, 0xc6, 0x37, 0xf4];

/// Where the inodes start: the superblock has a block of its own.
pub(crate) const INODES_START: u64 = BLOCK_SIZE as u64;

/// An error of this format.
pub(crate) fn refuse(reason: impl Into<String>) -> FormatError {
    FormatError { format: super::NAME, reason: reason.into() }
}

/// An error about one file.
pub(crate) fn refuse_file(tree: &Tree, id: InodeId, reason: impl std::fmt::Display) -> FormatError {
    let path = tree.path(id);
    let name = if path.is_empty() { "/".into() } else { String::from_utf8_lossy(&path) };
    refuse(format!("{name}: {reason}"))
}

/// The regions of the device after the superblock, in order; absolute block numbers.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    /// Inodes, each followed by its extended attributes and its listing's tail, target or chunk map.
    pub(crate) inodes: Range<u64>,
    /// Attributes that several inodes have.
    pub(crate) xattrs: Range<u64>,
    /// Listings and targets that do not fit after their inodes.
    pub(crate) listings: Range<u64>,
    /// What files hold.
    pub(crate) data: Range<u64>,
    /// What compressed files hold; empty until that is known.
    pub(crate) packed: Range<u64>,
}

/// Everything the renderer needs besides the tree: eight bytes for each inode, and small tables.
pub(crate) struct Layout {
    pub(crate) label: String,
    pub(crate) uuid: [u8; 16],
    /// Seconds since 1970 for the superblock.
    pub(crate) epoch: i64,
    pub(crate) regions: Regions,
    /// Each inode's number (`nid`), ascending: its place in slots of 32 bytes from the device's start.
    pub(crate) nids: Vec<u32>,
    /// The first of the blocks that an inode has for itself, counted from the start of the region for its type.
    pub(crate) first_blocks: Vec<u32>,
    /// The inodes with blocks in [`Regions::listings`], ascending.
    pub(crate) listed: Vec<InodeId>,
    pub(crate) tables: Tables,
    /// Where the content of compressed files is.
    pub(crate) pieces: Pieces,
}

impl Layout {
    /// Of a tree, before anything has its place.
    pub(crate) fn new(tree: &Tree, options: &ImageOptions) -> Result<Layout, FormatError> {
        let count = tree.inode_count() as usize;
        let newest = || tree.inodes().map(|(_, inode)| inode.mtime().seconds).max().unwrap_or(0);
        Ok(Layout {
            label: options.label.clone(),
            uuid: options.uuid.unwrap_or(DEFAULT_UUID),
            epoch: options.epoch.unwrap_or_else(newest),
            regions: Regions { inodes: 0..0, xattrs: 0..0, listings: 0..0, data: 0..0, packed: 0..0 },
            nids: Vec::with_capacity(count),
            first_blocks: Vec::with_capacity(count),
            listed: Vec::new(),
            tables: Tables {
                directories: Directories::default(),
                xattrs: Xattrs::new(tree)?,
                chunks: ChunkMaps::default(),
                compress: options.compression.is_some(),
                inline_files: options.inline_files,
            },
            pieces: Pieces::default(),
        })
    }

    /// The block that an inode's own blocks start at; 0 if it has none.
    pub(crate) fn first_block(&self, tree: &Tree, id: InodeId, shape: &Shape) -> u64 {
        let region = match tree.inode(id).file_type() {
            FileType::Regular => &self.regions.data,
            _ => &self.regions.listings,
        };
        let first = self.first_blocks.get(id.index()).copied().unwrap_or_default();
        if shape.blocks == 0 { 0 } else { region.start + u64::from(first) }
    }
}
