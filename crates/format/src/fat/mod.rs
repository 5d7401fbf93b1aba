//! Reads FAT12, FAT16 and FAT32 with long names, as Linux's vfat shows them.
//!
//! 1. `boot` checks the boot sector, and finds the table and the clusters; `chains` follows chains of clusters in the table.
//! 2. `entry` and `listing` read a directory's entries and names.
//! 3. `volume` answers questions about one node: a node is the place of its entry in the image. `pass` bounds a walk.
//! 4. Content stays where it is: a file is a list of byte ranges of the image.
//!
//! Attributes that the format does not have are fixed: root owns everything; directories have the mode 0755, files 0644, or
//! 0444 if they are marked read-only. Times are local ones of an unknown zone, and are taken for UTC. Short names are in
//! code page
//! 437. A name keeps its case, and is found in that case only. The volume's label is no file.

mod boot;
pub(crate) mod chains;
mod codepage;
mod entry;
mod listing;
mod pass;
pub(crate) mod time;
mod volume;

use std::io;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_volume::{Volume, VolumeError};

use crate::probe::{Likeness, bytes_at, has_partitions};
use crate::{Damage, ReadError, Reader};

const NAME: &str = "vfat";

/// The reader, for the registry.
pub(crate) const READER: Reader =
    Reader { name: NAME, title: "a FAT file system", packs: false, probe, open: open_volume };

/// By the boot sector's fields. A partition table in the same sector takes precedence: a program that writes one keeps the
/// bytes in front of it.
fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    let is_fat = bytes_at::<512>(image, 0)?.is_some_and(|head| boot::is_fat(&head) && !has_partitions(&head));
    Ok(if is_fat { Likeness::Weak } else { Likeness::No })
}

/// Opens a FAT for reading on demand. Reads and checks the boot sector and the root's first cluster.
///
/// Fails if the fields make no sense, or if damage is refused and the image is shorter than the volume.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(volume::FatVolume::open(image, damage)?))
}

fn damaged(reason: impl Into<String>) -> VolumeError {
    VolumeError::Damaged(reason.into())
}
