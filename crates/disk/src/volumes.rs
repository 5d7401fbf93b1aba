//! The volumes of a guest's disks.

use std::collections::HashSet;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;

use crate::above::Kind;
use crate::{Above, Disk, DiskError, Keys, Names, Piece, Signature, Volumes, above, device_name, examine};

/// What can hold a file system: a partition, a whole disk that has no partition table, or a volume that lies on those.
pub struct DiskVolume {
    /// What it is called by, and what it holds.
    pub names: Names,
    /// Its bytes.
    pub backing: Arc<dyn Backing>,
    /// Why it is not opened, if it is a LUKS volume.
    pub locked: Option<String>,
}

/// The volumes of a guest's disks: of each disk the partitions by where they start, then arrays, opened LUKS volumes and logical volumes that can
/// be read. Three things are left out: extended partitions (the partitions in them count), the members of an array that can be read (a mirror's
/// members look like the mirror), and what an opened LUKS volume lies in.
///
/// # Errors
/// As [`examine`].
pub fn volumes(parsing: Parsing, disks: &[Arc<dyn Backing>], keys: &Keys) -> Result<Vec<DiskVolume>, DiskError> {
    let examined = disks.iter().map(|image| Ok((Arc::clone(image), examine(parsing, image)?)));
    let examined = examined.collect::<Result<Vec<_>, DiskError>>()?;
    Ok(volumes_of(parsing, &examined, keys)?.0)
}

/// The same for disks that were examined, with what lies above their partitions. Pieces are called `/dev/sda:1`, or `/dev/sda` if a disk has no
/// partition table.
///
/// # Errors
/// A disk cannot be read.
pub fn volumes_of(
    parsing: Parsing,
    disks: &[(Arc<dyn Backing>, Disk)],
    keys: &Keys,
) -> Result<(Vec<DiskVolume>, Volumes), DiskError> {
    let numbered = disks.iter().enumerate();
    let pieces = numbered.flat_map(|(number, (image, examined))| examined.pieces(image, number, &device_name(number)));
    let pieces: Vec<_> = pieces.collect();
    let found = above(parsing, &pieces, keys)?;
    let hides = |volume: &&Above| volume.kind != Kind::Logical && volume.bytes.is_ok();
    let hidden: HashSet<&str> =
        found.list.iter().filter(hides).flat_map(|volume| &volume.on).map(String::as_str).collect();
    let locked = |name: &str| {
        let of_it = found.list.iter().find(|volume| volume.kind == Kind::Luks && volume.on.iter().any(|on| on == name));
        of_it.and_then(|volume| volume.bytes.as_ref().err().cloned())
    };
    let mut volumes = Vec::new();
    for Piece { name, names, backing } in pieces {
        if !hidden.contains(&*name) {
            volumes.push(DiskVolume { names, backing, locked: locked(&name) });
        }
    }
    for volume in &found.list {
        let Ok(backing) = &volume.bytes else { continue };
        if !hidden.contains(&*volume.name) {
            let (names, backing) = (volume.names(), Arc::clone(backing));
            volumes.push(DiskVolume { names, backing, locked: locked(&volume.name) });
        }
    }
    drop(hidden);
    Ok((volumes, found))
}

impl DiskVolume {
    /// The name that a guest with SCSI or SATA disks has for it: `/dev/sda1`, `/dev/vg/root`.
    pub fn name(&self) -> String {
        self.names.device()
    }

    /// As [`Names::answer_to`].
    pub fn answers_to(&self, name: &str) -> bool {
        self.names.answer_to(name)
    }

    /// What it holds, if that is known.
    pub fn content(&self) -> Option<&Signature> {
        self.names.content.as_ref()
    }
}
