//! A guest's file systems: which one is its root, and what it mounts where.

mod fstab;
mod packages;
mod places;
mod system;

use std::sync::Arc;

use inarch_volume::{Composite, Last, Volume, read_small, resolve};

use crate::DiskVolume;
pub use fstab::Mount;
pub use packages::{Database, Package};
pub use places::{Place, Places, places};
pub use system::{System, system};

/// The most bytes of an fstab.
const FSTAB_BYTES: usize = 1 << 20;

/// The files of which an operating system's root has at least one.
const OF_A_ROOT: [&[u8]; 6] = [
    b"etc/fstab",
    b"etc/os-release",
    b"usr/lib/os-release",
    b"etc/debian_version",
    b"etc/redhat-release",
    b"Windows/System32/config/SYSTEM",
];

/// A volume whose file system was opened.
pub struct FileSystem {
    /// Its place on the disks.
    pub place: DiskVolume,
    /// Its files.
    pub files: Arc<dyn Volume>,
}

/// What [`select`] selects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Which {
    /// The whole guest: its root, with what its fstab mounts. If the disk has one file system only, that.
    Auto,
    /// The volume that answers to this name ([`DiskVolume::answers_to`]), by itself.
    Named(String),
}

/// Why there is no such file system.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFound {
    /// No volume has that name.
    #[error("it has no volume '{name}'; it has {there}")]
    Volume {
        /// The name.
        name: String,
        /// The volumes that there are.
        there: String,
    },
    /// The volume has no file system that can be read.
    #[error("its volume '{name}' holds {content}, which inarch cannot read")]
    Unread {
        /// The name.
        name: String,
        /// What it holds.
        content: String,
    },
    /// Nothing can be read.
    #[error("it has no file system that inarch can read; it has {there}")]
    Nothing {
        /// The volumes that there are.
        there: String,
    },
    /// None of several is the root of an operating system.
    #[error("none of its file systems is the root of an operating system; name one, as in IMAGE:1; it has {there}")]
    NoRoot {
        /// The volumes that there are.
        there: String,
    },
    /// The directory that was named cannot be its root.
    #[error("{path}: {reason}")]
    Directory {
        /// The directory's path.
        path: String,
        /// Why not.
        reason: String,
    },
    /// Several could be meant.
    #[error("several of its volumes can be meant: {there}; name one, as in IMAGE:1")]
    Several {
        /// Those.
        there: String,
    },
}

/// Opens a volume's file system; gives `None` if its format cannot be read.
pub type Open<'a, E> = dyn FnMut(&DiskVolume) -> Result<Option<Arc<dyn Volume>>, E> + 'a;

/// Opens the file system that `which` means, of all volumes of a guest's disks. The directory `within` becomes its root, unless it is empty.
///
/// What cannot be mounted on the root is left out, and noted in [`Volume::notes`].
///
/// # Errors
/// Those of `open` for a volume that was named, and [`NotFound`].
pub fn select<E: From<NotFound>>(
    volumes: Vec<DiskVolume>,
    which: &Which,
    within: &[u8],
    open: &mut Open<'_, E>,
) -> Result<Arc<dyn Volume>, E> {
    let there = shown(&volumes);
    match which {
        Which::Named(name) => {
            let volume = named(&volumes, which)?;
            let content = volume.content.as_ref().map_or("nothing known", |content| content.format).to_owned();
            let files = open(volume)?.ok_or_else(|| NotFound::Unread { name: name.clone(), content })?;
            Ok(rooted(files, within)?)
        }
        Which::Auto => {
            let mut systems = Vec::new();
            let mut failed = None;
            for place in volumes {
                match open(&place) {
                    Ok(Some(files)) => systems.push(FileSystem { place, files }),
                    Ok(None) => {}
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            match (systems.is_empty(), failed) {
                (true, Some(error)) => Err(error),
                (true, None) => Err(NotFound::Nothing { there }.into()),
                (false, _) => Ok(assemble(systems, &there, within)?),
            }
        }
    }
}

/// Checks that there is one volume of that name.
///
/// # Errors
/// There is none, or several.
pub fn exists(volumes: &[DiskVolume], which: &Which) -> Result<(), NotFound> {
    named(volumes, which).map(drop)
}

/// The volume that is named; the first for [`Which::Auto`].
fn named<'a>(volumes: &'a [DiskVolume], which: &Which) -> Result<&'a DiskVolume, NotFound> {
    let there = || shown(volumes);
    let Which::Named(name) = which else { return volumes.first().ok_or_else(|| NotFound::Nothing { there: there() }) };
    let found: Vec<_> = volumes.iter().filter(|volume| volume.answers_to(name)).collect();
    match &*found {
        [] => Err(NotFound::Volume { name: name.clone(), there: there() }),
        [volume] => Ok(volume),
        several => Err(NotFound::Several { there: shown(several.iter().copied()) }),
    }
}

