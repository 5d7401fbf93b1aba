//! [`places`]: which volumes of a guest's disks are mounted where, for a caller that mounts all of them.

use std::sync::Arc;

use inarch_volume::Volume;

use super::{BadSubvolume, NotFound, Subvolume, Which, mounts, named, root_of, shown};
use crate::DiskVolume;

/// A volume that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which of the volumes.
    pub volume: usize,
    /// Where, from the root: `/` or `/home`.
    pub directory: String,
    /// The subvolume of a Btrfs that is mounted, if it is not the default one.
    pub subvolume: Option<Subvolume>,
}

/// The volumes that are mounted, and what is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// In the order of mounting.
    pub mounted: Vec<Place>,
    /// Mount points in the fstab whose volumes are not on the disks, or whose options name their subvolumes in a way that Linux refuses.
    pub missing: Vec<(String, Option<BadSubvolume>)>,
}

/// The formats of volumes that hold no files, by the names of [`Signature`](crate::Signature).
const WITHOUT_FILES: [&str; 6] = ["swap", "LVM2_member", "linux_raid_member", "crypto_LUKS", "jbd", "bcache"];

/// Opens a volume's file system; gives `None` if its format cannot be read.
pub type Open<'a, E> = dyn FnMut(&DiskVolume) -> Result<Option<Arc<dyn Volume>>, E> + 'a;

/// What `which` means of the volumes of a guest's disks. `open` opens those whose format can be read; others count as well, if they hold files
/// by their signature.
///
/// # Errors
/// [`NotFound`].
pub fn places<E>(volumes: &[DiskVolume], which: &Which, open: &mut Open<'_, E>) -> Result<Places, NotFound> {
    if let Which::Named(name) = which {
        let (volume, subvolume) = named(volumes, name)?;
        if let Some(error) = encrypted(volume) {
            return Err(error);
        }
        if let Some(content) = volume.content().filter(|content| WITHOUT_FILES.contains(&content.format)) {
            return Err(NotFound::Unread { name: name.clone(), content: content.format.to_owned() });
        }
        let at = volumes.iter().position(|other| std::ptr::eq(other, volume)).unwrap_or_default();
        return Ok(Places {
            mounted: vec![Place { subvolume: subvolume.map(|path| Subvolume::Path(path.to_owned())), ..whole(at) }],
            missing: Vec::new(),
        });
    }
    let mut roots = Vec::new();
    for (at, volume) in volumes.iter().enumerate() {
        // A volume that cannot be opened here cannot be recognised as a root. The caller may still be able to mount it.
        let root = open(volume).ok().flatten().and_then(|files| root_of(&files));
        roots.extend(root.map(|(root, subvolume)| (at, root, subvolume)));
    }
    if roots.is_empty()
        && let Some(error) = volumes.iter().find_map(encrypted)
    {
        // The root may be in there.
        return Err(error);
    }
    let (at, root, subvolume) = match roots.len() {
        0 => return Ok(Places { mounted: vec![whole(only(volumes)?)], missing: Vec::new() }),
        1 => roots.remove(0),
        _ => {
            let there = shown(roots.iter().filter_map(|(at, ..)| volumes.get(*at)));
            return Err(NotFound::Several { there });
        }
    };
    let mut found = Places { mounted: vec![Place { subvolume, ..whole(at) }], missing: Vec::new() };
    for mount in mounts(&*root) {
        let directory = mount.directory.clone();
        match (volumes.iter().position(|volume| volume.answers_to(&mount.device)), mount.subvolume()) {
            _ if directory == "/" => {}
            (Some(volume), Ok(subvolume)) => found.mounted.push(Place { volume, directory, subvolume }),
            (Some(_), Err(bad)) => found.missing.push((directory, Some(bad))),
            (None, _) => found.missing.push((directory, None)),
        }
    }
    Ok(found)
}

/// Every volume that holds files, for a caller that mounts none of them.
///
/// # Errors
/// There is none, or one is encrypted: what is in that cannot be among them.
pub fn file_systems(volumes: &[DiskVolume]) -> Result<Places, NotFound> {
    let mounted: Vec<_> = (0..).zip(volumes).filter(|(_, volume)| has_files(volume)).map(|(at, _)| whole(at)).collect();
    match volumes.iter().find_map(encrypted) {
        Some(locked) => Err(locked),
        None if mounted.is_empty() => Err(NotFound::Nothing { there: shown(volumes) }),
        None => Ok(Places { mounted, missing: Vec::new() }),
    }
}

/// Whether a volume holds files, by its signature.
fn has_files(volume: &DiskVolume) -> bool {
    volume.content().is_some_and(|content| !WITHOUT_FILES.contains(&content.format))
}

fn encrypted(volume: &DiskVolume) -> Option<NotFound> {
    volume.locked.as_ref().map(|_| NotFound::Encrypted { volume: volume.name() })
}

fn whole(volume: usize) -> Place {
    Place { volume, directory: "/".to_owned(), subvolume: None }
}

/// The only volume with files, where none is the root of an operating system.
fn only(volumes: &[DiskVolume]) -> Result<usize, NotFound> {
    let with_files: Vec<_> = volumes.iter().enumerate().filter(|(_, volume)| has_files(volume)).collect();
    match &*with_files {
        [] => Err(NotFound::Nothing { there: shown(volumes) }),
        [(at, _)] => Ok(*at),
        _ => Err(NotFound::NoRoot { there: shown(volumes) }),
    }
}
