//! Mounts through the kernel: a bind mount, an EROFS of an archive ([`super::archive`]), or an overlayfs over either.
//!
//! Such a mount is as fast as the directory itself, so it is tried first. If the kernel cannot do what [`MountRequest`] says, [`prepare`]
//! returns the reason in a few words, and FUSE serves the mount.

use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_fuse::Rings;
use inarch_lifecycle::guard::{Guarded, own_child};
use inarch_mount::{Detached, IdRange, Layers, mount_points_beneath, user_namespace};
use inarch_source::identity::{files_identity, image_identity};
use inarch_source::{FileKind, Opened, OpenedVolume, Source};
use inarch_tree::select::Owners;
use inarch_vfs::{Changes, HostDirectory, HostOptions};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::MountAttrFlags;

use super::archive::{self, Archive};
use super::{MountRequest, MountWrites, USER_NAMESPACE_ARGUMENT, Via};
use crate::JobError;
use crate::share::{Refused, Submounts};
use inarch_upper::{LowerIdentity, Upper, UpperPlace};

/// A mount without a mount point yet.
pub(super) struct Prepared {
    pub detached: Detached,
    /// How its guard unmounts it.
    pub kind: Guarded,
    /// Dropped when nobody writes any more.
    pub upper: Option<Upper>,
    /// The archive that the mount shows.
    pub archive: Option<Archive>,
    /// Lines about the source that the user should read.
    pub notes: Vec<String>,
}

/// Why the kernel does not serve a mount.
pub(super) enum NotByKernel {
    /// The kernel cannot do it, for this reason in a few words. FUSE can.
    Because(String),
    /// The mount fails in any case.
    Failed(JobError),
}

impl<E: Into<JobError>> From<E> for NotByKernel {
    fn from(error: E) -> NotByKernel {
        NotByKernel::Failed(error.into())
    }
}

fn because<T>(reason: impl Display) -> Result<T, NotByKernel> {
    Err(NotByKernel::Because(reason.to_string()))
}

/// Makes the mount, if the kernel can do what the request says. An archive or image is read to its end for that; the result is left in
/// `opened`, also if the kernel cannot mount it.
pub(super) fn prepare(request: &MountRequest, opened: &mut Option<Opened>) -> Result<Prepared, NotByKernel> {
    if !rustix::process::geteuid().is_root() {
        return because("not root");
    }
    if request.record.is_some() {
        return because("--record");
    }
    if request.measures.is_some() {
        return because("--stats or --profile");
    }
    if request.rings == Rings::Required {
        return because("--io-uring on");
    }
    if !matches!(request.source, Source::Directory(_)) {
        may_be_archive(request)?;
        *opened = archive::open(request)?;
    }
    if let Some(opened) = opened {
        return archive(request, opened);
    }
    let path = request.source.path();
    let directory = open_directory(path)?;
    let has_mounts = path.canonicalize().is_ok_and(|path| !mount_points_beneath(&path).is_empty());
    if has_mounts && request.submounts == Submounts::Empty {
        // A bind mount would show the files that those mounts hide.
        return because("something is mounted in it");
    }
    match &request.writes {
        MountWrites::Over(place) if has_mounts => because(format_args!("--cross, and {}", over(place))),
        MountWrites::Over(place) => over_directory(request, &directory, place),
        MountWrites::Through if request.refused != Refused::default() => because("--nosuid or --nodev"),
        MountWrites::Through | MountWrites::Refused => bind(request, &directory, has_mounts),
    }
}

fn over(place: &UpperPlace) -> &'static str {
    match place {
        UpperPlace::Kept(_) => "--overlay",
        UpperPlace::ThrownAway(_) | UpperPlace::InMemory(_) => "--ephemeral",
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, JobError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map_err(|errno| JobError::path(path, "cannot open it", errno))
}

fn attributes(request: &MountRequest) -> MountAttrFlags {
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, request.writes == MountWrites::Refused);
    attributes
}

fn bind(request: &MountRequest, directory: &OwnedFd, has_mounts: bool) -> Result<Prepared, NotByKernel> {
    let owners = owners(&request.owners)?;
    let bound = Detached::bind(directory.as_fd(), has_mounts, attributes(request), owners.as_ref().map(AsFd::as_fd));
    let kind = if has_mounts { Guarded::BindOfMounts } else { Guarded::Bind };
    let detached = bound.or_else(because)?;
    Ok(Prepared { detached, kind, upper: None, archive: None, notes: Vec::new() })
}

