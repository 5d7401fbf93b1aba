//! An image as a volume that is read on demand, and as a tree.
//!
//! 1. `parameters` checks the superblock.
//! 2. `volume` answers for one node at a time: an inode's number says where it lies (`inode`), its layout where its content is
//!    (`map`, `compressed`), the names of a directory are sorted over all of its blocks (`directory`).
//! 3. `pass` counts what a walk over all of them meets: no two pieces of metadata may share bytes, so together they are not
//!    larger than the image.

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
use crate::{Damage, Opened, ReadError};
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

/// Opens an EROFS image: as `mkfs.erofs` makes them, uncompressed or compressed by LZ4, LZMA, DEFLATE or Zstandard, in
/// one piece. Each file's compressed content is decompressed when it is read; some of it is kept.
///
/// Fails where the image is damaged, or has what is not supported: further devices, compressed metadata, and the
/// extent records that `-E48bit` gives compressed files. A compressed file whose content turns out to be damaged fails
/// to be read with `InvalidData`.
pub fn open(parsing: Parsing, image: Arc<dyn Backing>) -> Result<Opened, ReadError> {
    open_with(parsing, image, Damage::Refused)
}

/// Opens an image to be asked for what is wanted of it: only the superblock and the root are read and checked.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(ErofsVolume::open(image, damage)?))
}

/// As [`open`]; where damage is salvaged, directories, inodes and parts of files that cannot be read are left out.
pub fn open_with(parsing: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Opened, ReadError> {
    Opened::walk(parsing, open_volume(parsing, image, damage)?, damage)
}
