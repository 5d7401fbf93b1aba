//! Reads ISO 9660 (ECMA-119) with Rock Ridge (RRIP 1.12, SUSP 1.12) or Joliet, or plain.
//!
//! 1. `descriptors` finds the volume's root directories. Rock Ridge is preferred, then Joliet, as in Linux.
//! 2. `record` reads a directory's records, `rock` their fields of Rock Ridge with continuation areas.
//! 3. `volume` answers questions about one node: a directory's node is the place of its record for itself, another's the
//!    place of its first record. `pass` bounds a walk.
//! 4. Content stays where it is: a file is one byte range of the image for each of its sections.
//!
//! Without Rock Ridge, attributes are fixed: root owns everything; directories have the mode 0755, files 0644. A plain name
//! keeps its case, and loses the version `;1` and a dot at its end. Directories that were moved up, as Rock Ridge records,
//! appear where they were before. Content that is compressed (zisofs), interleaved or sparse is not read. Of several
//! versions of a disc that was written in sessions, the one whose descriptors are in sector 16 is read.

mod descriptors;
mod listing;
mod pass;
mod record;
mod rock;
mod volume;

use std::io;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_volume::{Volume, VolumeError};

use crate::probe::{Likeness, bytes_at};
use crate::{Damage, ReadError, Reader};

const NAME: &str = "iso9660";

/// Bytes of a sector, which no record and no descriptor crosses.
const SECTOR: u64 = 2048;

/// The reader, for the registry.
pub(crate) const READER: Reader =
    Reader { name: NAME, title: "an ISO 9660 file system", packs: false, probe, open: open_volume };

/// By the first descriptor's identifier.
fn probe(image: &dyn Backing) -> io::Result<Likeness> {
    Ok(Likeness::certain(bytes_at(image, descriptors::START + 1)? == Some(*descriptors::MAGIC)))
}

/// Opens an ISO 9660 image for reading on demand. Reads the volume's descriptors and the root's first record.
///
/// Fails if there is no primary descriptor, or no root. That is never salvaged.
pub fn open_volume(_: Parsing, image: Arc<dyn Backing>, _: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    Ok(Arc::new(volume::IsoVolume::open(image).map_err(|error| ReadError::of_volume(NAME, error))?))
}

fn damaged(reason: impl Into<String>) -> VolumeError {
    VolumeError::Damaged(reason.into())
}