/// The user namespace of an idmapped mount with these owner maps; `None` if they change nothing.
fn owners(owners: &Owners) -> Result<Option<OwnedFd>, NotByKernel> {
    let Some(maps) = owners.one_to_one() else { return because("several owners are seen as one") };
    let is_same = |map: &Vec<(u32, u32, u32)>| map.iter().all(|(below, seen, _)| below == seen);
    if maps.iter().all(is_same) {
        return Ok(None);
    }
    let [users, groups] = maps.map(|map| {
        let range = |(below, seen, count)| IdRange { below, seen, count };
        map.into_iter().map(range).collect::<Vec<_>>()
    });
    let made = user_namespace(own_child(USER_NAMESPACE_ARGUMENT), &users, &groups);
    made.map(Some).or_else(|error| because(format_args!("a user namespace: {error}")))
}

fn over_directory(request: &MountRequest, directory: &OwnedFd, place: &UpperPlace) -> Result<Prepared, NotByKernel> {
    if request.changes == Some(Changes::Host) {
        // overlayfs does not promise to show changes of its lower layer.
        return because(format_args!("--changes host and {}", over(place)));
    }
    // Its path could lead to another directory by now.
    let there = path_of(directory.as_fd());
    let fail = |error| JobError::path(request.source.path(), "cannot open it", error);
    let identity = match place {
        UpperPlace::Kept(_) => Some(LowerIdentity::of_directory(&there).map_err(fail)?),
        UpperPlace::ThrownAway(_) | UpperPlace::InMemory(_) => None,
    };
    overlay(request, directory.as_fd(), place, identity.as_ref())
}

/// A path to the directory of a descriptor.
fn path_of(directory: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

fn overlay(
    request: &MountRequest,
    lower: BorrowedFd<'_>,
    place: &UpperPlace,
    identity: Option<&LowerIdentity>,
) -> Result<Prepared, NotByKernel> {
    if request.owners != Owners::default() {
        return because(format_args!("other owners and {}", over(place)));
    }
    let options = HostOptions { read_only: true, submounts: request.submounts, ..HostOptions::default() };
    let name = request.source.path();
    let directory = HostDirectory::new(&path_of(lower), options);
    let directory = directory.map_err(|error| JobError::path(name, "cannot open it", error.error))?;
    let (layer, upper) = Upper::for_kernel(Arc::new(directory), place, identity)?;
    let layers = Layers {
        lower,
        upper: layer.upper.as_fd(),
        work: layer.work.as_fd(),
        is_thrown_away: !matches!(place, UpperPlace::Kept(_)),
    };
    let detached = Detached::overlay(layers, name, attributes(request)).or_else(because)?;
    Ok(Prepared { detached, kind: Guarded::Mount, upper: Some(upper), archive: None, notes: Vec::new() })
}

/// Refuses what is known, before the source is read, to be nothing that the kernel can mount.
fn may_be_archive(request: &MountRequest) -> Result<(), NotByKernel> {
    if request.owners != Owners::default() {
        return because("other owners of an archive");
    }
    match &request.source {
        Source::File { kind: FileKind::CompressedTar, .. } => return because("it is compressed"),
        Source::File { .. } | Source::Disk { .. } => {}
        Source::Oci { .. } | Source::Registry(_) => return because("a container image"),
        Source::Pipe(_) | Source::StandardInput => return because("it came through a pipe"),
        Source::Directory(_) | Source::Cache(_) | Source::Empty => return because("no plain file"),
    }
    let is_image = matches!(&request.source, Source::File { kind: FileKind::Volume(_), .. } | Source::Disk { .. });
    if request.via == Via::Auto && is_image {
        // Most users read a few files of an image. The kernel would need all of its metadata first.
        return because("an image is read as it is asked for; --via kernel reads all its metadata first");
    }
    Ok(())
}

fn archive(request: &MountRequest, opened: &Opened) -> Result<Prepared, NotByKernel> {
    let path = request.source.path();
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (detached, archive) = Archive::mount(opened, &whole).or_else(because)?;
    let prepared = match &request.writes {
        MountWrites::Over(place) => {
            let is_kept = matches!(place, UpperPlace::Kept(_));
            let identity = is_kept.then(|| identity(request, opened)).transpose()?;
            let identity = identity.map(|identity| LowerIdentity::of_tree(&identity, path));
            overlay(request, detached.root(), place, identity.as_ref())?
        }
        MountWrites::Through | MountWrites::Refused => {
            Prepared { detached, kind: Guarded::Mount, upper: None, archive: None, notes: Vec::new() }
        }
    };
    Ok(Prepared { archive: Some(archive), notes: request.source.named(&opened.notes), ..prepared })
}

/// The identity of an archive or image for a kept upper layer; the same as for a mount through FUSE.
fn identity(request: &MountRequest, opened: &Opened) -> Result<[u8; 32], JobError> {
    Ok(match inarch_source::open_volume(&request.source, request.salvage)? {
        Some(OpenedVolume { volume, stamp, .. }) => image_identity(volume.format(), &stamp, request.salvage),
        None => files_identity(opened),
    })
}
