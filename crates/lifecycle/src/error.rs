//! Errors of starting, stopping and cleaning up jobs.

use std::io;
use std::path::PathBuf;

use crate::path_error::PathError;
use crate::text::shown;

/// Why a job could not be started, stopped or cleared away, whatever it does.
#[derive(Debug, thiserror::Error)]
pub enum LifecycleError {
    /// An operation on a path failed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A mount could not be made.
    #[error(transparent)]
    Mount(#[from] inarch_mount::MountError),
    /// The system did not give what the job takes to start.
    #[error("cannot make {what}: {error}")]
    Setup {
        /// What was asked for.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The job could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The caller stopped the job.
    #[error("it was stopped")]
    Stopped,
    /// The end of a job could not be waited for.
    #[error("cannot wait for the end: {0}")]
    Wait(io::Error),
    /// A thread of the job panicked, which is a defect of this program.
    #[error("a thread of the job panicked; that is a defect of inarch")]
    Panicked,
    /// The process that takes a mount away could not.
    #[error("{reason}")]
    StillMounted {
        /// The guard's message: the mount point, and why it stays.
        reason: String,
    },
    /// The requests for a mount cannot be answered any more.
    #[error("{}: {reason}", shown(point))]
    Mounted {
        /// The mount point.
        point: PathBuf,
        /// What failed.
        reason: String,
    },
}
