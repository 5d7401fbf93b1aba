//! Finds out which volumes an appliance needs, by the image's bytes, in a thread that can do nothing else.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_disk::guest::{BadSubvolume, NotFound, Place, Places, Subvolume, file_systems, places};
use inarch_disk::{Above, Disk, DiskVolume, Keys, Kind};
use inarch_format::{Damage, btrfs};
use inarch_source::{DiskFile, DiskImage, ImageFormat, OpenDiskError, OpenedDisk, Which, file_system, parse};

use super::ApplianceError;
use super::wire::{Array, Attach, AttachedVolume, Device};
use crate::run::AttachedDisk;

/// What is on the image, and what of it is meant.
#[derive(Debug)]
pub(super) struct Plan {
    pub attach: Attach,
    /// The image's partition table and partitions.
    pub disk: Disk,
}

/// The serial number of the image's disk.
const SERIAL: &str = "disk1";

/// Which volumes of an image are meant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    /// What this names. By itself, the guest with what its fstab mounts.
    Named(&'a Which),
    /// All that hold files.
    All,
}

/// Looks at an image. `format` is what it is known to be.
pub(super) fn plan(
    disk: &AttachedDisk,
    format: ImageFormat,
    with: &[PathBuf],
    wanted: Wanted<'_>,
) -> Result<Plan, ApplianceError> {
    let path = &disk.path;
    let image = DiskImage::open(&DiskFile { path: path.clone(), format: Some(format), with: with.to_vec() })?;
    let looked = parse(|parsing| -> Result<Plan, OpenDiskError> {
        let OpenedDisk { disk, .. } = image.disk(parsing)?;
        let examined = inarch_disk::examine(parsing, &disk)?;
        let disks = [(Arc::clone(&disk), examined)];
        // Encrypted volumes stay closed.
        let (volumes, above) = inarch_disk::volumes_of(parsing, &disks, &Keys::default())?;
        let ([(_, examined)], above) = (disks, above.list);
        let attach = match attach(parsing, &volumes, wanted) {
            // The guest may know a volume that is not read here, such as a thin one.
            Err(error) => only_above(&above, wanted).ok_or(error)?,
            Ok(attach) => attach,
        };
        Ok(Plan { attach: with_groups(attach, &above), disk: examined })
    })?;
    looked.map_err(|error| ApplianceError::Disk { path: path.clone(), error: Box::new(error) })
}

/// The volumes that are read here.
fn attach(parsing: Parsing, volumes: &[DiskVolume], wanted: Wanted<'_>) -> Result<Attach, NotFound> {
    let open = &mut |volume: &DiskVolume| file_system(parsing, volume, Damage::Salvaged);
    let Places { mut mounted, missing } = match wanted {
        Wanted::Named(which) => places(volumes, which, open)?,
        Wanted::All => file_systems(volumes)?,
    };
    for place in &mut mounted {
        let Some((wanted, volume)) = place.subvolume.as_mut().zip(volumes.get(place.volume)) else { continue };
        by_option(parsing, volume, wanted)?;
    }
    let attached = |Place { volume, directory, subvolume }: Place| {
        let volume = volumes.get(volume)?;
        let device = match &volume.names.above {
            Some(name) => Device::Above(name.clone()),
            None => Device::Disk { serial: SERIAL.to_owned(), part: volume.names.part },
        };
        let format = volume.content().map(|content| content.format.to_owned());
        let subvolume = subvolume.map(|subvolume| subvolume.to_string());
        Some(AttachedVolume { device, format, directory, subvolume, name: volume.name() })
    };
    let why = |(directory, bad): (String, Option<BadSubvolume>)| {
        (directory, bad.map_or_else(|| "it is not on this image".to_owned(), |bad| bad.to_string()))
    };
    let missing = missing.into_iter().map(why).collect();
    Ok(Attach { volumes: mounted.into_iter().filter_map(attached).collect(), missing, ..Attach::default() })
}

/// Names a subvolume so that an option of mount(8) can: by its number if a comma in its path would begin another option.
fn by_option(parsing: Parsing, volume: &DiskVolume, wanted: &mut Subvolume) -> Result<(), NotFound> {
    let Subvolume::Path(path) = &*wanted else { return Ok(()) };
    if !path.contains(',') {
        return Ok(());
    }
    let there = btrfs::subvolumes(parsing, Arc::clone(&volume.backing)).unwrap_or_default();
    let found = there.iter().find(|subvolume| subvolume.path == path.trim_matches('/').as_bytes());
    let found = found.ok_or_else(|| NotFound::Subvolume {
        volume: volume.name(),
        name: path.escape_debug().to_string(),
        there: "others".to_owned(),
    })?;
    *wanted = Subvolume::Id(found.id);
    Ok(())
}

/// A logical volume or an array by its name, although it is not read here.
fn only_above(above: &[Above], wanted: Wanted<'_>) -> Option<Attach> {
    let Wanted::Named(Which::Named(name)) = wanted else { return None };
    let name = name.strip_prefix("/dev/").unwrap_or(name);
    let volume = above.iter().find(|volume| volume.name.strip_prefix("/dev/") == Some(name))?;
    let attached = AttachedVolume {
        device: Device::Above(volume.name.clone()),
        format: None,
        directory: "/".to_owned(),
        subvolume: None,
        name: volume.name.clone(),
    };
    Some(Attach { volumes: vec![attached], ..Attach::default() })
}

/// Adds the arrays and volume groups that lie below the volumes.
fn with_groups(mut attach: Attach, above: &[Above]) -> Attach {
    let is_array = |name: &str| above.iter().any(|other| other.kind == Kind::Array && other.name == name);
    let mut is_needed = false;
    for volume in &mut attach.volumes {
        let Device::Above(name) = &volume.device else { continue };
        // An array may also hold a physical volume.
        is_needed = true;
        let group = Path::new(name).parent().and_then(|group| group.file_name()).and_then(|group| group.to_str());
        if is_array(name) {
            volume.device = Device::Array(name.clone());
        } else if let Some(group) = group
            && !attach.groups.iter().any(|other| other == group)
        {
            attach.groups.push(group.to_owned());
        }
    }
    if is_needed {
        let arrays = above.iter().filter(|volume| volume.kind == Kind::Array);
        attach.arrays =
            arrays.filter_map(|array| Some(Array { name: array.name.clone(), id: array.id.clone()? })).collect();
    }
    attach
}
