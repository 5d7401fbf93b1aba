//! `inarch disk`: looks at disk images. Nothing is written to them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::{Backing, BackingFile};
pub use inarch_disk::{Disk, DiskError, Part, Signature, Table, TableKind};
use inarch_format::probe::{Found, probe};

use crate::path_error::PathError;
use crate::source::parse;
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
    /// It is an image in a container of a known kind, whose content is not at its place.
    #[error("{}: {found}", shown(path))]
    Container {
        /// The image.
        path: PathBuf,
        /// What it is, and what to do.
        found: String,
    },
    /// No thread could be confined to read it.
    #[error(transparent)]
    Thread(#[from] crate::source::OpenError),
}

/// Looks at the partition table of a raw disk image, and at what each partition holds. A thread that can do nothing else parses it.
///
/// # Errors
/// See [`ExamineError`].
pub fn examine(path: &Path) -> Result<Disk, ExamineError> {
    let image = open(path)?;
    let found = parse(|parsing| {
        let disk = inarch_disk::examine(parsing, &image)?;
        // A container has neither a table nor a file system at its start.
        let is_empty = disk.table.is_none() && disk.content.is_none();
        let other = if is_empty { probe(parsing, &*image).ok() } else { None };
        Ok((disk, other))
    })?;
    match found.map_err(|error| ExamineError::Disk { path: path.to_owned(), error })? {
        (_, Some(Found::Other(found))) => Err(ExamineError::Container { path: path.to_owned(), found }),
        (disk, _) => Ok(disk),
    }
}

fn open(path: &Path) -> Result<Arc<dyn Backing>, ExamineError> {
    let fail = |error| PathError::new(path, "cannot open it", error);
    let file = File::open(path).map_err(fail)?;
    let kind = file.metadata().map_err(fail)?.file_type();
    let what = if kind.is_dir() {
        "a directory, not a disk image"
    } else if !kind.is_file() && !kind.is_block_device() {
        "neither a regular file nor a block device, so no disk"
    } else {
        return Ok(Arc::new(BackingFile::new(file, path.to_owned()).map_err(fail)?));
    };
    Err(PathError::new(path, "cannot be looked at", io::Error::other(what)).into())
}
