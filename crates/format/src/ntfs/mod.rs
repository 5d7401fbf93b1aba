//! NTFS, read on demand. The image is hostile.
//!
//! 1. `geometry` checks the boot sector. `mft` finds the records of files by their numbers, `record` checks one and finds its
//!    attributes, `inode` those that further records have, and `runs` where the clusters of a value are.
//! 2. `volume` answers questions about one node. A node's number is NTFS's file reference: the number of a record, and a count
//!    that changes when the record is used for another file. `index` reads directories, and `names` converts names. `kinds` tells
//!    what a file is (also those that other systems keep in files of NTFS), and `links` has the targets of links. `compressed`,
//!    `lznt1`, `system` and `xpress` read compressed content, `streams` named streams.
//! 3. `pass` bounds a walk over all of them.
//!
//! The format is that of Linux's `fs/ntfs3/ntfs.h` and of the structures that ntfs-3g documents in its `layout.h`. The log
//! (`$LogFile`) is not replayed: `state` tells if it should have been.
//!
//! Files belong to root, with the modes 0755 for directories and 0644 for files: Windows's access control lists have no counterpart.

mod compressed;
mod geometry;
mod index;
mod inode;
mod kinds;
mod links;
mod lznt1;
mod mft;
mod names;
mod pass;
mod record;
mod runs;
mod spec;
mod state;
mod streams;
mod system;
mod volume;
mod xpress;

use std::io;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_volume::{Volume, VolumeError};

use crate::probe::{Likeness, bytes_at};
use crate::registry::Reader;
use crate::{Damage, ReadError};
use volume::NtfsVolume;

/// The format's name.
pub const NAME: &str = "ntfs";

pub(crate) const READER: Reader =
    Reader { name: NAME, title: "an NTFS file system", packs: true, probe, open: open_volume };

/// By the name in the boot sector.
fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    Ok(Likeness::certain(bytes_at(image, 3)? == Some(*b"NTFS    ")))
}

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
        VolumeError::Unsupported(reason) => VolumeError::Unsupported(format!("{what}: {reason}")),
        other => other,
    }
}

/// Opens an NTFS volume for reading on demand. Reads and checks the boot sector, the MFT's own records, the root, and the volume's
/// state. If damage is salvaged, the copy of the MFT's first records is used where they cannot be read.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(NtfsVolume::open(image, damage)?))
}
