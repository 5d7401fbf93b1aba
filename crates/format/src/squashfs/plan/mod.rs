//! Decisions: what the image holds, in which order, and where.

pub(crate) mod blocks;
pub(crate) mod inventory;
pub(crate) mod listing;
pub(crate) mod numbers;
pub(crate) mod places;
pub(crate) mod stored;
pub(crate) mod xattrs;

use inarch_block::{BLOCK_SIZE, MapError};
use inarch_tree::{FileType, InodeId, Tree};

use crate::squashfs::spec::inode::MAX_LENGTH;
use blocks::Blocks;
use inventory::Inventory;

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

/// Whether the inode table of an image with compression may exceed what references address; places in it are known
/// only when content is read.
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
