//! [`JobError`]: the errors of all jobs, one line each.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_source::Source;

/// Why a job could not be done. The text is what the user reads.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// There is no such source.
    #[error(transparent)]
    Source(#[from] inarch_source::SourceError),
    /// The source cannot be opened.
    #[error(transparent)]
    Open(#[from] inarch_source::OpenError),
    /// A cache cannot be used.
    #[error(transparent)]
    Cache(Box<inarch_cache::CacheError>),
    /// Images of registries cannot be listed or removed.
    #[error(transparent)]
    Images(Box<inarch_cache::PullError>),
    /// A container image cannot be pushed.
    #[error(transparent)]
    Push(#[from] crate::push::PushError),
    /// The kept run cannot be used.
    #[error(transparent)]
    Kept(#[from] inarch_kept::KeptError),
    /// The job cannot be started, or what it leaves not be cleared away.
    #[error(transparent)]
    Lifecycle(#[from] inarch_lifecycle::LifecycleError),
    /// A disk has no room for what the guest writes.
    #[error(transparent)]
    DiskSpace(#[from] inarch_kept::disk_space::DiskSpaceError),
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
    /// User-Mode Linux cannot be used.
    #[error(transparent)]
    Uml(#[from] inarch_vm::uml::UmlError),
    /// KVM was asked for, and is not available.
    #[error(transparent)]
    NoKvm(#[from] inarch_vm::accel::NoKvm),
    /// QEMU cannot be started.
    #[error(transparent)]
    Spawn(#[from] inarch_vm::process::SpawnError),
    /// The guest's kernel lacks a driver.
    #[error(transparent)]
    Modules(#[from] inarch_vm::modules::ModuleError),
    /// There is no initramfs for the guest.
    #[error(transparent)]
    NoInitramfs(#[from] inarch_vm::initramfs::InitramfsError),
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
    /// The socket is not available.
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
    #[error(transparent)]
    Path(#[from] PathError),
    /// The caller stopped the run.
    #[error("it was stopped")]
    Stopped,
    /// The command's standard streams cannot be used.
    #[error("a standard stream cannot be used: {0}")]
    Streams(io::Error),
    /// The guest's kernel died, or the guest switched itself off.
    #[error("the guest died")]
    GuestDied,
    /// The initramfs cannot be kept in memory.
    #[error("cannot keep the initramfs in memory: {0}")]
    Initramfs(io::Error),
    /// The run cannot be started, or not go on.
    #[error(transparent)]
    Run(#[from] crate::run::RunError),
    /// The image cannot be made.
    #[error(transparent)]
    Image(#[from] crate::image::ImageError),
    /// The tree cannot be mounted.
    #[error(transparent)]
    NotMounted(#[from] crate::mount::NotMounted),
    /// The mount cannot be taken away.
    #[error(transparent)]
    NotUnmounted(#[from] crate::mount::NotUnmounted),
    /// The command was not traced.
    #[error(transparent)]
    Trace(#[from] inarch_trace::TraceError),
    /// The appliance cannot do what is asked of it.
    #[error(transparent)]
    Appliance(#[from] crate::appliance::ApplianceError),
    /// Writes over a tree cannot be kept.
    #[error(transparent)]
    Upper(#[from] inarch_upper::UpperError),
    /// The tree does not fit the format.
    #[error("{from}: {error}")]
    Format {
        /// The source.
        from: Source,
        /// What does not fit.
        error: inarch_format::FormatError,
    },
    /// The format is not one in which a tree is served.
    #[error("{from}: {format} cannot be served, only written")]
    NotServed {
        /// The source.
        from: Source,
        /// The format.
        format: &'static str,
    },
    /// A thread that planned a disk panicked, which is a defect of this program.
    #[error("{}: planning its disk failed: this is a mistake in the program", shown(path))]
    PlanPanicked {
        /// The source.
        path: PathBuf,
    },
    /// Nothing is written to a disk of this format, so nothing is kept.
    #[error("{}: nothing can be written to {format}, so there is nothing to keep", shown(overlay))]
    NothingToKeep {
        /// The overlay that was named.
        overlay: PathBuf,
        /// The format.
        format: &'static str,
    },
    /// The overlay would change the tree that it is for.
    #[error(
        "{}: the overlay lies in the tree that it is for, and would change it; put it somewhere else",
        shown(overlay)
    )]
    OverlayInTree {
        /// The overlay that was named.
        overlay: PathBuf,
    },
    /// There is nothing live about an archive or image.
    #[error(
        "{}: only a directory can be shared live; offer anything else as a disk (serve blk, run --via ext4)",
        shown(path)
    )]
    NotLive {
        /// The source.
        path: PathBuf,
    },
    /// It is no name for a virtiofs device.
    #[error("--tag {tag:?}: {error}")]
    Tag {
        /// It.
        tag: String,
        /// Why not.
        error: inarch_vhost::fs::InvalidTag,
    },
    /// The address is not available.
    #[error("{address}: cannot listen there: {error}")]
    Address {
        /// It.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The vsock port is not available.
    #[error("vsock port {port}: cannot listen there: {error}")]
    Vsock {
        /// It.
        port: u32,
        /// The system's error.
        error: io::Error,
    },
    /// The kernel knows no vsock sockets.
    #[error("this kernel has no vsock sockets (modprobe vhost_vsock); use --socket PATH or --tcp PORT")]
    NoVsock,
    /// The server cannot accept more clients.
    #[error("the listening socket failed: {0}")]
    Listening(io::Error),
}

impl JobError {
    /// A failed operation on a path.
    pub(crate) fn path(path: &Path, action: &'static str, error: impl Into<io::Error>) -> JobError {
        PathError::new(path, action, error).into()
    }
}
impl From<inarch_cache::PullError> for JobError {
    fn from(error: inarch_cache::PullError) -> JobError {
        JobError::Images(Box::new(error))
    }
}

impl From<inarch_cache::CacheError> for JobError {
    fn from(error: inarch_cache::CacheError) -> JobError {
        JobError::Cache(Box::new(error))
    }
}
