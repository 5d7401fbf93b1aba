//! A disk image, or a volume in one, as a source.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_disk::guest::{NotFound, Opener, Subvolume, Which, meant, select};
use inarch_disk::{DiskError, DiskVolume, Keys};
use inarch_format::btrfs;
use inarch_format::probe::{FileKind, Found, container, probe};
use inarch_format::{Damage, ReadError};
use inarch_volume::{Composite, NotMounted, Volume};

use super::{DiskFile, DiskImage, DiskPart, ImageFormat, OpenDiskError, OpenError, OpenedDisk, Source, parse};

/// Splits `IMAGE:VOLUME`, `IMAGE:/PATH` or `IMAGE:VOLUME:/PATH`, if there is such an image. The image is the longest beginning that exists.
pub fn split(text: &OsStr) -> Option<(PathBuf, DiskPart)> {
    let bytes = text.as_bytes();
    let colons = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').map(|(at, _)| at);
    for colon in colons.collect::<Vec<_>>().into_iter().rev() {
        let (image, name) = bytes.split_at_checked(colon)?;
        let image = Path::new(OsStr::from_bytes(image));
        if image.is_file() || is_device(image) {
            let (which, within) = parts(name.get(1..)?);
            return Some((image.to_owned(), *DiskPart::new(which, within)));
        }
    }
    None
}

fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// The volume, and the directory in it.
pub(super) fn parts(text: &[u8]) -> (Which, PathBuf) {
    let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
    if text.starts_with(b"/") && !text.starts_with(b"/dev/") {
        return (Which::Auto, path(text));
    }
    let colon = text.windows(2).rposition(|pair| pair == b":/");
    let (name, within) = colon.and_then(|colon| text.split_at_checked(colon)).unwrap_or((text, b""));
    let within = path(within.get(1..).unwrap_or_default());
    let name = String::from_utf8_lossy(name).into_owned();
    (if name == "auto" { Which::Auto } else { Which::Named(name) }, within)
}

/// Whether a file is a disk with a partition table or with parts of larger volumes, or a container of one.
pub(super) fn is_disk(path: &Path) -> Result<bool, OpenError> {
    let image = DiskImage::open(&DiskFile { path: path.to_owned(), format: None, with: Vec::new() })?;
    parse(|parsing| {
        let Ok(OpenedDisk { disk, format, .. }) = image.disk(parsing) else {
            // Errors in a container are reported when it is opened; the same holds below.
            return true;
        };
        if format == ImageFormat::Raw && matches!(container(parsing, &*disk), Ok(Some(_))) {
            return false;
        }
        let has_parts = || -> Result<bool, DiskError> {
            let found = inarch_disk::examine(parsing, &disk)?;
            let pieces = found.pieces(&disk, 0, "");
            let is_part_of_more = || Ok(!inarch_disk::above(parsing, &pieces, &Keys::default())?.list.is_empty());
            if found.table.is_some() { Ok(true) } else { is_part_of_more() }
        };
        // Errors in a damaged one are reported when it is opened.
        format != ImageFormat::Raw || has_parts().unwrap_or(true)
    })
}

/// Opens the file system on a disk that `part` means.
pub(super) fn open(
    parsing: Parsing,
    images: Vec<DiskImage>,
    part: &DiskPart,
    damage: Damage,
) -> Result<Arc<dyn Volume>, OpenDiskError> {
    let volumes = volumes(parsing, images, &part.keys)?;
    let within = part.within.as_os_str().as_bytes();
    select(volumes, &part.which, within, &mut Readers { parsing, damage })
}

/// The readers of file systems.
struct Readers {
    parsing: Parsing,
    damage: Damage,
}

impl Opener for Readers {
    type Error = OpenDiskError;

    fn open(&mut self, volume: &DiskVolume, subvolume: Option<u64>) -> Result<Option<Arc<dyn Volume>>, OpenDiskError> {
        let is_btrfs = || volume.content().is_some_and(|content| content.format == "btrfs");
        let Some(number) = subvolume.filter(|_| is_btrfs()) else {
            return file_system(self.parsing, volume, self.damage);
        };
        let options = btrfs::ReadOptions { root: btrfs::Root::Id(number), damage: self.damage };
        let opened = btrfs::open_volume_with(self.parsing, Arc::clone(&volume.backing), &options);
        opened.map(Some).map_err(|error| OpenDiskError::Read { volume: volume.name(), error })
    }

