//! Why a job could not be done: one clear line each.

use std::io;
use std::path::{Path, PathBuf};

use crate::text::shown;

/// Why a job could not be done. The text is what the user reads.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// There is no such source.
    #[error(transparent)]
    Source(#[from] crate::source::SourceError),
    /// The source cannot be scanned.
    #[error(transparent)]
    Scan(#[from] inarch_tree::scan::ScanError),
    /// The source is an archive or image that cannot be read.
    #[error("{}: {error}", shown(path))]
    Read {
        /// The source.
        path: PathBuf,
        /// What is wrong with it.
        error: inarch_format::ReadError,
    },
    /// The tree does not fit the format.
    #[error("{}: {error}", shown(source_path))]
    Plan {
        /// The source.
        source_path: PathBuf,
        /// What does not fit.
        error: inarch_format::ext4::PlanError,
    },
    /// The overlay cannot be made or opened.
    #[error(transparent)]
    Overlay(#[from] inarch_block::OverlayError),
    /// There is no kernel to boot.
    #[error(transparent)]
    Kernel(#[from] inarch_vm::kernel::KernelError),
    /// There is no QEMU to boot it with.
    #[error(transparent)]
    Qemu(#[from] inarch_vm::qemu::QemuError),
    /// KVM was asked for and is not to be had.
    #[error(transparent)]
    NoKvm(#[from] inarch_vm::accel::NoKvm),
    /// QEMU cannot be started.
    #[error(transparent)]
    Spawn(#[from] inarch_vm::process::SpawnError),
    /// The guest's kernel lacks a driver.
    #[error(transparent)]
    Modules(#[from] inarch_vm::modules::ModuleError),
    /// The session with the guest's agent failed.
    #[error(transparent)]
    Session(#[from] inarch_vm::session::SessionError),
    /// The command could not be started in the guest.
    #[error("{message}")]
    Command {
        /// The status that a shell would give: 127 not found, 126 cannot be run, 125 anything else.
        status: u8,
        /// Why not.
        message: String,
    },
    /// The guest failed.
    #[error(transparent)]
    Guest(#[from] inarch_vm::process::GuestFailure),
    /// The socket cannot be had.
    #[error("{}: {reason}", shown(path))]
    Socket {
        /// Its path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Nothing can be mounted there.
    #[error(transparent)]
    Mount(#[from] inarch_mount::MountError),
    /// An operation on a path failed.
    #[error("{}: {action}: {error}", shown(path))]
    Path {
        /// The path.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// Who started the job stopped it.
    #[error("it was stopped")]
    Stopped,
    /// The system did not give what the job takes to start.
    #[error("cannot make {what}: {error}")]
    Setup {
        /// What was asked for.
        what: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// The job could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The command's standard streams cannot be used.
    #[error("a standard stream cannot be used: {0}")]
    Streams(io::Error),
    /// A thread of the job panicked, which is a defect of this program.
    #[error("a thread of the job panicked; that is a defect of inarch")]
    Panicked,
    /// The guest's kernel died, or the guest switched itself off.
    #[error("the guest died")]
    GuestDied,
    /// Something else that the user can act on.
    #[error("{0}")]
    Other(String),
}

impl JobError {
    /// A failed operation on a path.
    pub(crate) fn path(path: &Path, action: &'static str, error: impl Into<io::Error>) -> JobError {
        JobError::Path { path: path.to_owned(), action, error: error.into() }
    }
}
