//! `mount`: a tree as files on this host, without root where fusermount3 is installed.
//!
//! 1. The kernel mounts what it can by itself: a directory as a bind mount, an archive as an EROFS, and an overlayfs over either
//!    ([`kernel`]). For everything else, and where the kernel refuses, the source becomes a file system of [`inarch_vfs`], and a session
//!    answers FUSE requests for it ([`fuse`]).
//! 2. A guard is started, which unmounts however this process ends. Then the mount is attached to its mount point.
//! 3. The starter gets a handle ([`MountHandle`]) that stops the mount. The mount also ends when somebody unmounts it.

mod archive;
mod error;
mod event;
mod fuse;
mod handle;
mod kernel;
mod remote;
mod unmount;

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use error::{NotMounted, NotUnmounted};
pub use event::{MountEvent, MountFault, OpenFiles, Users};
use handle::Duty;
pub use handle::{MountHandle, MountReport, start};
pub use inarch_fuse::Rings;
use inarch_lifecycle::confinement::Sandbox;
use inarch_lifecycle::guard::{Guard, Guarded};
use inarch_lifecycle::mounted::Mounted;
use inarch_lifecycle::{Events, LifecycleError, descriptors};
use inarch_mount::{FuseAccess, MountError};
use inarch_source::Source;
use inarch_tree::select::Owners;
pub use inarch_vfs::{Changes, RecordLevel};
pub use remote::Remote;
use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
pub use unmount::{UnmountRequest, mounted, unmount};

use archive::GuardedArchive;
use kernel::NotByKernel;

use crate::JobError;
use crate::share::{HiddenMountPoints, Measures, Refused, Submounts};
pub use inarch_lifecycle::state::{home as state_directory, mount_log, open_log};
use inarch_trace::RecordFile;
pub use inarch_trace::RecordRequest;
use inarch_upper::Upper;
pub use inarch_upper::{UpperError, UpperPlace};

/// The first word of the command line of a child process that holds a user namespace.
pub const USER_NAMESPACE_ARGUMENT: &str = "hold-a-user-namespace";

/// The main function of that child process. Returns its exit status.
pub fn hold_user_namespace(_: &[OsString]) -> u8 {
    u8::from(inarch_mount::hold_user_namespace().is_err())
}

/// Who serves a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// The kernel if it can do what is asked for, otherwise this program.
    #[default]
    Auto,
    /// The kernel; it is an error if it cannot.
    Kernel,
    /// This program, through FUSE.
    Fuse,
}

/// What to mount, and where.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// What is offered.
    pub source: Source,
    /// An empty directory, or the source itself.
    pub point: PathBuf,
    /// Who serves it.
    pub via: Via,
    /// Who may change the source while it is mounted; `None` means anybody.
    pub changes: Option<Changes>,
    /// What is shown of mounts inside the source, if that is a directory.
    pub submounts: Submounts,
    /// Where writes in the mount go.
    pub writes: MountWrites,
    /// What programs cannot leave in the source if writes change it.
    pub refused: Refused,
    /// Whether locks are taken on the source's files, where programs outside the mount see them.
    pub locks: bool,
    /// Where accesses are recorded, one line of JSON each.
    pub record: Option<RecordRequest>,
    /// Counts the requests, and the time that they take.
    pub measures: Option<Arc<Measures>>,
    /// Whether the kernel's requests arrive through io_uring.
    pub rings: Rings,
    /// How owners are mapped: those of the source's files in the mount, and those of new files in the source.
    pub owners: Owners,
    /// Show what can be read of a damaged archive or image; otherwise damage is an error.
    pub salvage: bool,
    /// Whether the server confines itself.
    pub sandbox: Sandbox,
    /// What serves the mount in place of this process, and changes the source.
    pub remote: Option<Remote>,
}

/// Where writes in a mount go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountWrites {
    /// They change the source, which must be a directory.
    Through,
    /// They fail: the mount is read-only.
    Refused,
    /// They go to an upper layer over the source.
    Over(UpperPlace),
}

impl MountWrites {
    /// The same with an absolute path.
    fn absolute(&self) -> MountWrites {
        match self {
            MountWrites::Over(UpperPlace::Kept(path)) => MountWrites::Over(UpperPlace::Kept(
                path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.clone()),
            )),
            other => other.clone(),
        }
    }
}

impl MountRequest {
    /// Mounts `source` on `point`, read-only, through the kernel if possible. Everything else has the command's defaults.
    pub fn new(source: Source, point: PathBuf) -> MountRequest {
        MountRequest {
            source,
            point,
            via: Via::Auto,
            changes: None,
            submounts: Submounts::Empty,
            writes: MountWrites::Refused,
            refused: Refused::default(),
            locks: false,
            record: None,
            measures: None,
            rings: Rings::Auto,
            owners: Owners::default(),
            salvage: false,
            sandbox: Sandbox::Auto,
            remote: None,
        }
    }

