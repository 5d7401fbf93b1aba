//! Reads squashfs images: on demand as a volume, or at once as a tree. The image is hostile.
//!
//! 1. `image` checks the superblock.
//! 2. `volume` answers questions about one node: a reference says where its inode is in the inode table, which
//!    `metadata` reads; `listing` finds names, `files` the blocks of a file, `content` decompresses them.
//! 3. `pass` bounds a walk over all of them.

mod content;
mod files;
mod image;
mod inode;
mod listing;
mod metadata;
mod pass;
mod volume;
mod xattrs;

use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_volume::Volume;

use crate::{Damage, ReadError, TreeAndContent};
use volume::SquashfsVolume;

/// Opens and walks a squashfs 4.0 image, compressed by gzip, lz4, xz or zstd, or uncompressed. Content is
/// decompressed on read, with a cache of 32 MiB. Uncompressed blocks are read from the image's own file.
///
/// Errors say what is wrong with the image, and where.
pub fn open(parsing: Parsing, image: Arc<dyn Backing>) -> Result<TreeAndContent, ReadError> {
    open_with(parsing, image, Damage::Refused)
}

/// Like [`open`], but with salvaged damage, unreadable directories and inodes are left out. A truncated image has
/// lost its tables, which are at its end.
pub fn open_with(parsing: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<TreeAndContent, ReadError> {
    TreeAndContent::walk(parsing, open_volume(parsing, image, damage)?, damage)
}

/// Opens an image for reading on demand. Reads and checks the superblock, the table of owners, the places of
/// fragments and attributes, and the root. All of it is essential, so damage to it is never salvaged.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, _: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(SquashfsVolume::open(image)?))
}
