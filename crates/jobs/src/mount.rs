//! `mount`: a tree as files on this host, without root where fusermount3 is installed.
//!
//! 1. What the kernel can mount by itself it does: a directory as a bind mount, what is written over it by overlayfs ([`kernel`]).
//!    For all else, and where the kernel refuses, the source becomes a layer of [`inarch_vfs`], and a session answers the requests of FUSE
//!    for it ([`fuse`]): a directory of this host, live, or the tree of an archive or image, with an upper layer over what is not
//!    to change.
//! 2. A guard is started, which takes the mount away however this process ends, and it is mounted.
//! 3. Its starter has a handle ([`MountHandle`]), by which it is stopped. It ends, too, when somebody unmounts it.

mod archive;
mod error;
mod fuse;
mod handle;
mod kernel;
mod unmount;

use std::ffi::OsString;
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

pub use error::{NotMounted, NotUnmounted};
use handle::Duty;
pub use handle::{MountEvent, MountHandle, MountReport, start};
pub use inarch_fuse::Rings;
use inarch_mount::MountError;
use inarch_tree::select::Owners;
pub use inarch_vfs::{Changes, RecordLevel};
use rustix::fs::{Mode, OFlags, open};
pub use unmount::{UnmountRequest, unmount};

use archive::GuardedArchive;
use kernel::NotByKernel;

use crate::JobError;
use crate::events::Events;
use crate::lifecycle::LifecycleError;
use crate::lifecycle::confinement::Sandbox;
use crate::lifecycle::descriptors;
use crate::lifecycle::guard::Guard;
use crate::lifecycle::mounted::Mounted;
pub use crate::lifecycle::state::{home as state_directory, mount_log, open_log};
use crate::record::RecordFile;
pub use crate::record::RecordRequest;
use crate::share::{Refused, Submounts, left_out, note_on_mount_points};
use crate::source::Source;
use crate::text::shown;
use crate::upper::Upper;
pub use crate::upper::{UpperError, UpperPlace};

/// The first word of the command line of the child that makes a user namespace.
pub const USER_NAMESPACE_ARGUMENT: &str = "hold-a-user-namespace";

/// That child's whole life. Gives its exit status.
pub fn hold_user_namespace(_: &[OsString]) -> u8 {
    u8::from(inarch_mount::hold_user_namespace().is_err())
}

/// Who serves a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// The kernel where it can do what is asked for, this program where not.
    #[default]
    Auto,
    /// The kernel, or nobody.
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
    /// Who may change the source while it is mounted; where it is not said, anybody.
    pub changes: Option<Changes>,
    /// What becomes of what is mounted beneath the source, if that is a directory.
    pub submounts: Submounts,
    /// What becomes of what is written in the mount.
    pub writes: MountWrites,
    /// What cannot be left in the source where writes change it.
    pub refused: Refused,
    /// Whether locks are taken on the source's files, where programs outside the mount see them.
    pub locks: bool,
    /// Where accesses are written down, a line of JSON each.
    pub record: Option<RecordRequest>,
    /// Whether the kernel's requests come by io_uring.
    pub rings: Rings,
    /// Whose files are seen in the mount, and whose in the source what is made there becomes.
    pub owners: Owners,
    /// Of an archive or image that is damaged, what can be read is shown; without, damage is an error.
    pub salvage: bool,
    /// Whether the server confines itself.
    pub sandbox: Sandbox,
}

/// What becomes of what is written in a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountWrites {
    /// It changes the source, which must be a directory.
    Through,
    /// Nothing can be written.
    Refused,
    /// It goes to a layer over the source.
    Over(UpperPlace),
}

impl MountWrites {
    /// The same from every directory.
    fn absolute(&self) -> MountWrites {
        match self {
            MountWrites::Over(UpperPlace::Kept(path)) => {
                MountWrites::Over(UpperPlace::Kept(path.canonicalize().unwrap_or_else(|_| path.clone())))
            }
            other => other.clone(),
        }
    }
}

impl MountRequest {
    /// `source` on `point`, read-only, by whoever serves it best; all else as the command has it where nothing is said.
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
            rings: Rings::Auto,
            owners: Owners::default(),
            salvage: false,
            sandbox: Sandbox::Auto,
        }
    }

    /// What is no directory does not change, and what nobody changes is not changed here either.
    fn effective(&self) -> MountRequest {
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

    /// Whether each access is written down, and whose it is.
    fn records_processes(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.level == RecordLevel::Process)
    }

    /// What is plainly wrong, before anything is opened. Gives the mount point, an absolute path without symbolic links.
    ///
    /// # Errors
    /// It is.
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
    /// And why the kernel does not, if that is not what was asked for.
    Fuse(fuse::Prepared, Option<String>),
}