    /// The request with what follows from it: nobody changes an archive or image, and `--changes none` refuses writes to the source.
    fn effective(&self) -> MountRequest {
        if self.remote.is_some() {
            return MountRequest { changes: Some(Changes::Guest), ..self.clone() };
        }
        let is_directory = matches!(self.source, Source::Directory(_));
        let changes = if is_directory { self.changes } else { Some(Changes::None) };
        let refused = self.writes == MountWrites::Through && changes == Some(Changes::None);
        let writes = if refused { MountWrites::Refused } else { self.writes.clone() };
        MountRequest { changes, writes, ..self.clone() }
    }

    /// Who may change the source.
    fn changes(&self) -> Changes {
        self.changes.unwrap_or(Changes::Host)
    }

    /// What the mount lets its users do. Whoever can read an image, or an archive, reads everything in it. Users whom root's mount lets in
    /// may not have been able to.
    fn access(&self) -> FuseAccess {
        let is_directory = matches!(self.source, Source::Directory(_));
        match self.writes {
            MountWrites::Refused if is_directory || geteuid().is_root() => FuseAccess::Read,
            MountWrites::Refused => FuseAccess::ReadAll,
            MountWrites::Through | MountWrites::Over(_) => FuseAccess::Change,
        }
    }

    /// Whether each access is recorded together with its process.
    fn records_processes(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.level == RecordLevel::Process)
    }

    /// Checks what can be checked before anything is opened. Returns the mount point, an absolute path without symbolic links.
    ///
    /// # Errors
    /// The mount point, the place of the upper layer, or a combination of options cannot be used.
    pub fn check(&self) -> Result<PathBuf, JobError> {
        let point = self.point.canonicalize();
        let point = point.map_err(|error| JobError::path(&self.point, "cannot be a mount point", error))?;
        check_point(&self.source, &point)?;
        if let (Source::Directory(tree), MountWrites::Over(place)) = (&self.source, &self.writes) {
            place.check_apart_from(tree)?;
        }
        fuse::check_rings(self.rings)?;
        check_locks(self)?;
        Ok(point)
    }
}

/// Who serves a mount that is about to be made.
enum Prepared {
    Kernel(kernel::Prepared),
    /// With the reason why the kernel does not serve it, unless FUSE was asked for.
    Fuse(fuse::Prepared, Option<String>),
    /// By FUSE, with a server elsewhere.
    Remote(Remote),
}

impl Prepared {
    fn new(request: &MountRequest, events: &Events<MountEvent>) -> Result<Prepared, JobError> {
        if let Some(remote) = &request.remote {
            return Ok(Prepared::Remote(remote.clone()));
        }
        let mut opened = None;
        let reason = match request.via {
            Via::Fuse => None,
            via => match kernel::prepare(request, &mut opened) {
                Ok(prepared) => return Ok(Prepared::Kernel(prepared)),
                Err(NotByKernel::Failed(error)) => return Err(error),
                Err(NotByKernel::Because(reason)) if via == Via::Kernel => {
                    return Err(NotMounted::NotByKernel { reason }.into());
                }
                Err(NotByKernel::Because(reason)) => Some(reason),
            },
        };
        fuse::prepare(request, opened, events).map(|prepared| Prepared::Fuse(prepared, reason))
    }

    /// Lines about the source that the user should read.
    fn notes(&self) -> &[String] {
        match self {
            Prepared::Kernel(prepared) => &prepared.notes,
            Prepared::Fuse(prepared, _) => &prepared.notes,
            Prepared::Remote(_) => &[],
        }
    }
}

