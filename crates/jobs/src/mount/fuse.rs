//! Mounts through FUSE: a session of this program answers the kernel's requests.

use std::path::Path;
use std::sync::Arc;

use inarch_fuse::{ConnectionOptions, ReadDirPlus, RingSupport, Rings, Session, SessionOptions};
use inarch_lifecycle::Events;
use inarch_lifecycle::confinement::{Access, Confinement, Grants, Work};
use inarch_lifecycle::guard::{Guard, Guarded};
use inarch_lifecycle::mounted::Mounted;
use inarch_lifecycle::shown;
use inarch_mount::{DEVICE, FuseAccess};
use inarch_source::identity::{files_identity, image_identity};
use inarch_source::{Opened, OpenedVolume, Source};
use inarch_trace::NewRecord;
use inarch_upper::{Clients, LowerIdentity, Upper, UpperPlace};
use inarch_vfs::{Changes, FileSystem, HostDirectory, HostOptions, Tell, VolumeFiles};

use super::archive;
use super::handle::Duty;
use super::{By, MountEvent, MountFault, MountRequest, MountWrites, NotMounted, Serving};
use crate::JobError;
use crate::share::{measured, with_owners};

/// A file system that is about to be mounted.
pub(super) struct Prepared {
    layer: Arc<dyn FileSystem>,
    /// Dropped when nobody writes any more.
    upper: Option<Upper>,
    record: Option<NewRecord>,
    confinement: Confinement,
    /// Lines about the source that the user should read.
    pub notes: Vec<String>,
}

/// Opens the source and the upper layer.
pub(super) fn prepare(
    request: &MountRequest,
    opened: Option<Opened>,
    events: &Events<MountEvent>,
) -> Result<Prepared, JobError> {
    let Lower { layer, identity, notes } = Lower::open(request, opened, events)?;
    let (layer, upper) = match &request.writes {
        MountWrites::Over(place) => {
            // For the upper layer: only this mount changes it. Who changes the source is a matter of the lower layer.
            let clients = Clients { changes: Changes::Guest, without_opening: false, opens_directories: false };
            Upper::over(layer, place, clients, identity.as_ref()).map(|(layer, upper)| (layer, Some(upper)))?
        }
        MountWrites::Through | MountWrites::Refused => (layer, None),
    };
    let layer = with_owners(layer, &request.owners);
    let record = request.record.as_ref().map(NewRecord::create).transpose()?;
    let layer = match &record {
        Some(record) => record.over(layer),
        None => layer,
    };
    let layer = measured(layer, request.measures.as_ref());
    let confinement = confinement(request, upper.as_ref())?;
    Ok(Prepared { layer, upper, record, confinement, notes })
}

impl Prepared {
    /// Mounts it on `point`, with `source` as the name in the mount table, confines this thread, and starts to answer requests.
    pub fn serve(
        self,
        request: &MountRequest,
        (point, source): (&Path, &Path),
        duty: &Duty,
    ) -> Result<Serving, JobError> {
        let (mount, device, guard) = Guard::of_fuse(point, source, request.access(), Guarded::Mount)?;
        let session = Session::new(device, self.layer, session_options(request));
        let confined = request.sandbox.confine_to(shown(source), &self.confinement);
        let events = duty.events.clone();
        let failed = move |line| events.emit(MountEvent::Fault(MountFault::Record(line)));
        let record = self.record.map(|record| record.start(failed)).transpose()?;
        let mounted = Mounted::served(mount, &duty.stop, move || session.run());
        Ok(Serving { mounted, guard, confined, record, upper: self.upper, archive: None, by: By::Fuse })
    }
}

