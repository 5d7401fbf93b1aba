//! What is mounted where.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_disk::device_name;
use inarch_disk::guest::{Mount, Subvolume, root_of};
use inarch_format::Damage;
use inarch_lifecycle::shown;
use inarch_source::{file_system, parse, subvolume};
use inarch_volume::{Composite, NotMounted, Statistics, Volume};

use super::{Place, Session, ShellError};
use inarch_guest::Guest;

/// The root's directory.
const ROOT: &str = "/";

/// A file system that is mounted.
pub(super) struct Mounted {
    pub device: String,
    pub place: Place,
    pub at: PathBuf,
    pub options: String,
    /// Whether it is the root of an operating system, which may be a subvolume that no option names.
    pub is_system: bool,
    pub files: Arc<dyn Volume>,
}

/// What is mounted where.
#[derive(Clone, Debug)]
pub struct Mounting {
    /// The device.
    pub device: String,
    /// The directory.
    pub at: PathBuf,
    /// How full it is.
    pub numbers: Statistics,
}

impl Session {
    /// Mounts a device's file system on the directory `at`, of what is mounted so far; the first one on `/`. Of the options `subvol=` and `subvolid=` matter, and `ro`:
    /// nothing in it is changed then.
    ///
    /// # Errors
    /// It has no file system that is read, or there is no such directory.
    pub fn mount(&mut self, device: &str, at: &Path, options: &str) -> Result<(), ShellError> {
        let (device, place, files) = self.open(device, options)?;
        let at = match &self.guest {
            Some(guest) => guest.canonical(at)?,
            None => plain(at),
        };
        if self.mounts.is_empty() && at != Path::new(ROOT) {
            return Err(ShellError::unfit(shown(&at), "nothing is mounted yet, so only / can be mounted on"));
        }
        if self.mounts.iter().any(|mounted| mounted.at == at) {
            return Err(ShellError::unfit(shown(&at), "something is mounted there; umount it first"));
        }
        self.put(Mounted { device, place, at, options: options.to_owned(), is_system: false, files })
    }

    /// The file system of a device, or its subvolume, and the device's usual name.
    fn open(&mut self, device: &str, options: &str) -> Result<(String, Place, Arc<dyn Volume>), ShellError> {
        let (device, wanted) = match device.strip_prefix("btrfsvol:") {
            Some(rest) => {
                let (device, path) = self.subvolume(rest)?;
                (device, path.map(|path| Subvolume::Path(path.to_owned())))
            }
            None => {
                let subvolume = Subvolume::of_options(options);
                (device.to_owned(), subvolume.map_err(|error| ShellError::unfit(device, error.to_string()))?)
            }
        };
        let block = self.block(&device)?;
        let view = self.view()?;
        let place = view.volumes.iter().find(|place| place.name() == block.known_as);
        let holds = block.content.as_ref().map_or("nothing that is known", |content| content.format);
        let unread = || ShellError::unfit(&*block.name, format!("it holds {holds}, and no file system that is read"));
        let place = place.ok_or_else(unread)?;
        let files = parse(|parsing| match &wanted {
            Some(wanted) => subvolume(parsing, place, Damage::Refused, wanted),
            None => file_system(parsing, place, Damage::Refused),
        })?;
        let files = files.map_err(|error| ShellError::unfit(&*block.name, told(&error)))?.ok_or_else(unread)?;
        self.notes.extend(files.notes().into_iter().map(|note| format!("{}: {note}", block.name)));
        let name = match wanted {
            Some(Subvolume::Path(path)) => format!("btrfsvol:{}/{}", block.name, path.trim_matches('/')),
            _ => block.name,
        };
        Ok((name, block.place, files))
    }

