//! Reads EROFS images: on demand as a volume, or at once as a tree.
//!
//! 1. `parameters` checks the superblock.
//! 2. `volume` answers questions about one node: an inode's number says where it is (`inode`), its layout where its
//!    content is (`map`, `compressed`), and names are sorted across a directory's blocks (`directory`).
//! 3. `pass` limits a walk: pieces of metadata must not overlap, so all of them together cannot be larger than the
//!    image.

mod compressed;
mod directory;
mod image;
mod inode;
mod map;
mod parameters;
mod pass;
mod volume;
mod xattr;

use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_volume::{Volume, VolumeError};

use crate::erofs::NAME;
use crate::{Damage, ReadError, TreeAndContent};
use volume::ErofsVolume;

/// An error of this format.
fn damaged(reason: impl Into<String>) -> VolumeError {
    VolumeError::Damaged(reason.into())
}

/// The error of an image that cannot be read at all.
fn unreadable(error: VolumeError) -> ReadError {
    ReadError::of_volume(NAME, error)
}

/// The same error, about `what`.
fn about(what: &str, error: VolumeError) -> VolumeError {
    match error {
        VolumeError::Damaged(reason) => VolumeError::Damaged(format!("{what}: {reason}")),
        other => other,
    }
}

/// Opens an EROFS image of `mkfs.erofs`, uncompressed or compressed by LZ4, LZMA, DEFLATE or Zstandard, and walks it.
/// Compressed content is decompressed when it is read; some of it is cached.
///
/// Fails if the image is damaged, or uses what is not supported: additional devices, compressed metadata, and the
/// extent records that `-E48bit` gives compressed files. Reading a compressed file with damaged content fails with
/// `InvalidData`.
pub fn open(parsing: Parsing, image: Arc<dyn Backing>) -> Result<TreeAndContent, ReadError> {
    open_with(parsing, image, Damage::Refused)
}

/// Opens an image for reading on demand: reads and checks only the superblock and the root.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(ErofsVolume::open(image, damage)?))
}

/// Like [`open`], but with salvaged damage, unreadable directories, inodes and parts of files are left out.
pub fn open_with(parsing: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<TreeAndContent, ReadError> {
    TreeAndContent::walk(parsing, open_volume(parsing, image, damage)?, damage)
}