    fn subvolumes(&mut self, volume: &DiskVolume) -> Vec<String> {
        // A volume that cannot be read has no subvolumes to be named.
        let found = btrfs::subvolumes(self.parsing, Arc::clone(&volume.backing)).unwrap_or_default();
        found.iter().map(|subvolume| String::from_utf8_lossy(&subvolume.path).into_owned()).collect()
    }
}

/// Opens the file system on a volume as an option `subvol=` or `subvolid=` has it mounted: with a subvolume of a Btrfs as its root.
/// `None` if its format cannot be read.
///
/// # Errors
/// It cannot be read, or has no such subvolume.
pub fn subvolume(
    parsing: Parsing,
    volume: &DiskVolume,
    damage: Damage,
    wanted: &Subvolume,
) -> Result<Option<Arc<dyn Volume>>, OpenDiskError> {
    let (number, path) = match wanted {
        Subvolume::Path(path) => (btrfs::TOP, &**path),
        Subvolume::Id(0) => (btrfs::TOP, ""),
        Subvolume::Id(number) => (*number, ""),
    };
    let Some(files) = Readers { parsing, damage }.open(volume, Some(number))? else { return Ok(None) };
    let mut rooted = Composite::new(files);
    let no_such = |error: NotMounted| {
        let (path, reason) = (path.escape_debug().to_string(), error.to_string());
        OpenDiskError::NotFound(NotFound::Directory { path, reason })
    };
    if !path.is_empty() {
        rooted.set_root(path.as_bytes()).map_err(no_such)?;
    }
    Ok(Some(Arc::new(rooted)))
}

/// The volumes of a disk image. Keys that were given must open one, if there is one to be opened.
pub fn volumes(parsing: Parsing, images: Vec<DiskImage>, keys: &Keys) -> Result<Vec<DiskVolume>, OpenDiskError> {
    let disk = |image: DiskImage| Ok(image.disk(parsing)?.disk);
    let disks = images.into_iter().map(disk).collect::<Result<Vec<_>, OpenDiskError>>()?;
    let volumes = inarch_disk::volumes(parsing, &disks, keys)?;
    if !keys.is_empty() && !keys.are_used() {
        let locked = |volume: &DiskVolume| Some((volume.name(), volume.locked.clone()?));
        if let Some((volume, reason)) = volumes.iter().find_map(locked) {
            return Err(OpenDiskError::Locked { volume, reason });
        }
    }
    Ok(volumes)
}

/// Runs `look` on the volumes of a disk image, in a confined thread; an image of one file system is one volume. `look`
/// also gets which of them are meant: all, or the one that is named.
///
/// # Errors
/// It is no disk image, or cannot be opened.
pub fn with_volumes<T: Send>(
    source: &Source,
    look: impl FnOnce(Parsing, &[DiskVolume], &dyn Fn(&DiskVolume) -> bool) -> T + Send,
) -> Result<T, OpenError> {
    let whole = DiskPart::default();
    let (path, part) = match source {
        Source::File { path, kind: FileKind::Volume(_), .. } => (path, &whole),
        Source::Disk { path, part } => (path, &**part),
        other => {
            let error = io::Error::other("a directory or an archive has no volumes; name a disk image");
            return Err(OpenError::path(other.path(), "cannot be looked at as a disk", error));
        }
    };
    let images = part.open(path)?;
    let looked = parse(|parsing| {
        let volumes = volumes(parsing, images, &part.keys)?;
        let meant = meant(&volumes, &part.which)?;
        let is_meant = |volume: &DiskVolume| meant.iter().any(|other| std::ptr::eq(*other, volume));
        Ok(look(parsing, &volumes, &is_meant))
    })?;
    looked.map_err(|error| OpenError::Disk { path: path.clone(), error: Box::new(error) })
}

/// The file system of a volume; `None` if there is none that can be read.
pub fn file_system(
    parsing: Parsing,
    volume: &DiskVolume,
    damage: Damage,
) -> Result<Option<Arc<dyn Volume>>, OpenDiskError> {
    let fail = |error| OpenDiskError::Read { volume: volume.name(), error };
    let found = probe(parsing, &*volume.backing).map_err(|error| fail(ReadError::Io { offset: 0, error }))?;
    let Found::Source(FileKind::Volume(reader)) = found else { return Ok(None) };
    reader.open(parsing, Arc::clone(&volume.backing), damage).map(Some).map_err(fail)
}