/// The volumes, for messages.
fn shown<'a>(volumes: impl IntoIterator<Item = &'a DiskVolume>) -> String {
    let shown = |volume: &DiskVolume| {
        let content = volume.content.as_ref();
        let format = content.map_or("nothing known", |content| content.format);
        let label = content.and_then(|content| content.label.as_ref());
        let label = label.map_or_else(String::new, |label| format!(", LABEL={}", label.escape_debug()));
        format!("{} ({format}{label})", volume.name())
    };
    let all: Vec<_> = volumes.into_iter().map(shown).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// The directories of a Btrfs that hold a root, where its default subvolume is none: those of Debian and Ubuntu, Fedora, and Debian's installer.
const ROOT_SUBVOLUMES: [&[u8]; 3] = [b"@", b"root", b"@rootfs"];

/// Whether a file system is the root of an operating system.
pub fn is_root(files: &dyn Volume) -> bool {
    // A damaged directory has none.
    OF_A_ROOT.iter().any(|path| resolve(files, path, Last::Taken).is_ok_and(|found| found.is_some()))
}

/// The root of an operating system on a file system: the file system itself, or a usual subvolume of a Btrfs. `None` if there is none.
pub fn root_of(files: &Arc<dyn Volume>) -> Option<Arc<dyn Volume>> {
    if is_root(&**files) {
        return Some(Arc::clone(files));
    }
    let subvolumes = ROOT_SUBVOLUMES.iter().filter(|_| files.format() == "btrfs");
    let mut roots = subvolumes.filter_map(|path| rooted(Arc::clone(files), path).ok());
    roots.find(|root| is_root(&**root))
}

/// The file systems that a guest's root mounts by its fstab, in the order of their paths.
pub fn mounts(root: &dyn Volume) -> Vec<Mount> {
    let text = read_small(root, b"etc/fstab", FSTAB_BYTES).ok().flatten().unwrap_or_default();
    let mut mounts: Vec<_> = fstab::parse(&text).into_iter().filter(Mount::is_of_a_disk).collect();
    mounts.sort_by_key(|mount| mount.directory.matches('/').count());
    mounts
}

/// The guest as one volume.
fn assemble(systems: Vec<FileSystem>, there: &str, within: &[u8]) -> Result<Arc<dyn Volume>, NotFound> {
    let roots: Vec<_> = systems.iter().filter_map(|system| Some((&system.place, root_of(&system.files)?))).collect();
    let root = match (&*systems, &*roots) {
        ([only], []) => Arc::clone(&only.files),
        (_, []) => return Err(NotFound::NoRoot { there: there.to_owned() }),
        (_, [(_, root)]) => Arc::clone(root),
        _ => return Err(NotFound::Several { there: shown(roots.iter().map(|(place, _)| *place)) }),
    };
    let wanted: Vec<_> = mounts(&*root).into_iter().filter(|mount| mount.directory != "/").collect();
    if wanted.is_empty() {
        return rooted(root, within);
    }
    let mut guest = Composite::new(root);
    for mount in wanted {
        let Mount { device, directory, .. } = &mount;
        let Some(system) = systems.iter().find(|system| system.place.answers_to(device)) else {
            guest.note(format!(
                "{device:?}, which its fstab mounts on {directory:?}, is not on the disk, or cannot be read"
            ));
            continue;
        };
        // The option is of Btrfs; its subvolumes are directories of the default one.
        let files = match mount.option("subvol") {
            Some(subvolume) => rooted(Arc::clone(&system.files), subvolume.as_bytes()),
            None if mount.option("subvolid").is_some() => {
                guest.note(format!(
                    "{device:?} on {directory:?}: its fstab names the subvolume by a number; its default one is shown"
                ));
                Ok(Arc::clone(&system.files))
            }
            None => Ok(Arc::clone(&system.files)),
        };
        let mounted = files.map_err(|error| error.to_string());
        let mounted =
            mounted.and_then(|files| guest.mount(directory.as_bytes(), files).map_err(|error| error.to_string()));
        if let Err(error) = mounted {
            guest.note(format!("{device:?} is not mounted on {directory:?} as its fstab says: {error}"));
        }
    }
    set_root(&mut guest, within)?;
    Ok(Arc::new(guest))
}

/// A volume, with one of its directories as its root.
fn rooted(files: Arc<dyn Volume>, within: &[u8]) -> Result<Arc<dyn Volume>, NotFound> {
    if within.is_empty() {
        return Ok(files);
    }
    let mut composite = Composite::new(files);
    set_root(&mut composite, within)?;
    Ok(Arc::new(composite))
}

fn set_root(guest: &mut Composite, within: &[u8]) -> Result<(), NotFound> {
    let path = || String::from_utf8_lossy(within).escape_debug().to_string();
    guest.set_root(within).map_err(|error| NotFound::Directory { path: path(), reason: error.to_string() })
}
