//! The layout of a squashfs image: content, order and places. Planner and packer fill it, the renderer reads it.

pub(crate) mod blocks;
pub(crate) mod inventory;
pub(crate) mod listing;
pub(crate) mod numbers;
pub(crate) mod places;
pub(crate) mod tables;
pub(crate) mod xattrs;

use inarch_block::{BLOCK_SIZE, MapError};
use inarch_tree::{FileType, InodeId, Tree};

use crate::squashfs::spec::inode::MAX_LENGTH;
use crate::squashfs::spec::superblock::Superblock;
use crate::squashfs::spec::{METADATA_HEADER, METADATA_SIZE};
use blocks::Blocks;
use inventory::Inventory;
use tables::Tables;

/// Files of more bytes are refused: their lists of blocks fill the inode table, and a block map counts a file's blocks
/// in 32 bits.
pub(crate) const MAX_FILE_SIZE: u64 = (BLOCK_SIZE as u64) << 32;

/// Why a tree cannot be a squashfs image.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Error {
    #[error(
        "{path}: the owner or group of this file is one more than the 65535 different ones that squashfs holds; map some of them to others"
    )]
    TooManyIds { path: String },
    #[error("{path}: squashfs cannot store the device number {major}:{minor}; leave it out")]
    Device { path: String, major: u32, minor: u32 },
    #[error("{path}: {size} bytes exceed 16 TiB, the greatest size of a file here")]
    FileTooLarge { path: String, size: u64 },
    #[error("{path}: with this directory the listings exceed the 4 GiB that squashfs can address; leave some out")]
    DirectoriesTooLarge { path: String },
    #[error(
        "{path}: with this file the inode table exceeds the 4 GiB that squashfs can address; leave some out, or ask for larger blocks"
    )]
    InodesTooLarge { path: String },
    #[error("internal: the planned block map is out of order: {0}")]
    Map(#[from] MapError),
}

/// A file's path, for messages.
pub(crate) fn path(tree: &Tree, inode: InodeId) -> String {
    format!("/{}", String::from_utf8_lossy(&tree.path(inode)))
}

/// Refuses a compressed image whose inode table might exceed what references can address; exact places are known only
/// when content is read.
pub(crate) fn check_inode_table(tree: &Tree, inventory: &Inventory, block_size: u32) -> Result<(), Error> {
    let mut length = 0;
    for id in inventory.numbers.order() {
        let size = tree.inode(*id).size();
        if size > MAX_FILE_SIZE {
            return Err(Error::FileTooLarge { path: path(tree, *id), size });
        }
        let rest = match tree.inode(*id).file_type() {
            FileType::Regular => Blocks::new(tree, *id, block_size).count() * size_of::<u32>() as u64,
            FileType::Symlink => tree.symlink_target(*id).len() as u64,
            // Its index has a name for each metadata block full of entries: less than 9 bytes an entry.
            FileType::Directory => tree.entries(*id).len() as u64 * 9,
            _ => 0,
        };
        length += MAX_LENGTH as u64 + rest;
        if length > u32::MAX.into() {
            return Err(Error::InodesTooLarge { path: path(tree, *id) });
        }
    }
    Ok(())
}

/// What follows the files, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Inodes,
    Directories,
    Exports,
    ExportIndex,
    Ids,
    IdIndex,
    XattrPairs,
    XattrSets,
    XattrIndex,
}

/// A part's place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    pub(crate) part: Part,
    /// Bytes from the image's start.
    pub(crate) start: u64,
    /// Bytes without the headers of metadata blocks.
    pub(crate) length: u64,
    /// Whether it is cut into metadata blocks.
    pub(crate) framed: bool,
}

impl Section {
    /// The byte behind it.
    pub(crate) fn end(&self) -> u64 {
        let headers = if self.framed { metadata_blocks(self.length) * METADATA_HEADER as u64 } else { 0 };
        self.start + self.length + headers
    }
}

/// Metadata blocks of so many bytes.
pub(crate) fn metadata_blocks(length: u64) -> u64 {
    length.div_ceil(METADATA_SIZE as u64)
}

/// Everything the renderer needs beside the tree.
pub(crate) struct Layout {
    pub(crate) block_size: u32,
    pub(crate) tables: Tables,
    /// Where each inode's content starts, in bytes from the image's start, by inode number; 0 without content.
    pub(crate) content: Vec<u64>,
    pub(crate) sections: Vec<Section>,
    pub(crate) superblock: Superblock,
}
