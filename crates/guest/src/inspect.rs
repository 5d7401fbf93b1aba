//! `inspect`: which operating system is on a disk.

use inarch_confine::Parsing;
use inarch_disk::guest::{self, Mount, Subvolume, System};
use inarch_disk::{DiskVolume, Signature};
use inarch_format::Damage;
use inarch_source::{OpenError, Source};

use super::windows::{Drive, windows};

/// An operating system on a disk.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The name of the volume that holds its root.
    pub root: String,
    /// The subvolume of that volume, if its root is not that of the default one.
    pub root_subvolume: Option<Subvolume>,
    /// What it is.
    pub system: System,
    /// What it mounts, and the name of the volume that this is, if it is on the disk.
    pub mounts: Vec<(Mount, Option<String>)>,
    /// The drives of a Windows.
    pub drives: Vec<Drive>,
    /// The disk's volumes that hold something known, by name.
    pub volumes: Vec<(String, Signature)>,
}

/// Every operating system on a disk image.
///
/// # Errors
/// The image cannot be opened, or a volume of it that should be a root cannot be read.
pub fn inspect(source: &Source) -> Result<Vec<Inspection>, OpenError> {
    inarch_source::with_volumes(source, |parsing, volumes, named| systems(parsing, volumes, named))
}

/// Every operating system on volumes that are `named`.
pub fn systems(parsing: Parsing, volumes: &[DiskVolume], named: &dyn Fn(&DiskVolume) -> bool) -> Vec<Inspection> {
    let mut found = Vec::new();
    for place in volumes.iter().filter(|place| named(place)) {
        // A volume that cannot be opened cannot be inspected; `df` says why.
        let Ok(Some(files)) = inarch_source::file_system(parsing, place, Damage::Salvaged) else { continue };
        let Some((files, root_subvolume)) = guest::root_of(&files) else { continue };
        let mapped = guest::mapped(&*files);
        let on_disk = |mount: Mount| {
            let of_it = |volume: &&DiskVolume| guest::is_meant(volume, &mount.device, &mapped);
            let volume = volumes.iter().find(of_it).map(DiskVolume::name);
            (mount, volume)
        };
        let mounts = guest::mounts(&*files).into_iter().map(on_disk).collect();
        let (mut system, mut drives) = (guest::system(&*files), Vec::new());
        if system.kind == Some("windows") {
            let told = windows(parsing, &files, volumes);
            (system, drives) = (told.system, told.drives);
        }
        let known = volumes.iter().filter_map(|volume| Some((volume.name(), volume.content().cloned()?)));
        found.push(Inspection { root: place.name(), root_subvolume, system, mounts, drives, volumes: known.collect() });
    }
    found
}