    /// Splits `/dev/sda1/@home`, as guestfish names a subvolume.
    fn subvolume<'a>(&mut self, text: &'a str) -> Result<(String, Option<&'a str>), ShellError> {
        let slashes = text.match_indices('/').map(|(at, _)| at).skip(2);
        for at in slashes.collect::<Vec<_>>() {
            let (device, rest) = text.split_at_checked(at).unwrap_or((text, ""));
            if self.block(device).is_ok() {
                return Ok((device.to_owned(), Some(rest)));
            }
        }
        Err(ShellError::unfit(text.escape_debug().to_string(), "it names no device and its subvolume"))
    }

    fn put(&mut self, mounted: Mounted) -> Result<(), ShellError> {
        self.mounts.push(mounted);
        let made = self.assemble();
        if made.is_err() {
            self.mounts.pop();
            self.assemble()?;
        }
        made
    }

    /// Makes one volume of all mounts.
    fn assemble(&mut self) -> Result<(), ShellError> {
        let Some((root, others)) = self.mounts.split_first() else {
            self.guest = None;
            return Ok(());
        };
        let whole = parse(|_| {
            let mut whole = Composite::new(Arc::clone(&root.files));
            for other in others {
                use std::os::unix::ffi::OsStrExt;
                let path = other.at.as_os_str().as_bytes();
                whole.mount(path, Arc::clone(&other.files)).map_err(|error: NotMounted| {
                    ShellError::unfit(shown(&other.at), format!("{} cannot be mounted: {error}", other.device))
                })?;
            }
            Ok::<_, ShellError>(whole)
        })??;
        self.guest = Some(Guest::of(Arc::new(whole)));
        Ok(())
    }

    /// Unmounts a device or a directory.
    ///
    /// # Errors
    /// It is not mounted, or something is mounted below it.
    pub fn unmount(&mut self, what: &str) -> Result<(), ShellError> {
        let device = self.block(what).map(|block| block.name);
        let directory = self.guest.as_ref().and_then(|guest| guest.canonical(Path::new(what)).ok());
        let (directory, device) =
            (directory.unwrap_or_else(|| plain(Path::new(what))), device.as_deref().unwrap_or(what));
        let found = self.mounts.iter().rposition(|mounted| mounted.at == directory || mounted.device == device);
        let Some(found) = found else {
            return Err(ShellError::unfit(what.escape_debug().to_string(), "it is not mounted"));
        };
        let at = self.mounts.get(found).map(|mounted| mounted.at.clone()).unwrap_or_default();
        if let Some(below) = self.mounts.iter().find(|other| other.at != at && other.at.starts_with(&at)) {
            let what = format!("{} is mounted below it", shown(&below.at));
            return Err(ShellError::unfit(shown(&at), what));
        }
        self.mounts.remove(found);
        self.assemble()
    }

    /// Unmounts everything.
    pub fn unmount_all(&mut self) {
        self.mounts.clear();
        self.guest = None;
    }

    /// What is mounted, in the order of mounting.
    pub fn mounts(&self) -> Vec<Mounting> {
        let of = |mounted: &Mounted| Mounting {
            device: mounted.device.clone(),
            at: mounted.at.clone(),
            numbers: mounted.files.statistics(),
        };
        self.mounts.iter().map(of).collect()
    }

    /// The mount that a path lies in.
    ///
    /// # Errors
    /// There is no such file, or nothing is mounted.
    pub fn mount_of(&self, path: &Path) -> Result<Mounting, ShellError> {
        let path = self.guest()?.canonical(path)?;
        let over = self.mounts().into_iter().filter(|mounted| path.starts_with(&mounted.at));
        over.max_by_key(|mounted| mounted.at.components().count()).ok_or(ShellError::NotMounted)
    }

    /// Mounts an operating system with what its fstab names. Lines say what is not mounted.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn mount_system(&mut self) -> Result<inarch_guest::Inspection, ShellError> {
        if self.drives.is_empty() {
            return Err(ShellError::NoDrives);
        }
        let system = match self.systems()? {
            [system] => system.clone(),
            [] => {
                return Err(ShellError::unfit(
                    "-i",
                    "no operating system was found; list-filesystems says what there is",
                ));
            }
            several => {
                let roots: Vec<_> = several.iter().map(|system| &*system.root).collect();
                let what = format!("several operating systems were found, on {}; mount one of them", roots.join(", "));
                return Err(ShellError::unfit("-i", what));
            }
        };
        self.unmount_all();
        let (device, place, files) = self.open(&system.root, "")?;
        let root = parse(|_| root_of(&files))?.map_or(files, |(root, _)| root);
        let (at, options) = (PathBuf::from(ROOT), String::new());
        self.put(Mounted { device, place, at, options, is_system: true, files: root })?;
        for (mount, volume) in &system.mounts {
            if mount.directory == ROOT {
                continue;
            }
            let at = shown(Path::new(&mount.directory));
            let Some(volume) = volume else {
                self.notes.push(format!("{at}: its device {} is on no drive", shown(Path::new(&mount.device))));
                continue;
            };
            if let Err(error) = self.mount(volume, Path::new(&mount.directory), &subvolume_option(mount)) {
                self.notes.push(format!("{at} is not mounted as the fstab says: {error}"));
            }
        }
        Ok(system)
    }

    /// Opens anew what is mounted, after a drive was written to. What cannot be opened any more is not mounted then, with all that was mounted after it.
    pub(super) fn remount(&mut self) {
        let mounted = std::mem::take(&mut self.mounts);
        for Mounted { device, at, options, is_system, .. } in mounted {
            let opened = self.open(&device, &options).and_then(|(device, place, files)| {
                let root = if is_system { parse(|_| root_of(&files))?.map(|(root, _)| root) } else { None };
                Ok(Mounted { device, place, at, options, is_system, files: root.unwrap_or(files) })
            });
            if let Err(error) = opened.and_then(|mounted| self.put(mounted)) {
                self.notes.push(format!("it is not mounted any more: {error}"));
                break;
            }
        }
        if self.mounts.is_empty() {
            self.guest = None;
        }
    }

    /// The device that is mounted and lies on a disk, or on a partition of it.
    pub(super) fn mounted_on(&mut self, disk: usize, part: Option<u32>) -> Option<String> {
        let piece = part.map_or_else(|| device_name(disk), |part| format!("{}:{part}", device_name(disk)));
        let is_piece = |name: &String| *name == piece || (part.is_none() && name.starts_with(&format!("{piece}:")));
        let is_there = |mounted: &Mounted| match mounted.place {
            Place::Disk(of) => of == disk,
            Place::Part(of, number) => of == disk && part.is_none_or(|part| part == number),
            // What it lies on may lie on others in turn: then all drives count.
            Place::Above => self.view.as_ref().is_none_or(|view| {
                let volume = view.above.list.iter().find(|volume| view.name_above(volume) == mounted.device);
                volume.is_none_or(|volume| volume.on.iter().any(|name| is_piece(name) || !name.starts_with("/dev/sd")))
            }),
        };
        self.mounts.iter().find(|mounted| is_there(mounted)).map(|mounted| mounted.device.clone())
    }
}

/// What is wrong, without the volume's name in front.
fn told(error: &inarch_source::OpenDiskError) -> String {
    match error {
        inarch_source::OpenDiskError::Read { error, .. } => error.to_string(),
        error => error.to_string(),
    }
}

/// The path without what does not matter: doubled and last slashes, dots.
fn plain(path: &Path) -> PathBuf {
    let names = path.components().filter_map(|part| match part {
        std::path::Component::Normal(name) => Some(name),
        _ => None,
    });
    Path::new(ROOT).join(names.collect::<PathBuf>())
}

/// What matters of the options of an fstab's line: one that says which subvolume is mounted, even if it says so in a wrong way.
fn subvolume_option(mount: &Mount) -> String {
    match mount.subvolume() {
        Ok(None) => String::new(),
        Ok(Some(subvolume)) => subvolume.to_string(),
        Err(_) => mount.options.clone(),
    }
}