/// What the server needs: the source, the upper layer, and the device that requests come from.
fn confinement(request: &MountRequest, upper: Option<&Upper>) -> Result<Confinement, JobError> {
    let work = if request.writes == MountWrites::Refused { Work::ReadOnlyMount } else { Work::Mount };
    let mut confinement = Confinement::new(work).granted(Path::new(DEVICE), Access::Device)?;
    if let Source::Directory(path) = &request.source {
        let access = if request.writes == MountWrites::Through { Access::Change } else { Access::Read };
        confinement = confinement.granted(path, access)?;
    }
    if let Some(path) = upper.and_then(Upper::path) {
        confinement = confinement.granted(path, Access::Change)?;
    }
    if request.records_processes() {
        // /proc says which process a thread belongs to.
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

/// Refuses `--io-uring on` if this machine has no FUSE over io_uring, before anything is mounted.
pub(super) fn check_rings(rings: Rings) -> Result<(), NotMounted> {
    let missing = match RingSupport::detect() {
        _ if rings != Rings::Required => return Ok(()),
        RingSupport::On => return Ok(()),
        RingSupport::Off => format!("it is switched off for this machine; as root: {}", RingSupport::SWITCH_ON),
        RingSupport::Missing => "this kernel has none; it takes Linux 6.14 with CONFIG_FUSE_IO_URING".to_owned(),
    };
    Err(NotMounted::Rings { missing })
}

/// The lower layer: the source as a file system.
struct Lower {
    layer: Arc<dyn FileSystem>,
    identity: Option<LowerIdentity>,
    /// Lines about the source that the user should read.
    notes: Vec<String>,
}

impl Lower {
    fn open(request: &MountRequest, opened: Option<Opened>, events: &Events<MountEvent>) -> Result<Lower, JobError> {
        let is_kept = matches!(request.writes, MountWrites::Over(UpperPlace::Kept(_)));
        let path = request.source.path();
        if let Some(opened) = inarch_source::open_volume(&request.source, request.salvage)? {
            return Ok(Lower::of_volume(request, opened, is_kept, events.clone()));
        }
        let opened = match opened {
            None => archive::open(request)?,
            opened => opened,
        };
        if let Some(opened) = opened {
            let identity = is_kept.then(|| LowerIdentity::of_tree(&files_identity(&opened), path));
            let (tell, content) = (teller(path, events.clone()), Arc::clone(&opened.content));
            let explain = move |line: &str| match content.changed().named.first() {
                Some(file) => tell(&format!("{line}: it was changed after it was opened: {}", file.reason)),
                None => tell(line),
            };
            let layer = Arc::new(VolumeFiles::of_tree(opened.tree, opened.content, Box::new(explain)));
            return Ok(Lower { layer, identity, notes: request.source.named(&opened.notes) });
        }
        let options = HostOptions {
            changes: request.changes(),
            read_only: request.writes != MountWrites::Through,
            submounts: request.submounts,
            refused: request.refused,
            host_files_from: HostOptions::PASSTHROUGH_FROM,
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
    /// The lower layer of an image that is read on demand.
    fn of_volume(request: &MountRequest, opened: OpenedVolume, is_kept: bool, events: Events<MountEvent>) -> Lower {
        let OpenedVolume { volume, notes, stamp } = opened;
        let path = request.source.path();
        let identity = image_identity(volume.format(), &stamp, request.salvage);
        let identity = is_kept.then(|| LowerIdentity::of_tree(&identity, path));
        let layer = Arc::new(VolumeFiles::new(volume, request.salvage, teller(path, events)));
        Lower { layer, identity, notes: request.source.named(&notes) }
    }
}

/// Tells of a line about the source at `path`.
fn teller(path: &Path, events: Events<MountEvent>) -> Tell {
    let path = path.to_owned();
    Box::new(move |line| {
        events.emit(MountEvent::Fault(MountFault::Source { path: path.clone(), line: line.to_owned() }));
    })
}

fn session_options(request: &MountRequest) -> SessionOptions {
    let alone = request.changes() != Changes::Host;
    let connection = ConnectionOptions {
        // From READDIRPLUS the kernel would know every entry, and later look-ups would not be recorded.
        readdirplus: if request.record.is_some() { ReadDirPlus::Never } else { ReadDirPlus::Auto },
        exclusive: alone,
        cache_symlinks: alone && !request.records_processes(),
        posix_acl: request.access() != FuseAccess::ReadAll,
        kill_privileges: true,
        locks: request.locks,
        flush: request.locks,
        ..ConnectionOptions::default()
    };
    // A request that waits for a lock would occupy its ring. Without rings, it occupies no thread.
    let rings = if request.locks { Rings::Never } else { request.rings };
    // The mount itself may be a layer of an overlayfs.
    SessionOptions { connection, passthrough_depth: 1, rings, ..SessionOptions::default() }
}
