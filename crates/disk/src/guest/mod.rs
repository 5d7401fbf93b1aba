//! A guest's file systems: which one is its root, and what it mounts where.

mod crypttab;
mod fstab;
mod packages;
mod places;
mod system;

use std::sync::Arc;

use inarch_volume::{Composite, Last, Volume, read_small, resolve};

use crate::DiskVolume;
pub use crypttab::Mapped;
pub use fstab::{BadSubvolume, Mount, Subvolume};
pub use packages::{Database, Package};
pub use places::{Place, Places, file_systems, places};
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
    /// The volume that answers to this name ([`DiskVolume::answers_to`]), by itself. If none does, what follows the first `@` is a subvolume of it: its
    /// path from the top on. Nothing before the `@` means the only volume that has a Btrfs.
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
    /// It is a LUKS volume that is not opened, or all that could be read lies in such volumes.
    #[error("its volume {volume} cannot be read: {reason}")]
    Locked {
        /// The volume.
        volume: String,
        /// Why it is not opened.
        reason: String,
    },
    /// It is an encrypted volume, and was to be mounted by a kernel, which has no key.
    #[error(
        "its volume {volume} is encrypted, and such volumes are only read, with --key; nothing in them is changed, checked or resized"
    )]
    Encrypted {
        /// The volume.
        volume: String,
    },
    /// The Btrfs on a volume has no such subvolume, or the volume has no Btrfs.
    #[error("its volume {volume} has no subvolume '{name}'; it has {there}")]
    Subvolume {
        /// The volume.
        volume: String,
        /// The subvolume's path.
        name: String,
        /// Those that there are.
        there: String,
    },
    /// The fstab names a subvolume in a way that Linux does not take.
    #[error(transparent)]
    BadSubvolume(#[from] BadSubvolume),
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

/// Opens the file systems of volumes, because this crate does not know the readers.
pub trait Opener {
    /// Why one cannot be opened.
    type Error: From<NotFound>;

    /// Opens a volume's file system; gives `None` if its format cannot be read. `subvolume` is the number of the subvolume that is the root of it,
    /// as Btrfs has them: 5 for the top one. Other formats have none.
    fn open(&mut self, volume: &DiskVolume, subvolume: Option<u64>) -> Result<Option<Arc<dyn Volume>>, Self::Error>;

    /// The paths of a volume's subvolumes from the top on, for messages; none if it has none.
    fn subvolumes(&mut self, volume: &DiskVolume) -> Vec<String>;
}

/// The number of the subvolume that all others of a Btrfs are below.
const TOP: u64 = 5;

/// Opens the file system that `which` means, of all volumes of a guest's disks. The directory `within` becomes its root, unless it is empty.
///
/// What cannot be mounted on the root is left out, and noted in [`Volume::notes`].
///
/// # Errors
/// Those of `open` for a volume that was named, and [`NotFound`].
pub fn select<O: Opener>(
    volumes: Vec<DiskVolume>,
    which: &Which,
    within: &[u8],
    opener: &mut O,
) -> Result<Arc<dyn Volume>, O::Error> {
    let there = shown(&volumes);
    match which {
        Which::Named(name) => {
            let (volume, subvolume) = named(&volumes, name)?;
            if let Some(error) = locked(volume) {
                return Err(error.into());
            }
            let content = volume.content().map_or("nothing known", |content| content.format).to_owned();
            let files = opener.open(volume, subvolume.map(|_| TOP))?;
            let files = files.ok_or_else(|| NotFound::Unread { name: name.clone(), content })?;
            let files = match subvolume {
                Some(subvolume) => in_subvolume(volume, files, subvolume, opener)?,
                None => files,
            };
            Ok(rooted(files, within)?)
        }
        Which::Auto => {
            let mut systems = Vec::new();
            let (mut failed, mut is_locked) = (None, Vec::new());
            for place in volumes {
                is_locked.extend(locked(&place));
                match opener.open(&place, None) {
                    Ok(Some(files)) => systems.push(FileSystem { place, files }),
                    Ok(None) => {}
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            match (systems.is_empty(), failed) {
                (true, Some(error)) => Err(error),
                (true, None) => Err(is_locked.into_iter().next().unwrap_or(NotFound::Nothing { there }).into()),
                (false, _) => Ok(assemble(systems, is_locked, &there, within, opener)?),
            }
        }
    }
}

fn locked(volume: &DiskVolume) -> Option<NotFound> {
    Some(NotFound::Locked { volume: volume.name(), reason: volume.locked.clone()? })
}

/// The volumes that are meant: all, or the one that is named.
///
/// # Errors
/// There is none, or several have the name.
pub fn meant<'a>(volumes: &'a [DiskVolume], which: &Which) -> Result<Vec<&'a DiskVolume>, NotFound> {
    match which {
        Which::Named(name) => named(volumes, name).map(|(volume, _)| vec![volume]),
        Which::Auto if volumes.is_empty() => Err(NotFound::Nothing { there: shown(volumes) }),
        Which::Auto => Ok(volumes.iter().collect()),
    }
}

/// The volume that is named, and the subvolume of it.
fn named<'a, 'b>(volumes: &'a [DiskVolume], name: &'b str) -> Result<(&'a DiskVolume, Option<&'b str>), NotFound> {
    let of = |wanted: &dyn Fn(&DiskVolume) -> bool| volumes.iter().filter(|volume| wanted(volume)).collect::<Vec<_>>();
    let whole = of(&|volume| volume.answers_to(name));
    let (found, subvolume) = match name.split_once('@').filter(|_| whole.is_empty()) {
        Some(("" | "auto", subvolume)) => {
            (of(&|volume| volume.content().is_some_and(|content| content.format == "btrfs")), Some(subvolume))
        }
        Some((volume, subvolume)) => (of(&|other| other.answers_to(volume)), Some(subvolume)),
        None => (whole, None),
    };
    match &*found {
        [] => Err(NotFound::Volume { name: name.to_owned(), there: shown(volumes) }),
        [volume] => Ok((volume, subvolume)),
        several => Err(NotFound::Several { there: shown(several.iter().copied()) }),
    }
}

/// A subvolume of a file system whose top one is its root.
fn in_subvolume<O: Opener>(
    volume: &DiskVolume,
    files: Arc<dyn Volume>,
    name: &str,
    opener: &mut O,
) -> Result<Arc<dyn Volume>, NotFound> {
    let is_btrfs = files.format() == "btrfs";
    let found = if is_btrfs && !name.is_empty() { rooted(files, name.as_bytes()).ok() } else { None };
    found.ok_or_else(|| {
        let subvolumes = opener.subvolumes(volume);
        let there: Vec<_> = subvolumes.iter().take(MOST_SHOWN).map(|path| path.escape_debug().to_string()).collect();
        let more = subvolumes.len().saturating_sub(MOST_SHOWN);
        let there = match (&*there, more) {
            ([], _) => "none".to_owned(),
            (some, 0) => some.join(", "),
            (some, more) => format!("{} and {more} more", some.join(", ")),
        };
        NotFound::Subvolume { volume: volume.name(), name: name.escape_debug().to_string(), there }
    })
}

/// The most subvolumes that a message names.
const MOST_SHOWN: usize = 20;

/// The volumes, for messages.
fn shown<'a>(volumes: impl IntoIterator<Item = &'a DiskVolume>) -> String {
    let shown = |volume: &DiskVolume| {
        let content = volume.content();
        let format = content.map_or("nothing known", |content| content.format);
        let label = content.and_then(|content| content.label.as_ref());
        let label = label.map_or_else(String::new, |label| format!(", LABEL={}", label.escape_debug()));
        let locked = if volume.locked.is_some() { ", locked" } else { "" };
        format!("{} ({format}{label}{locked})", volume.name())
    };
    let all: Vec<_> = volumes.into_iter().map(shown).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

/// Where to look for a root if the default subvolume of a Btrfs is none: the subvolumes of Debian and Ubuntu, Fedora, and Debian's installer.
const ROOT_SUBVOLUMES: [&str; 3] = ["@", "root", "@rootfs"];

/// Whether a file system is the root of an operating system.
pub fn is_root(files: &dyn Volume) -> bool {
    // A damaged directory has none.
    OF_A_ROOT.iter().any(|path| resolve(files, path, Last::Taken).is_ok_and(|found| found.is_some()))
}

/// Finds the root of an operating system on a file system: its own root, or that of a usual subvolume of a Btrfs, which is named.
pub fn root_of(files: &Arc<dyn Volume>) -> Option<(Arc<dyn Volume>, Option<Subvolume>)> {
    if is_root(&**files) {
        return Some((Arc::clone(files), None));
    }
    let mut names = ROOT_SUBVOLUMES.iter().filter(|_| files.format() == "btrfs");
    names.find_map(|name| {
        let root = rooted(Arc::clone(files), name.as_bytes()).ok().filter(|root| is_root(&**root))?;
        Some((root, Some(Subvolume::Path((*name).to_owned()))))
    })
}

/// The file systems that a guest's root mounts by its fstab, in the order of their paths.
pub fn mounts(root: &dyn Volume) -> Vec<Mount> {
    let text = read_small(root, b"etc/fstab", FSTAB_BYTES).ok().flatten().unwrap_or_default();
    let mut mounts: Vec<_> = fstab::parse(&text).into_iter().filter(Mount::is_of_a_disk).collect();
    mounts.sort_by_key(|mount| mount.directory.matches('/').count());
    mounts
}

/// The encrypted volumes that a guest's root opens by its crypttab.
pub fn mapped(root: &dyn Volume) -> Vec<Mapped> {
    crypttab::parse(&read_small(root, b"etc/crypttab", FSTAB_BYTES).ok().flatten().unwrap_or_default())
}

/// Whether a guest that opens volumes as `mapped` means `place` by a device's name.
pub fn is_meant(place: &DiskVolume, device: &str, mapped: &[Mapped]) -> bool {
    let is_opened = |mapped: &Mapped| mapped.name == device && place.answers_to(&mapped.device);
    place.answers_to(device) || (place.names.within.is_some() && mapped.iter().any(is_opened))
}

/// The guest as one volume. `locked` are the volumes that could not be looked into.
fn assemble<O: Opener>(
    systems: Vec<FileSystem>,
    mut locked: Vec<NotFound>,
    there: &str,
    within: &[u8],
    opener: &mut O,
) -> Result<Arc<dyn Volume>, NotFound> {
    let roots: Vec<_> = systems.iter().filter_map(|system| Some((&system.place, root_of(&system.files)?.0))).collect();
    if roots.is_empty() && !locked.is_empty() {
        // The root may be in there.
        return Err(locked.swap_remove(0));
    }
    let root = match (&*systems, &*roots) {
        ([only], []) => Arc::clone(&only.files),
        (_, []) => return Err(NotFound::NoRoot { there: there.to_owned() }),
        (_, [(_, root)]) => Arc::clone(root),
        _ => return Err(NotFound::Several { there: shown(roots.iter().map(|(place, _)| *place)) }),
    };
    let mapped = mapped(&*root);
    let wanted: Vec<_> = mounts(&*root).into_iter().filter(|mount| mount.directory != "/").collect();
    if wanted.is_empty() && locked.is_empty() {
        return rooted(root, within);
    }
    let mut guest = Composite::new(root);
    locked.iter().for_each(|locked| guest.note(locked.to_string()));
    for mount in wanted {
        let Mount { device, directory, .. } = &mount;
        let Some(system) = systems.iter().find(|system| is_meant(&system.place, device, &mapped)) else {
            guest.note(format!(
                "{device:?}, which its fstab mounts on {directory:?}, is not on the disk, or cannot be read"
            ));
            hide(&mut guest, &mount);
            continue;
        };
        let files = subvolume_of(system, &mount, opener);
        let mounted = files.map_err(|error| error.to_string());
        let mounted =
            mounted.and_then(|files| guest.mount(directory.as_bytes(), files).map_err(|error| error.to_string()));
        if let Err(error) = mounted {
            guest.note(format!("{device:?} is not mounted on {directory:?} as its fstab says: {error}"));
            hide(&mut guest, &mount);
        }
    }
    set_root(&mut guest, within)?;
    Ok(Arc::new(guest))
}

/// Shows the directory of what is not mounted as empty, if the guest would mount something there when it starts.
fn hide(guest: &mut Composite, mount: &Mount) {
    if mount.is_automatic() {
        // Without a directory, there is nothing that could be taken for what is missing.
        let _ = guest.hide(mount.directory.as_bytes());
    }
}

/// What an entry of an fstab mounts: the options `subvol` and `subvolid` are of Btrfs, and count from the top subvolume.
fn subvolume_of<O: Opener>(system: &FileSystem, mount: &Mount, opener: &mut O) -> Result<Arc<dyn Volume>, NotFound> {
    let mut open = |number| {
        let opened = opener.open(&system.place, Some(number)).ok().flatten();
        opened.ok_or_else(|| NotFound::Subvolume {
            volume: system.place.name(),
            name: number.to_string(),
            there: "others".to_owned(),
        })
    };
    match mount.subvolume()? {
        Some(Subvolume::Path(path)) => rooted(open(TOP)?, path.as_bytes()),
        Some(Subvolume::Id(0)) => open(TOP),
        Some(Subvolume::Id(number)) => open(number),
        None => Ok(Arc::clone(&system.files)),
    }
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
