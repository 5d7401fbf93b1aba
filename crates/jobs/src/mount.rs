//! `mount`: a tree as files on this host, without root where fusermount3 is installed.
//!
//! 1. The source becomes a layer of [`inarch_vfs`]: a directory of this host, live, or the tree of an archive or image.
//!    What is not to change it is kept in an upper layer over that.
//! 2. It is mounted, and a guard started that takes the mount away however this process ends.
//! 3. Threads execute the kernel's requests until somebody unmounts it, or SIGINT or SIGTERM comes; in the background if that is
//!    asked for ([`background`]).

mod background;
mod unmount;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use background::{BACKGROUND_ARGUMENT, Background, start};
pub use inarch_fuse::Rings;
use inarch_fuse::mount::{Mount, MountError, Unmounted};
use inarch_fuse::{ConnectionOptions, ReadDirPlus, RingSupport, Session, SessionOptions};
use inarch_tree::select::{Owners, Selection};
pub use inarch_vfs::Changes;
use inarch_vfs::{FileSystem, HostDirectory, HostOptions, Recorder, TreeFiles, VolumeFiles};
pub use unmount::{UnmountRequest, unmount};

use background::Child;

use crate::JobError;
use crate::confinement::{Access, Confinement, Grants, Sandbox, Work};
use crate::descriptors;
use crate::identity::{files_identity, image_identity};
use crate::notes::{say, shown};
use crate::record::{NewRecord, RecordFile};
use crate::serve::guard::Guard;
use crate::serve::introduce;
use crate::serve::lister::ListerChild;
use crate::serve::mounted::Mounted;
use crate::serve::signals::Caught;
use crate::share::{Refused, Submounts, left_out, note_on_mount_points, with_owners};
use crate::source::{self, OpenedVolume, Resources, Source};
pub use crate::upper::UpperPlace;
use crate::upper::{Clients, LowerIdentity, Upper};

/// Smaller files that are only read go through the kernel's cache of the mount: to hand one to the kernel and take it
/// back takes two calls, as long as reading so much.
const PASSTHROUGH_FROM: u64 = 256 << 10;

/// What to mount, and where.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// What is offered.
    pub source: Source,
    /// An empty directory, or the source itself.
    pub point: PathBuf,
    /// Who may change the source while it is mounted.
    pub changes: Changes,
    /// What becomes of what is mounted beneath the source, if that is a directory.
    pub submounts: Submounts,
    /// What becomes of what is written in the mount.
    pub writes: MountWrites,
    /// What cannot be left in the source where writes change it.
    pub refused: Refused,
    /// Whether locks are taken on the source's files, where programs outside the mount see them.
    pub locks: bool,
    /// Where each access is written down, a line of JSON each.
    pub record: Option<PathBuf>,
    /// Whether the kernel's requests come by io_uring.
    pub rings: Rings,
    /// Whose files are seen in the mount, and whose in the source what is made there becomes.
    pub owners: Owners,
    /// Of an archive or image that is damaged, what can be read is shown; without, damage is an error.
    pub salvage: bool,
    /// Whether the server confines itself.
    pub sandbox: Sandbox,
    /// Whether nothing is said but what went wrong.
    pub quiet: bool,
    /// Whether this process is the child of [`start`], which leaves its caller when the mount answers.
    pub background: Option<Background>,
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
    /// What is no directory does not change, and what nobody changes is not changed here either.
    fn effective(&self) -> MountRequest {
        let is_directory = matches!(self.source, Source::Directory(_));
        let changes = if is_directory { self.changes } else { Changes::None };
        let refused = self.writes == MountWrites::Through && changes == Changes::None;
        let writes = if refused { MountWrites::Refused } else { self.writes.clone() };
        MountRequest { changes, writes, ..self.clone() }
    }

    /// Says a line that is no failure.
    fn say(&self, line: impl Display) {
        if !self.quiet {
            say(line);
        }
    }
}

