//! `inarch disk`: looks at disk images. Nothing is written to them.

use std::path::PathBuf;

pub use inarch_disk::{Disk, DiskError, Part, Signature, Table, TableKind};
use inarch_format::probe::{Found, probe};

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
    /// No thread could be confined to read it.
    #[error(transparent)]
    Thread(#[from] crate::source::OpenError),
}

/// What to look at.
#[derive(Clone, Debug)]
pub struct ExamineRequest {
    /// The image.
    pub image: PathBuf,
    /// Its format; found out by its first bytes if it is not given.
    pub format: Option<ImageFormat>,
    /// Files that it may name: its backing file, its data file, its extents. It gets no others.
    pub with: Vec<PathBuf>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Examined {
    /// How the disk lies in the image.
    pub format: ImageFormat,
    /// What is on it.
    pub disk: Disk,
}

/// Looks at the partition table of a disk image, and at what each partition holds. A thread that can do nothing else parses it.
///
/// # Errors
/// See [`ExamineError`].
pub fn examine(request: &ExamineRequest) -> Result<Examined, ExamineError> {
    let path = || request.image.clone();
    let image = DiskImage::open(&request.image, &request.with)?;
    parse(|parsing| {
        let opened = image.disk(parsing, request.format);
        let OpenedDisk { disk: image, format, unused } =
            opened.map_err(|error| ExamineError::Container { path: path(), error })?;
        let disk = inarch_disk::examine(parsing, &image);
        let mut disk = disk.map_err(|error| ExamineError::Disk { path: path(), error })?;
        // A container of another kind has neither a table nor a file system at its start.
        let is_empty = disk.table.is_none() && disk.content.is_none();
        if is_empty
            && format == ImageFormat::Raw
            && request.format.is_none()
            && let Ok(Found::Other(found)) = probe(parsing, &*image)
        {
            return Err(ExamineError::NotRead { path: path(), found });
        }
        let unused = unused.iter().map(|path| format!("it does not ask for {}, which was given with it", shown(path)));
        disk.notes.extend(unused);
        Ok(Examined { format, disk })
    })?
}
