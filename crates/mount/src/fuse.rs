//! FUSE mounts, which a process serves.

use std::ffi::CString;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::{DEVICE, Entry, Mount, MountError, MountId, helper, table};

/// The type in mount tables, and our part of it.
const TYPE: &str = "fuse.inarch";
pub(super) const SUBTYPE: &str = "inarch";

/// What a FUSE mount lets its users do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseAccess {
    /// Read and change what the permissions of its files let them.
    Change,
    /// Read what the permissions of its files let them.
    Read,
    /// Only the user who mounts it gets in, and reads everything, whatever the permissions are. For what that user may read anyway, such as
    /// a disk image of theirs with the files of others. The session must not ask the kernel to enforce access control lists: that
    /// would have it check permissions too.
    ReadAll,
}

impl FuseAccess {
    /// Whether nothing can be changed in the mount.
    pub(super) fn is_read_only(self) -> bool {
        self != FuseAccess::Change
    }

    /// Whether the kernel checks the permissions of files (`default_permissions`).
    pub(super) fn checks_permissions(self) -> bool {
        self != FuseAccess::ReadAll
    }
}

impl Mount {
    /// Mounts on `point`, an absolute path of a directory or regular file; the mounted root has the same type.
    /// Returns the descriptor for a session to serve; until then every access to the mount point waits. Mount tables
    /// show `source`.
    pub fn fuse(point: &Path, source: &Path, access: FuseAccess) -> Result<(Mount, OwnedFd), MountError> {
        let refuse = |reason: String| MountError::Point { path: point.to_owned(), reason };
        let metadata = point.symlink_metadata().map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_dir() && !metadata.is_file() {
            return Err(refuse(format!("it is {}, not a file or directory", kind(&metadata))));
        }
        let fd = match mount_directly(point, source, &metadata, access) {
            Err(MountError::Refused { error, .. }) if error.kind() == io::ErrorKind::PermissionDenied => {
                helper::mount(point, source, access)?
            }
            result => result?,
        };
        let entry = table::mounted(point).filter(Entry::is_fuse);
        let entry = entry.ok_or_else(|| refuse("another mount covers it".into()))?;
        Ok((Mount { point: point.to_owned(), id: MountId::of(&entry, point) }, fd))
    }
}

/// The mount that a server left at `point`, an absolute path, when it died while mounting: the uppermost one there, if
/// this program and user made it and its device is closed. If a server still serves it, waits for that server's answer.
pub fn orphan_at(point: &Path) -> Option<MountId> {
    let place = table::mounts_at(point).into_iter().find(|place| place.cover.is_none())?;
    let is_own = place.entry.is_fuse() && place.entry.user == Some(rustix::process::geteuid().as_raw());
    let gone = [Errno::NOTCONN, Errno::CONNABORTED];
    let is_gone = || {
        let answer = point.symlink_metadata();
        answer.is_err_and(|error| Errno::from_io_error(&error).is_some_and(|errno| gone.contains(&errno)))
    };
    (is_own && is_gone()).then(|| MountId::of(&place.entry, point))
}

impl Entry {
    /// Whether it is a FUSE mount of this program's.
    pub fn is_fuse(&self) -> bool {
        self.kind == TYPE
    }
}

/// Mounts by mount(2), which takes `CAP_SYS_ADMIN`.
fn mount_directly(point: &Path, source: &Path, metadata: &Metadata, access: FuseAccess) -> Result<OwnedFd, MountError> {
    let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| MountError::Device(errno.into()))?;
    // Where permissions are not checked, nobody but us may get in.
    let checks = if access.checks_permissions() { ",allow_other,default_permissions" } else { "" };
    let options = format!(
        "fd={},rootmode={:o},user_id={},group_id={}{checks}",
        device.as_raw_fd(),
        metadata.mode() & 0o170_000,
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let options = CString::new(options).map_err(|error| MountError::Device(error.into()))?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if access.is_read_only() {
        flags |= MountFlags::RDONLY;
    }
    rustix::mount::mount(source, point, TYPE, flags, Some(&*options))
        .map_err(|errno| MountError::Refused { path: point.to_owned(), error: errno.into() })?;
    Ok(device)
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_symlink() => "a symlink",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "a special file",
    }
}