/// Mounts, and serves until SIGINT or SIGTERM, or until somebody unmounts it. Says on standard error what is mounted.
pub fn mount(request: &MountRequest) -> Result<(), JobError> {
    let point = request.point.canonicalize();
    let point = point.map_err(|error| JobError::path(&request.point, "cannot be a mount point", error))?;
    check_point(&request.source, &point)?;
    if let (Source::Directory(tree), MountWrites::Over(place)) = (&request.source, &request.writes) {
        place.check_apart_from(tree)?;
    }
    check_rings(request.rings)?;
    check_locks(request)?;
    descriptors::raise_limit();
    let request = &request.effective();
    let child = request.background.as_ref().map(Child::begin).transpose()?;
    let Lower { layer, identity, notes } = Lower::open(request)?;
    notes.iter().for_each(|note| request.say(note));
    // Dropped when nobody writes any more.
    let (layer, upper) = match &request.writes {
        MountWrites::Over(place) => {
            // What is below has an opinion of its own; what is above this kernel alone changes.
            let clients = Clients { changes: Changes::Guest, without_opening: false, opens_directories: false };
            Upper::over(layer, place, clients, identity.as_ref()).map(|(layer, upper)| (layer, Some(upper)))?
        }
        MountWrites::Through | MountWrites::Refused => (layer, None),
    };
    let layer = with_owners(layer, &request.owners);
    let record = request.record.as_deref().map(NewRecord::create).transpose()?;
    let layer = match &record {
        Some(record) => Arc::new(Recorder::new(layer, record.sink())),
        None => layer,
    };
    let confinement = confinement(request, upper.as_ref())?;
    let source = request.source.path();
    // Whoever looks at the mount table or the log is in another directory than we are.
    let source = source.canonicalize().unwrap_or_else(|_| source.to_owned());
    let logged = MountRequest { writes: request.writes.absolute(), ..request.clone() };
    let logged = introduction(&logged, shown(&source), &point);
    let mount_points = note_on_mount_points(&source, request.submounts);
    let signals = Caught::from_now_on()?;
    let (mount, device) = Mount::new(&point, &source, request.writes == MountWrites::Refused)?;
    let mut guard = Guard::of_mount(&mount, false)?;
    // What it lists would be written down as if programs had asked for it.
    let lister = if request.record.is_none() { ListerChild::start(&mount, request.sandbox) } else { None };
    let (lister_child, lister) = lister.unzip();
    let session = Session::with_lister(device, layer, session_options(request), lister);
    child.as_ref().map(Child::detach).transpose()?;
    let confined = request.sandbox.confine_to(shown(&source), &confinement);
    let record = record.map(NewRecord::start).transpose()?;
    let stop = signals.heed();
    let mounted = Mounted::answer(mount, session, &stop);
    let answers = if child.is_some() { check_answer(&point) } else { Ok(()) };
    if answers.is_ok() && !request.quiet {
        let log = child.as_ref().map(Child::introduction).unwrap_or_default();
        introduce(&(introduction(request, &request.source, &point) + "\n" + &confined + &log));
    }
    mount_points.iter().for_each(|note| request.say(note));
    let answers = answers.and_then(|()| child.map_or(Ok(()), |child| child.answer(|| request.say(logged))));
    if answers.is_err() {
        stop.stop();
    }
    stop.wait().map_err(|error| JobError::Other(format!("cannot wait for the end: {error}")))?;
    // It may have the mount open.
    drop(lister_child);
    if mounted.end(&mut guard, &point)? == Unmounted::InUse {
        let line = format!("{} was in use: whoever has files of it open gets errors from now on", shown(&point));
        request.say(line);
    }
    answers?;
    record.map_or(Ok(()), RecordFile::finish)?;
    if request.background.is_some() {
        request.say(format_args!("{} is unmounted", shown(&point)));
    }
    Ok(())
}

