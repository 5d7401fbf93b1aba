//! `inspect`: which operating system is on a disk.

use inarch_confine::Parsing;
use inarch_disk::DiskVolume;
use inarch_disk::guest::{self, Mount, System};
use inarch_format::Damage;

use crate::source::{self, OpenError, Source};

/// An operating system on a disk.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The name of the volume that holds its root.
    pub root: String,
    /// What it is.
    pub system: System,
    /// What it mounts, and the name of the volume that this is, if it is on the disk.
    pub mounts: Vec<(Mount, Option<String>)>,
}

/// Every operating system on a disk image.
///
/// # Errors
/// The image cannot be opened, or a volume of it that should be a root cannot be read.
pub fn inspect(source: &Source) -> Result<Vec<Inspection>, OpenError> {
    source::with_volumes(source, |parsing, volumes, named| systems(parsing, volumes, named))
}

/// Every operating system on volumes that are `named`.
pub(crate) fn systems(
    parsing: Parsing,
    volumes: &[DiskVolume],
    named: &dyn Fn(&DiskVolume) -> bool,
) -> Vec<Inspection> {
    let mut found = Vec::new();
    for place in volumes.iter().filter(|place| named(place)) {
        // What cannot be opened is no root that can be looked at; `df` says why.
        let Ok(Some(files)) = source::file_system(parsing, place, Damage::Salvaged) else { continue };
        let Some(files) = guest::root_of(&files) else { continue };
        let on_disk = |mount: Mount| {
            let volume = volumes.iter().find(|volume| volume.answers_to(&mount.device)).map(DiskVolume::name);
            (mount, volume)
        };
        let mounts = guest::mounts(&*files).into_iter().map(on_disk).collect();
        found.push(Inspection { root: place.name(), system: guest::system(&*files), mounts });
    }
    found
}
