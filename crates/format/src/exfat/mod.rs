//! Reads exFAT (Microsoft's "exFAT file system specification", 1.00).
//!
//! 1. `boot` checks the boot region and its checksum; `chains` of the FAT reader follows chains of clusters.
//! 2. `entry` and `listing` read a directory's sets of entries, each with its checksum.
//! 3. `volume` answers questions about one node: a node is the place of its first entry in the image. `pass` bounds a walk.
//! 4. Content stays where it is. Behind a file's valid length there are zeros.
//!
//! Attributes that the format does not have are the same as for FAT: root owns everything; directories have the mode 0755,
//! files 0644, or 0444 if they are marked read-only. Times have an offset from UTC; without one they are taken for UTC. A
//! name keeps its case, and is found in that case only.

mod boot;
mod entry;
mod listing;
mod pass;
mod volume;

use std::io;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_volume::{Volume, VolumeError};

use crate::probe::{Likeness, bytes_at, has_partitions};
use crate::{Damage, ReadError, Reader};

const NAME: &str = "exfat";

/// The reader, for the registry.
pub(crate) const READER: Reader =
    Reader { name: NAME, title: "an exFAT file system", packs: false, probe, open: open_volume };

/// By the boot sector's name. A partition table in the same sector takes precedence: a program that writes one keeps the
/// bytes in front of it.
fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    let is_exfat = bytes_at::<512>(image, 0)?.is_some_and(|head| boot::is_exfat(&head) && !has_partitions(&head));
    Ok(if is_exfat { Likeness::Weak } else { Likeness::No })
}

/// Opens an exFAT for reading on demand. Reads and checks the boot region and the root's clusters.
///
/// Fails if the fields make no sense, or if damage is refused and the checksum of the boot region is wrong or the image is
/// shorter than the volume.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(volume::ExfatVolume::open(image, damage)?))
}

fn damaged(reason: impl Into<String>) -> VolumeError {
    VolumeError::Damaged(reason.into())
}
