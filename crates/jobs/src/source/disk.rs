//! A disk image, or a volume in one, as a source.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_disk::guest::{NotFound, Which, exists, select};
use inarch_disk::{DiskError, DiskVolume};
use inarch_format::probe::{FileKind, Found, container, probe};
use inarch_format::{Damage, ReadError};
use inarch_volume::Volume;

use super::{ContainerError, DiskImage, DiskPart, ImageFormat, OpenError, OpenedDisk, Source, parse};

/// Why a disk's file system cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenDiskError {
    /// The disk cannot be read, or its partition table is damaged.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// It is in a container that cannot be opened, or names files that the user did not name.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// There is no such file system.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// The file system cannot be read.
    #[error("{volume}: {error}")]
    Read {
        /// The volume.
        volume: String,
        /// What is wrong with it.
        error: ReadError,
    },
}

/// Splits `IMAGE:VOLUME`, `IMAGE:/PATH` or `IMAGE:VOLUME:/PATH`, if there is such an image. The image is the longest beginning that exists.
pub(crate) fn split(text: &OsStr) -> Option<(PathBuf, DiskPart)> {
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
fn parts(text: &[u8]) -> (Which, PathBuf) {
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
    let image = DiskImage::open(path, &[])?;
    parse(|parsing| {
        let Ok(OpenedDisk { disk, format, .. }) = image.disk(parsing, None) else {
            // What is wrong with a container is said when it is opened, and so below.
            return true;
        };
        if format == ImageFormat::Raw && matches!(container(parsing, &*disk), Ok(Some(_))) {
            return false;
        }
        let has_parts = || -> Result<bool, DiskError> {
            let found = inarch_disk::examine(parsing, &disk)?;
            let is_part_of_more = || Ok(!inarch_disk::above(parsing, &found.pieces(&disk, ""))?.list.is_empty());
            if found.table.is_some() { Ok(true) } else { is_part_of_more() }
        };
        // What is wrong with a damaged one is said when it is opened.
        format != ImageFormat::Raw || has_parts().unwrap_or(true)
    })
}

/// Opens the file system on a disk that `which` means; its root is the directory `within`, unless that is empty.
pub(super) fn open(
    parsing: Parsing,
    image: DiskImage,
    (which, within): (&Which, &Path),
    damage: Damage,
) -> Result<Arc<dyn Volume>, OpenDiskError> {
    let OpenedDisk { disk, .. } = image.disk(parsing, None)?;
    let volumes = inarch_disk::volumes(parsing, 0, &disk)?;
    select(volumes, which, within.as_os_str().as_bytes(), &mut |volume| file_system(parsing, volume, damage))
}

/// Has a confined thread look at the volumes of a disk image; an image of one file system is one volume. `look` is told which of them are meant: all, or the
/// one that is named.
///
/// # Errors
/// It is no disk image, or cannot be opened.
pub(crate) fn with_volumes<T: Send>(
    source: &Source,
    look: impl FnOnce(Parsing, &[DiskVolume], &dyn Fn(&DiskVolume) -> bool) -> T + Send,
) -> Result<T, OpenError> {
    let (path, which, with) = match source {
        Source::File { path, kind: FileKind::Volume(_) } => (path, &Which::Auto, &Vec::new()),
        Source::Disk { path, part } => (path, &part.which, &part.with),
        other => {
            let error = io::Error::other("a directory or an archive has no volumes; name a disk image");
            return Err(OpenError::path(other.path(), "cannot be looked at as a disk", error));
        }
    };
    let image = DiskImage::open(path, with)?;
    let looked = parse(|parsing| {
        let OpenedDisk { disk, .. } = image.disk(parsing, None)?;
        let volumes = inarch_disk::volumes(parsing, 0, &disk)?;
        let name = |volume: &DiskVolume| match which {
            Which::Auto => true,
            Which::Named(name) => volume.answers_to(name),
        };
        exists(&volumes, which)?;
        Ok(look(parsing, &volumes, &name))
    })?;
    looked.map_err(|error| OpenError::Disk { path: path.clone(), error: Box::new(error) })
}

/// The file system of a volume; `None` if there is none that can be read.
pub(crate) fn file_system(
    parsing: Parsing,
    volume: &DiskVolume,
    damage: Damage,
) -> Result<Option<Arc<dyn Volume>>, OpenDiskError> {
    let fail = |error| OpenDiskError::Read { volume: volume.name(), error };
    let found = probe(parsing, &*volume.backing).map_err(|error| fail(ReadError::Io { offset: 0, error }))?;
    let Found::Source(FileKind::Volume(reader)) = found else { return Ok(None) };
    reader.open(parsing, Arc::clone(&volume.backing), damage).map(Some).map_err(fail)
}
