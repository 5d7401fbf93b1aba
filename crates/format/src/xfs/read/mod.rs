//! Reads XFS: on demand as a volume, or at once as a tree.
//!
//! 1. `disk` checks the superblock and knows where blocks and inodes are. `log` tells whether the log has changes that are not
//!    where they belong yet, and `replay` shows the image as the kernel would after replaying them. Nothing is written.
//! 2. `volume` answers questions about one node, and `pass` about all of them during a walk. `inodes` reads inodes,
//!    `mapping` the places of blocks, `listing` and `index` the names of a directory, `xattrs` extended attributes.
//! 3. Content stays where it is: a file is a list of byte ranges of the image.
//!
//! In version 5, metadata with a wrong checksum, address, owner or UUID counts as damaged, as in the kernel. Damage is
//! refused and named. If it is salvaged, a damaged inode costs its file, a block of a directory its names, and a block of
//! a tree of extents makes that part of the file unreadable (`EIO`, never zeros). What is in use follows from the
//! names: the trees of free space, of inodes, of owners and of shared blocks are not read.

mod disk;
mod index;
mod inodes;
mod listing;
mod log;
mod mapping;
mod pass;
mod replay;
mod volume;
mod xattrs;

use std::io;
use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_confine::Parsing;
use inarch_volume::{Volume, VolumeError};

use self::volume::XfsVolume;
use super::NAME;
use crate::{Damage, ReadError, TreeAndContent};

/// An error of this format.
fn damaged(reason: impl Into<String>) -> VolumeError {
    VolumeError::Damaged(reason.into())
}

/// The error of an image that cannot be read at all.
fn unreadable(reason: impl Into<String>) -> ReadError {
    ReadError::Format { format: NAME, reason: reason.into() }
}

/// Returns errors that end everything outside, damage of a part inside.
fn tolerate<T>(result: Result<T, VolumeError>) -> Result<Result<T, String>, VolumeError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(VolumeError::Damaged(reason)) => Ok(Err(reason)),
        Err(error) => Err(error),
    }
}

/// Opens an XFS file system and walks it.
///
/// Fails if the image is damaged, or has features that are not supported: directories of version 1, and zones. Content on a
/// realtime device is not there; reading it fails.
pub fn open(parsing: Parsing, image: Arc<dyn Backing>) -> Result<TreeAndContent, ReadError> {
    open_with(parsing, image, Damage::Refused)
}

/// Opens an image for reading on demand: reads and checks only the superblock, the log and the root.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(XfsVolume::open(image, damage)?))
}

/// Like [`open`], but with salvaged damage, unreadable directories, inodes and parts of files are left out.
pub fn open_with(parsing: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<TreeAndContent, ReadError> {
    TreeAndContent::walk(parsing, open_volume(parsing, image, damage)?, damage)
}

/// The backings of a file's extents.
mod backing {
    /// The image itself.
    pub(super) const IMAGE: u32 = 0;
    /// Nowhere: to read it is an error.
    pub(super) const UNKNOWN: u32 = 1;
}

/// The backing for parts of files whose place is unknown.
struct Unknown(u64);

impl Backing for Unknown {
    fn size(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, _: u64, _: &mut Cursor<'_, '_>) -> io::Result<()> {
        Err(io::ErrorKind::InvalidData.into())
    }
}
