//! Why a source cannot be opened.

use std::io;
use std::path::{Path, PathBuf};

use inarch_cache::{CacheError, PullError};
use inarch_disk::DiskError;
use inarch_disk::container::ContainerError;
use inarch_disk::guest::NotFound;
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_tree::BuildError;

use super::Source;

/// Why a source cannot be opened, or the selection not be applied.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An operation on a path failed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The directory cannot be scanned.
    #[error(transparent)]
    Scan(#[from] inarch_tree::scan::ScanError),
    /// The archive or image cannot be read.
    #[error("{}: {error}", shown(path))]
    Read {
        /// The source.
        path: PathBuf,
        /// What is wrong with it.
        error: inarch_format::ReadError,
    },
    /// The copy of an image that is kept here was damaged.
    #[error("{}: {error}; what is damaged was removed: the same command fetches it again", shown(path))]
    Damaged {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        error: inarch_format::ReadError,
    },
    /// The disk has no such file system, or it cannot be read.
    #[error("{}: {error}", shown(path))]
    Disk {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: Box<OpenDiskError>,
    },
    /// The archive has no such directory.
    #[error("{}: {}: {what}", shown(path), shown(within))]
    NoDirectory {
        /// The archive.
        path: PathBuf,
        /// The directory.
        within: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// No tree can be made of the selection.
    #[error("{from}: {error}")]
    Select {
        /// The source.
        from: Source,
        /// Why not.
        error: BuildError,
    },
    /// It is a cache that cannot be used.
    #[error(transparent)]
    Cache(Box<CacheError>),
    /// It is an image of a registry that cannot be pulled.
    #[error(transparent)]
    Registry(Box<PullError>),
    /// The thread that parses it cannot be started.
    #[error("no thread can be started to read the source: {0}")]
    NoThread(io::Error),
    /// An empty tree cannot be made.
    #[error("an empty tree: {0}")]
    Empty(BuildError),
    /// The directories for mount points cannot be added to the tree.
    #[error("directories for mount points: {0}")]
    MountPoints(BuildError),
}

impl OpenError {
    /// A failed operation on a path.
    pub(super) fn path(path: &Path, action: &'static str, error: impl Into<io::Error>) -> OpenError {
        PathError::new(path, action, error).into()
    }
}

/// Why a disk's file system cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenDiskError {
    /// The disk cannot be read, or its partition table is damaged.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// It is in a container that cannot be opened, or names files that the user did not name.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// No key opens what is encrypted.
    #[error("its volume {volume} cannot be read: {reason}")]
    Locked {
        /// The first volume that is not opened.
        volume: String,
        /// Why not.
        reason: String,
    },
    /// There is no such file system.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// The file system cannot be read.
    #[error("{volume}: {error}")]
    Read {
        /// The volume.
        volume: String,
        /// What is wrong with it.
        error: inarch_format::ReadError,
    },
}