impl Prepared {
    fn new(request: &MountRequest, events: &Events<MountEvent>) -> Result<Prepared, JobError> {
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

    /// What else the user should know, a line each.
    fn notes(&self) -> &[String] {
        match self {
            Prepared::Kernel(prepared) => &prepared.notes,
            Prepared::Fuse(prepared, _) => &prepared.notes,
        }
    }

    /// The end of the line that tells of the mount.
    fn way(&self) -> String {
        match self {
            Prepared::Kernel(_) => "; by the kernel".to_owned(),
            Prepared::Fuse(_, None) => "; by FUSE".to_owned(),
            Prepared::Fuse(_, Some(reason)) => format!("; by FUSE ({reason})"),
        }
    }
}

/// Mounts, and serves until it is stopped or until somebody unmounts it.
fn serve(request: &MountRequest, duty: &Duty) -> Result<(), JobError> {
    let point = request.check()?;
    descriptors::raise_limit();
    let request = &request.effective();
    let source = request.source.path();
    // Whoever looks at the mount table or the log is in another directory than we are.
    let source = source.canonicalize().unwrap_or_else(|_| source.to_owned());
    let place = open_point(&point)?;
    let prepared = Prepared::new(request, &duty.events)?;
    prepared.notes().iter().for_each(|note| duty.note(note));
    let absolute = MountRequest { writes: request.writes.absolute(), ..request.clone() };
    let absolute_line = introduction(&absolute, shown(&source), &point, &prepared);
    let line = introduction(request, &request.source, &point, &prepared);
    let notes = note_on_mount_points(&source, request.submounts).into_iter().collect();
    duty.events.emit(MountEvent::Mounting);
    let (serving, because) = match prepared {
        Prepared::Kernel(prepared) => {
            let device = prepared.archive.as_ref().map(archive::Archive::device).transpose()?;
            // Whenever the mount is there, somebody takes it away.
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
    };
    let confined = serving.confined.clone();
    let report = MountReport { point: point.clone(), by: serving.by, because, line, absolute_line, confined, notes };
    duty.is_ready(report);
    duty.stop.wait().map_err(LifecycleError::Wait)?;
    let record = serving.end(request, &point, duty)?;
    record.map_or(Ok(()), RecordFile::finish)
}

/// Who serves a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The kernel by itself.
    Kernel,
    /// This process, through FUSE.
    Fuse,
}

/// A mount that is there.
struct Serving {
    mounted: Mounted,
    guard: Guard,
    by: By,
    /// The line that says how the server is confined.
    confined: String,
    record: Option<RecordFile>,
    /// Goes when nobody writes any more.
    upper: Option<Upper>,
    /// What the kernel reads, and is told not to when it changes.
    archive: Option<GuardedArchive>,
}

impl Serving {
    /// Takes it away.
    fn end(mut self, request: &MountRequest, point: &Path, duty: &Duty) -> Result<Option<RecordFile>, JobError> {
        // The next one who keeps writes in the same directory is not to meet those of this one.
        let waits = self.by == By::Kernel && matches!(request.writes, MountWrites::Over(UpperPlace::Kept(_)));
        let rest = match self.by {
            By::Fuse => "whoever has files of it open gets errors from now on",
            By::Kernel if waits => "waiting until nobody has files of it open any more",
            By::Kernel if self.archive.is_some() => {
                "whoever has files of it open gets errors for what was not read before"
            }
            By::Kernel => "whoever has files of it open keeps them until they are closed",
        };
        let in_use = || {
            duty.note(format_args!("{} was in use: {rest}", shown(point)));
            waits
        };
        self.mounted.end(&mut self.guard, point, in_use)?;
        drop(self.upper);
        drop(self.archive);
        Ok(self.record)
    }
}

/// The directory to mount on, which is not looked for again.
fn open_point(point: &Path) -> Result<OwnedFd, JobError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(point, flags, Mode::empty());
    opened.map_err(|errno| JobError::path(point, "cannot be a mount point", errno))
}

/// Refuses a mount point that is no directory, which the mount would hide, and one that the server would meet in its own
/// tree: it would wait for itself.
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

/// Refuses locks where there is nothing on the host to lock, or no thread that could wait for one.
fn check_locks(request: &MountRequest) -> Result<(), NotMounted> {
    let refuse = |reason| Err(NotMounted::Locks { reason });
    match request {
        MountRequest { locks: false, .. } => Ok(()),
        MountRequest { source: Source::Directory(_), writes: MountWrites::Through, changes, rings, .. } => {
            match (changes, rings) {
                (Some(Changes::None), _) => refuse("locks what is changed, and --changes none says that nothing is"),
                (_, Rings::Required) => refuse("takes requests that can wait; leave --io-uring on away"),
                _ => Ok(()),
            }
        }
        _ => refuse("locks the files of a directory that is written to: not an archive or image, not with an overlay"),
    }
}

/// What is mounted of `source`, and who changes it.
fn introduction(request: &MountRequest, source: impl Display, point: &Path, prepared: &Prepared) -> String {
    let access = match &request.writes {
        MountWrites::Through => format!("writes change it{}", left_out(request.refused)),
        MountWrites::Refused => "read-only".to_owned(),
        MountWrites::Over(place) => place.to_string(),
    };
    let is_over = matches!(request.writes, MountWrites::Over(_));
    let changes = match (request.changes(), prepared) {
        (Changes::Guest, _) => "nobody else changes it",
        (Changes::Host, Prepared::Fuse(..)) => "changes made elsewhere are seen within a second",
        (Changes::Host, Prepared::Kernel(_)) if is_over => "changes made elsewhere may not be seen",
        (Changes::Host, Prepared::Kernel(_)) => "changes made elsewhere are seen at once",
        (Changes::None, _) => "nobody changes it",
    };
    let locks = if request.locks { "; locks are the host's" } else { "" };
    format!("mounted {source} on {}: {access}; {changes}{locks}{}", shown(point), prepared.way())
}
