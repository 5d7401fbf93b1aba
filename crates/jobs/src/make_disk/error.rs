//! Errors of making disks.

use std::path::PathBuf;

use inarch_disk::DiskError;
use inarch_disk::table::TableError;
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;

/// Why a disk cannot be made, partitioned or formatted.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// An operation on a path failed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// There is a file of this name.
    #[error("{}: exists already; --force replaces it", shown(.0))]
    Exists(PathBuf),
    /// A disk consists of whole sectors, and of one at least.
    #[error("a disk of {0} bytes: it has whole sectors of 512 bytes, and at least one")]
    Sectors(u64),
    /// Neither kind of image can be so large there.
    #[error("{}: {reason}", shown(path))]
    TooLarge {
        /// The image.
        path: PathBuf,
        /// What the limits are, and what to do.
        reason: String,
    },
    /// It is no raw disk image.
    #[error("{}: {what}", shown(path))]
    NotRaw {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        what: String,
    },
    /// It is a qcow2 image that cannot be written to.
    #[error(transparent)]
    Qcow2(#[from] crate::run::AttachError),
    /// It is a qcow2 image that lies on another file, or has its data in one.
    #[error("{}: it names another file, and is not written to here; 'qemu-img convert -f qcow2 -O qcow2' makes an image of it that names none", shown(.0))]
    NamesFiles(PathBuf),
    /// The image cannot be read, or its table is damaged.
    #[error("{}: {error}", shown(path))]
    Disk {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: DiskError,
    },
    /// Something is there already.
    #[error("{}: {place} holds {what}; --force overwrites it", shown(path))]
    Holds {
        /// The image.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// What is there.
        what: String,
    },
    /// There cannot be such a partition table.
    #[error("{}: {error}", shown(path))]
    Table {
        /// The image.
        path: PathBuf,
        /// Why not.
        error: TableError,
    },
    /// The image has partitions, and none or another one was named.
    #[error("{}: {what}", shown(path))]
    Partition {
        /// The image.
        path: PathBuf,
        /// What to name.
        what: String,
    },
    /// The host lacks a tool.
    #[error("{tool} is missing, which makes {format}; {remedy}")]
    Missing {
        /// The program.
        tool: &'static str,
        /// The file system.
        format: &'static str,
        /// How to get it.
        remedy: String,
    },
    /// The option does not exist for this file system.
    #[error("{format} {reason}")]
    Unfit {
        /// The file system.
        format: &'static str,
        /// What it cannot.
        reason: String,
    },
    /// The tool failed. The image is as it was.
    #[error("{tool}: {reason}; the image is as it was")]
    Tool {
        /// The program.
        tool: &'static str,
        /// What it said.
        reason: String,
    },
    /// The new file system could not be brought to its place.
    #[error("{}: {error}; {place} {state}", shown(path))]
    Moving {
        /// The image.
        path: PathBuf,
        /// Where in it.
        place: String,
        /// The system's error.
        error: std::io::Error,
        /// What became of what was there.
        state: &'static str,
    },
    /// No thread could be confined to read the image.
    #[error(transparent)]
    Thread(#[from] inarch_source::OpenError),
    /// The tree cannot be written as a file system.
    #[error(transparent)]
    Image(#[from] Box<crate::JobError>),
}
