//! An image as a volume that is read on demand, and as a tree. Nothing of it is believed.
//!
//! 1. `image` checks the superblock.
//! 2. `volume` answers for one node at a time: a reference says where its inode lies in the table of inodes, which is read by
//!    `metadata`; `listing` finds names, `files` the blocks of a file, `content` decompresses them.
//! 3. `pass` counts what a walk over all of them meets.

mod cache;
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

use crate::{Damage, Opened, ReadError};
use volume::SquashfsVolume;

/// Opens a squashfs 4.0 image that is compressed by gzip, lz4, xz or zstd, or not at all. Content is decompressed when
/// it is read; 32 MiB of it are kept. Where blocks are stored as they are, the image's own file is lent.
///
/// Errors say what is wrong with the image, and where.
pub fn open(parsing: Parsing, image: Arc<dyn Backing>) -> Result<Opened, ReadError> {
    open_with(parsing, image, Damage::Refused)
}

/// As [`open`]; where damage is salvaged, directories and inodes that cannot be read are left out. An image that was cut
/// off has lost its tables, which are at its end.
pub fn open_with(parsing: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Opened, ReadError> {
    Opened::walk(parsing, open_volume(parsing, image, damage)?, damage)
}

/// Opens an image to be asked for what is wanted of it: the superblock, the table of owners, the places of fragments and
/// attributes, and the root are read and checked. None of that can be done without, so damage to it is never salvaged.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, _: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(SquashfsVolume::open(image)?))
}