/// Mounts, and serves until it is stopped or until somebody unmounts it.
fn serve(request: &MountRequest, duty: &Duty) -> Result<(), JobError> {
    let point = request.check()?;
    descriptors::raise_limit();
    let request = &request.effective();
    let source = request.source.path();
    // Readers of the mount table and of the log are in other directories.
    let source = source.canonicalize().unwrap_or_else(|_| source.to_owned());
    let place = open_point(&point)?;
    let prepared = Prepared::new(request, &duty.events)?;
    prepared.notes().iter().for_each(|note| duty.events.emit(MountEvent::Source(note.clone())));
    let hidden = HiddenMountPoints::of(&source, request.submounts);
    let writes = request.writes.absolute();
    duty.events.emit(MountEvent::Mounting);
    let (serving, because) = match prepared {
        Prepared::Kernel(prepared) => {
            let device = prepared.archive.as_ref().map(archive::Archive::device).transpose()?;
            // First, so that there is no moment at which the mount has no guard.
            let guard = Guard::of_mount(&point, &prepared.detached.id(), prepared.kind, device.as_ref())?;
            let (mount, watch) = prepared.detached.attach(place.as_fd(), &point)?;
            drop(place);
            let mounted = Mounted::served(mount, &duty.stop, move || watch.wait());
            let archive = prepared.archive.map(|archive| archive.guarded(&duty.events, &duty.stop));
            let (confined, record, upper, by) = (String::new(), None, prepared.upper, By::Kernel);
            (Serving { mounted, guard, confined, record, upper, archive, by }, None)
        }
        Prepared::Fuse(prepared, because) => {
            drop(place);
            (prepared.serve(request, (&point, &source), duty)?, because)
        }
        Prepared::Remote(remote) => {
            drop(place);
            let (mount, device, guard) = Guard::of_fuse(&point, &source, request.access(), Guarded::Mount)?;
            let mounted = Mounted::served(mount, &duty.stop, move || remote.serve(device));
            let (confined, by) = (String::new(), By::Remote);
            (Serving { mounted, guard, confined, record: None, upper: None, archive: None, by }, None)
        }
    };
    let confined = serving.confined.clone();
    duty.is_ready(MountReport {
        point: point.clone(),
        by: serving.by,
        because,
        request: request.clone(),
        source,
        writes,
        confined,
        hidden,
    });
    duty.stop.wait().map_err(LifecycleError::Wait)?;
    let record = serving.end(request, &point, duty)?;
    record.map_or(Ok(()), |record| Ok(record.finish()?))
}

/// Who serves a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The kernel by itself.
    Kernel,
    /// This process, through FUSE.
    Fuse,
    /// A server elsewhere, such as a guest, through FUSE and this process.
    Remote,
}

/// A mount that is there.
struct Serving {
    mounted: Mounted,
    guard: Guard,
    by: By,
    /// The line that says how the server is confined.
    confined: String,
    record: Option<RecordFile>,
    /// Dropped when nobody writes any more.
    upper: Option<Upper>,
    /// The archive that the kernel reads, until it changes.
    archive: Option<GuardedArchive>,
}

impl Serving {
    /// Unmounts it, and waits for its end.
    fn end(mut self, request: &MountRequest, point: &Path, duty: &Duty) -> Result<Option<RecordFile>, JobError> {
        // Another mount may use the same directory for writes only when this one writes no more.
        let waits = self.by == By::Kernel && matches!(request.writes, MountWrites::Over(UpperPlace::Kept(_)));
        // What programs still write must reach the disk.
        let waits = waits || self.by == By::Remote;
        let open_files = match self.by {
            By::Fuse | By::Remote => OpenFiles::Fail,
            By::Kernel if waits => OpenFiles::WaitedFor,
            By::Kernel if self.archive.is_some() => OpenFiles::FailWhereUnread,
            By::Kernel => OpenFiles::GoOn,
        };
        let in_use = || {
            duty.events.emit(MountEvent::WasInUse { point: point.to_owned(), open_files });
            waits
        };
        self.mounted.end(&mut self.guard, point, in_use)?;
        drop(self.upper);
        drop(self.archive);
        Ok(self.record)
    }
}

/// Opens the mount point, so that its path is resolved only once.
fn open_point(point: &Path) -> Result<OwnedFd, JobError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(point, flags, Mode::empty());
    opened.map_err(|errno| JobError::path(point, "cannot be a mount point", errno))
}

/// Refuses a mount point that is not a directory, `/`, and one inside the tree: the server would wait for itself there.
fn check_point(source: &Source, point: &Path) -> Result<(), JobError> {
    let refuse = |reason: &str| Err(MountError::Point { path: point.to_owned(), reason: reason.to_owned() }.into());
    if !point.is_dir() {
        return refuse("it is no directory, and a tree is mounted on a directory; make one with mkdir");
    }
    if point == Path::new("/") {
        return refuse("it would hide every file of this machine; name a directory below");
    }
    let Source::Directory(directory) = source else { return Ok(()) };
    let Ok(directory) = directory.canonicalize() else { return Ok(()) };
    if point != directory && point.starts_with(&directory) {
        return refuse("it lies in the tree that it is to show; name a place outside");
    }
    Ok(())
}

/// Refuses `--locks host` where the host has no files to lock, or where no thread can wait for a lock.
fn check_locks(request: &MountRequest) -> Result<(), NotMounted> {
    let refuse = |reason| Err(NotMounted::Locks { reason });
    match request {
        MountRequest { locks: false, .. } => Ok(()),
        MountRequest { source: Source::Directory(_), writes: MountWrites::Through, changes, rings, .. } => {
            match (changes, rings) {
                (Some(Changes::None), _) => refuse("locks what is changed, and --changes none says that nothing is"),
                (_, Rings::Required) => refuse("takes requests that can wait; leave out --io-uring on"),
                _ => Ok(()),
            }
        }
        _ => refuse("locks the files of a directory that is written to: not an archive or image, not with an overlay"),
    }
}
