//! A mount whose requests this program answers, through FUSE.

use std::path::Path;
use std::sync::Arc;

use inarch_fuse::{ConnectionOptions, ReadDirPlus, RingSupport, Rings, Session, SessionOptions};
use inarch_mount::DEVICE;
use inarch_vfs::{Changes, FileSystem, HostDirectory, HostOptions, VolumeFiles};

use super::archive;
use super::handle::{Duty, MountEvent};
use super::{By, MountRequest, MountWrites, NotMounted, Serving};
use crate::JobError;
use crate::events::Events;
use crate::lifecycle::confinement::{Access, Confinement, Grants, Work};
use crate::lifecycle::guard::{Guard, Guarded};
use crate::lifecycle::mounted::Mounted;
use crate::record::NewRecord;
use crate::share::with_owners;
use crate::source::identity::{files_identity, image_identity};
use crate::source::{self, Opened, OpenedVolume, Source};
use crate::text::shown;
use crate::upper::{Clients, LowerIdentity, Upper, UpperPlace};

/// Smaller files that are only read go through the kernel's cache of the mount: to hand one to the kernel and take it
/// back takes two calls, as long as reading so much.
const PASSTHROUGH_FROM: u64 = 256 << 10;

/// What will be served.
pub(super) struct Prepared {
    layer: Arc<dyn FileSystem>,
    /// Dropped when nobody writes any more.
    upper: Option<Upper>,
    record: Option<NewRecord>,
    confinement: Confinement,
    /// What else the user should know, a line each.
    pub notes: Vec<String>,
}

/// Opens the source, and what is written over it.
pub(super) fn prepare(
    request: &MountRequest,
    opened: Option<Opened>,
    events: &Events<MountEvent>,
) -> Result<Prepared, JobError> {
    let Lower { layer, identity, notes } = Lower::open(request, opened, events)?;
    let (layer, upper) = match &request.writes {
        MountWrites::Over(place) => {
            // What is below has an opinion of its own; what is above this kernel alone changes.
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
    let confinement = confinement(request, upper.as_ref())?;
    Ok(Prepared { layer, upper, record, confinement, notes })
}

impl Prepared {
    /// Mounts it on `point`, from `source`, confines this thread, and answers requests from then on.
    pub fn serve(
        self,
        request: &MountRequest,
        (point, source): (&Path, &Path),
        duty: &Duty,
    ) -> Result<Serving, JobError> {
        let read_only = request.writes == MountWrites::Refused;
        let (mount, device, guard) = Guard::of_fuse(point, source, read_only, Guarded::Mount)?;
        let session = Session::new(device, self.layer, session_options(request));
        let confined = request.sandbox.confine_to(shown(source), &self.confinement);
        let events = duty.events.clone();
        let failed = move |line| events.emit(MountEvent::Fault(line));
        let record = self.record.map(|record| record.start(failed)).transpose()?;
        let mounted = Mounted::served(mount, &duty.stop, move || session.run());
        Ok(Serving { mounted, guard, confined, record, upper: self.upper, archive: None, by: By::Fuse })
    }
}

/// What a mount takes: its source, what is written over it, and the device that requests come from.
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

/// Refuses to start without what must be. What is missing is known before anything is mounted.
pub(super) fn check_rings(rings: Rings) -> Result<(), NotMounted> {
    let missing = match RingSupport::detect() {
        _ if rings != Rings::Required => return Ok(()),
        RingSupport::On => return Ok(()),
        RingSupport::Off => format!("it is switched off for this machine; as root: {}", RingSupport::SWITCH_ON),
        RingSupport::Missing => "this kernel has none; it takes Linux 6.14 with CONFIG_FUSE_IO_URING".to_owned(),
    };
    Err(NotMounted::Rings { missing })
}

/// What is shown, before anything is written over it.
struct Lower {
    layer: Arc<dyn FileSystem>,
    identity: Option<LowerIdentity>,
    /// What else the user should know, a line each.
    notes: Vec<String>,
}

impl Lower {
    fn open(request: &MountRequest, opened: Option<Opened>, events: &Events<MountEvent>) -> Result<Lower, JobError> {
        let is_kept = matches!(request.writes, MountWrites::Over(UpperPlace::Kept(_)));
        let path = request.source.path();
        if let Some(opened) = source::open_volume(&request.source, request.salvage)? {
            return Ok(Lower::of_volume(request, opened, is_kept, events.clone()));
        }
        let opened = match opened {
            None => archive::open(request)?,
            opened => opened,
        };
        if let Some(opened) = opened {
            let identity = is_kept.then(|| LowerIdentity::of_tree(&files_identity(&opened), path));
            let layer = Arc::new(VolumeFiles::of_tree(opened.tree, opened.content));
            return Ok(Lower { layer, identity, notes: opened.notes });
        }
        let options = HostOptions {
            changes: request.changes(),
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
    fn of_volume(request: &MountRequest, opened: OpenedVolume, is_kept: bool, events: Events<MountEvent>) -> Lower {
        let OpenedVolume { volume, stamp } = opened;
        let path = request.source.path();
        let identity = image_identity(volume.format(), &stamp, request.salvage);
        let identity = is_kept.then(|| LowerIdentity::of_tree(&identity, path));
        let named = shown(path);
        let notes = volume.notes();
        let tell = Box::new(move |line: &str| events.emit(MountEvent::Fault(format!("{named}: {line}"))));
        Lower { layer: Arc::new(VolumeFiles::new(volume, request.salvage, tell)), identity, notes }
    }
}

fn session_options(request: &MountRequest) -> SessionOptions {
    let alone = request.changes() != Changes::Host;
    let connection = ConnectionOptions {
        // What is listed is not looked for yet.
        readdirplus: if request.record.is_some() { ReadDirPlus::Never } else { ReadDirPlus::Auto },
        exclusive: alone,
        cache_symlinks: alone && !request.records_processes(),
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