/// Waits until the mount answers: whoever started it may use it then.
fn check_answer(point: &Path) -> Result<(), JobError> {
    point.metadata().map(drop).map_err(|error| JobError::path(point, "the mount does not answer", error))
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

/// What a mount takes: its source, what is written over it, and the device that requests come from.
fn confinement(request: &MountRequest, upper: Option<&Upper>) -> Result<Confinement, JobError> {
    let work = if request.writes == MountWrites::Refused { Work::ReadOnlyMount } else { Work::Mount };
    // The child that lists directories, by its pidfd.
    let mut confinement = Confinement::new(work).granted(Path::new("/dev/fuse"), Access::Device)?.ends_processes();
    if let Source::Directory(path) = &request.source {
        let access = if request.writes == MountWrites::Through { Access::Change } else { Access::Read };
        confinement = confinement.granted(path, access)?;
    }
    if let Some(path) = upper.and_then(Upper::path) {
        confinement = confinement.granted(path, Access::Change)?;
    }
    if request.record.is_some() {
        // There it says which process a thread is of.
        confinement = confinement.granted_if_there(Path::new("/proc"), Access::Read)?;
    }
    if request.writes == MountWrites::Through && request.refused.devices {
        confinement = confinement.without_devices();
    }
    if request.rings != Rings::Never && RingSupport::detect() == RingSupport::On {
        confinement = confinement.uses_rings();
    }
    Ok(confinement)
}

/// Refuses locks where there is nothing on the host to lock, or no thread that could wait for one.
fn check_locks(request: &MountRequest) -> Result<(), JobError> {
    let refuse = |reason: &str| Err(JobError::Other(format!("--locks host {reason}")));
    match request {
        MountRequest { locks: false, .. } => Ok(()),
        MountRequest { source: Source::Directory(_), writes: MountWrites::Through, changes, rings, .. } => {
            match (changes, rings) {
                (Changes::None, _) => refuse("locks what is changed, and --changes none says that nothing is"),
                (_, Rings::Required) => refuse("takes requests that can wait; leave --io-uring on away"),
                _ => Ok(()),
            }
        }
        _ => refuse("locks the files of a directory that is written to: not an archive or image, not with an overlay"),
    }
}

/// Refuses to start without what must be. What is missing is known before anything is mounted.
fn check_rings(rings: Rings) -> Result<(), JobError> {
    let missing = match RingSupport::detect() {
        _ if rings != Rings::Required => return Ok(()),
        RingSupport::On => return Ok(()),
        RingSupport::Off => format!("it is switched off for this machine; as root: {}", RingSupport::SWITCH_ON),
        RingSupport::Missing => "this kernel has none; it takes Linux 6.14 with CONFIG_FUSE_IO_URING".to_owned(),
    };
    Err(JobError::Other(format!("FUSE over io_uring: {missing}; or leave --io-uring on away")))
}

/// What is shown, before anything is written over it.
struct Lower {
    layer: Arc<dyn FileSystem>,
    identity: Option<LowerIdentity>,
    /// What else the user should know, a line each.
    notes: Vec<String>,
}

impl Lower {
    fn open(request: &MountRequest) -> Result<Lower, JobError> {
        let is_kept = matches!(request.writes, MountWrites::Over(UpperPlace::Kept(_)));
        if let Some(opened) = source::open_volume(&request.source, request.salvage)? {
            return Ok(Lower::of_volume(request, opened, is_kept));
        }
        let Source::Directory(path) = &request.source else {
            let resources = Resources { stamp: is_kept, ..Resources::default() };
            let selection = Selection { salvage: request.salvage, ..Selection::default() };
            let opened = source::open_with(&request.source, &selection, &resources)?;
            let identity = is_kept.then(|| LowerIdentity::of_tree(&files_identity(&opened), request.source.path()));
            let layer = Arc::new(TreeFiles::new(opened.tree, opened.content));
            return Ok(Lower { layer, identity, notes: opened.notes });
        };
        let options = HostOptions {
            changes: request.changes,
            read_only: request.writes != MountWrites::Through,
            submounts: request.submounts,
            refused: request.refused,
            host_files_from: PASSTHROUGH_FROM,
            locks: request.locks,
            ..HostOptions::default()
        };
        let fail = |path: &Path, error| JobError::path(path, "cannot open it", error);
        let layer = HostDirectory::new(path, options).map_err(|error| fail(&error.path, error.error))?;
        let identity = is_kept.then(|| LowerIdentity::of_directory(path)).transpose();
        let identity = identity.map_err(|error| fail(path, error))?;
        Ok(Lower { layer: Arc::new(layer), identity, notes: Vec::new() })
    }
}

impl Lower {
    /// Of an image that is read when something of it is asked for.
    fn of_volume(request: &MountRequest, opened: OpenedVolume, is_kept: bool) -> Lower {
        let OpenedVolume { volume, stamp } = opened;
        let path = request.source.path();
        let identity = image_identity(volume.format(), &stamp, request.salvage);
        let identity = is_kept.then(|| LowerIdentity::of_tree(&identity, path));
        let named = shown(path);
        let notes = volume.notes();
        let tell = Box::new(move |line: &str| say(format_args!("{named}: {line}")));
        Lower { layer: Arc::new(VolumeFiles::new(volume, request.salvage, tell)), identity, notes }
    }
}

fn session_options(request: &MountRequest) -> SessionOptions {
    let alone = request.changes != Changes::Host;
    let connection = ConnectionOptions {
        readdirplus: ReadDirPlus::Auto,
        exclusive: alone,
        cache_symlinks: alone,
        posix_acl: true,
        kill_privileges: true,
        locks: request.locks,
        flush: request.locks,
        ..ConnectionOptions::default()
    };
    // Who waits for a lock keeps no thread, but it would keep a ring.
    let rings = if request.locks { Rings::Never } else { request.rings };
    // The mount itself may be a layer of an overlayfs.
    SessionOptions { connection, passthrough_depth: 1, rings, ..SessionOptions::default() }
}

/// What is mounted of `source`, and who changes it.
fn introduction(request: &MountRequest, source: impl Display, point: &Path) -> String {
    let access = match &request.writes {
        MountWrites::Through => format!("writes change it{}", left_out(request.refused)),
        MountWrites::Refused => "read-only".to_owned(),
        MountWrites::Over(place) => place.to_string(),
    };
    let changes = match request.changes {
        Changes::Guest => "nobody else changes it",
        Changes::Host => "changes made elsewhere are seen within a second",
        Changes::None => "nobody changes it",
    };
    let locks = if request.locks { "; locks are the host's" } else { "" };
    format!("mounted {source} on {}: {access}; {changes}{locks}", shown(point))
}
