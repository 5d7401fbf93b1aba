//! `inarch disk`: looks at disk images. Nothing is written to them.

use std::path::{Path, PathBuf};

use inarch_confine::Parsing;
pub use inarch_disk::{Above, Disk, DiskError, Part, Signature, Table, TableKind, Volumes};
use inarch_format::probe::{Found, container, probe};

use crate::path_error::PathError;
use crate::source::{ContainerError, DiskImage, ImageFormat, OpenedDisk, parse};
use crate::text::shown;

/// Why a disk image cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    /// The file cannot be opened, or is none that can be a disk.
    #[error(transparent)]
    Path(#[from] PathError),
    /// It cannot be read, or is damaged.
    #[error("{}: {error}", shown(path))]
    Disk {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: DiskError,
    },
    /// It is in a container that cannot be opened, or names files that the user did not name.
    #[error("{}: {error}", shown(path))]
    Container {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: ContainerError,
    },
    /// It is an image in a container of a known kind, which is not read here.
    #[error("{}: {found}", shown(path))]
    NotRead {
        /// The image.
        path: PathBuf,
        /// What it is, and what to do.
        found: String,
    },
    /// The volumes on the images cannot be read.
    #[error(transparent)]
    Volumes(DiskError),
    /// No thread could be confined to read it.
    #[error(transparent)]
    Thread(#[from] crate::source::OpenError),
}

/// What to look at.
#[derive(Clone, Debug)]
pub struct ExamineRequest {
    /// The images.
    pub images: Vec<PathBuf>,
    /// Their format; found out by their first bytes if it is not given.
    pub format: Option<ImageFormat>,
    /// Files that they may name: backing files, data files, extents. They get no others.
    pub with: Vec<PathBuf>,
}

/// What is on some images.
pub struct Examined {
    /// The images, in the order of the paths.
    pub disks: Vec<ExaminedDisk>,
    /// The volumes on all of them together.
    pub volumes: Volumes,
}

/// What is on one image.
#[derive(Clone, Debug)]
pub struct ExaminedDisk {
    /// How the disk lies in the image.
    pub format: ImageFormat,
    /// What is on it.
    pub disk: Disk,
}

/// Looks at the partition tables of disk images, at what each partition holds, and at the volumes that lie on them: one
/// may lie on several images. A thread that can do nothing else parses them.
///
/// # Errors
/// See [`ExamineError`].
pub fn examine(request: &ExamineRequest) -> Result<Examined, ExamineError> {
    let open = |path: &PathBuf| Ok((path.clone(), DiskImage::open(path, &request.with)?));
    let images = request.images.iter().map(open).collect::<Result<Vec<_>, PathError>>()?;
    parse(|parsing| {
        let (mut disks, mut pieces) = (Vec::new(), Vec::new());
        let mut unused = request.with.clone();
        for (path, image) in images {
            let opened = image.disk(parsing, request.format);
            let opened = opened.map_err(|error| ExamineError::Container { path: path.clone(), error })?;
            unused.retain(|path| opened.unused.contains(path));
            let disk = examine_one(parsing, &path, &opened, request.format.is_none())?;
            pieces.extend(disk.pieces(&opened.disk, &shown(&path)));
            disks.push(ExaminedDisk { format: opened.format, disk });
        }
        let mut volumes = inarch_disk::above(parsing, &pieces).map_err(ExamineError::Volumes)?;
        let unused =
            unused.iter().map(|path| format!("no image asks for {}, which was given with --with", shown(path)));
        volumes.notes.extend(unused);
        Ok(Examined { disks, volumes })
    })?
}

pub(crate) fn examine_one(
    parsing: Parsing,
    path: &Path,
    opened: &OpenedDisk,
    is_guessed: bool,
) -> Result<Disk, ExamineError> {
    let fail = |error| ExamineError::Disk { path: path.to_owned(), error };
    let is_guessed = is_guessed && opened.format == ImageFormat::Raw;
    // The table of a disk in a container of another kind may lie where a raw disk has one.
    if is_guessed && let Ok(Some(found)) = container(parsing, &*opened.disk) {
        return Err(ExamineError::NotRead { path: path.to_owned(), found });
    }
    let disk = inarch_disk::examine(parsing, &opened.disk).map_err(fail)?;
    if disk.table.is_none()
        && disk.content.is_none()
        && is_guessed
        && let Ok(Found::Other(found)) = probe(parsing, &*opened.disk)
    {
        return Err(ExamineError::NotRead { path: path.to_owned(), found });
    }
    Ok(disk)
}
