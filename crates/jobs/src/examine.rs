//! `inarch disk`: looks at disk images. Nothing is written to them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::{Backing, BackingFile};
pub use inarch_disk::{Above, Disk, DiskError, Part, Signature, Table, TableKind, Volumes};
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
    /// The volumes on the images cannot be read.
    #[error(transparent)]
    Volumes(DiskError),
    /// No thread could be confined to read it.
    #[error(transparent)]
    Thread(#[from] crate::source::OpenError),
}

/// What is on some images.
pub struct Examined {
    /// The images, in the order of the paths.
    pub disks: Vec<Disk>,
    /// The volumes on all of them together.
    pub volumes: Volumes,
}

/// Looks at the partition tables of raw disk images, at what each partition holds, and at the volumes that lie on them: one
/// may lie on several images. A thread that can do nothing else parses them.
///
/// # Errors
/// See [`ExamineError`].
pub fn examine(paths: &[PathBuf]) -> Result<Examined, ExamineError> {
    let images = paths.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    parse(|parsing| {
        let (mut disks, mut pieces) = (Vec::new(), Vec::new());
        for (path, image) in paths.iter().zip(&images) {
            let fail = |error| ExamineError::Disk { path: path.clone(), error };
            let disk = inarch_disk::examine(parsing, image).map_err(fail)?;
            // A container has neither a table nor a file system at its start.
            let is_empty = disk.table.is_none() && disk.content.is_none();
            if is_empty && let Ok(Found::Other(found)) = probe(parsing, &**image) {
                return Err(ExamineError::Container { path: path.clone(), found });
            }
            pieces.extend(disk.pieces(image, &shown(path)));
            disks.push(disk);
        }
        let volumes = inarch_disk::above(parsing, &pieces).map_err(ExamineError::Volumes)?;
        Ok(Examined { disks, volumes })
    })?
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
