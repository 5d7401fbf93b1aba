//! The volumes of a guest's disks.

use std::collections::HashSet;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;

use crate::above::Kind;
use crate::{Above, DiskError, Keys, Names, Piece, Signature, above, examine};

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
/// be read. Extended partitions are none: their parts are. Nor are the members of an array that can be read, as those of a mirror look like it, and
/// what an opened LUKS volume lies in.
///
/// # Errors
/// As [`examine`].
pub fn volumes(parsing: Parsing, disks: &[Arc<dyn Backing>], keys: &Keys) -> Result<Vec<DiskVolume>, DiskError> {
    let mut pieces = Vec::new();
    for (number, image) in disks.iter().enumerate() {
        let examined = examine(parsing, image)?;
        let name = number.to_string();
        pieces.extend(examined.pieces(image, number, &name));
    }
    let found = above(parsing, &pieces, keys)?.list;
    let hides = |volume: &&Above| volume.kind != Kind::Logical && volume.bytes.is_ok();
    let hidden: HashSet<&str> = found.iter().filter(hides).flat_map(|volume| &volume.on).map(String::as_str).collect();
    let locked = |name: &str| {
        let of_it = found.iter().find(|volume| volume.kind == Kind::Luks && volume.on.iter().any(|on| on == name));
        of_it.and_then(|volume| volume.bytes.as_ref().err().cloned())
    };
    let mut volumes = Vec::new();
    for Piece { name, names, backing } in pieces {
        if !hidden.contains(&*name) {
            volumes.push(DiskVolume { names, backing, locked: locked(&name) });
        }
    }
    for volume in &found {
        let Ok(backing) = &volume.bytes else { continue };
        if !hidden.contains(&*volume.name) {
            let (names, backing) = (volume.names(), Arc::clone(backing));
            volumes.push(DiskVolume { names, backing, locked: locked(&volume.name) });
        }
    }
    Ok(volumes)
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
