//! Mounting and unmounting: by mount(2) where that is permitted, by fusermount3, which is set-user-ID, where not.

mod held;
mod helper;
mod identity;
mod table;
mod users;

use std::ffi::CString;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::MountFlags;

use crate::session::DEVICE;
pub use held::Held;
pub use identity::{DeviceNumber, MountId};
pub use table::{Copy, Entry, Place, copies, mount_points_beneath, mounted, mounts_at, place_of, process_that_sees};
pub use users::{User, users};

/// What mount tables show as type, and the part of it that is ours.
const TYPE: &str = "fuse.inarch";
const SUBTYPE: &str = "inarch";

/// How often to try to unmount what is in use, and when again: who only looks for something there has it in use meanwhile.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(5);

/// How often a mount is looked for whose directories are renamed meanwhile.
const MOVES: u32 = 1000;

/// Why nothing could be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is not one that we can use.
    #[error("{}: cannot be a mount point: {reason}", path.display())]
    Point {
        /// Its path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// There is no `/dev/fuse`.
    #[error("{DEVICE}: {0}; the kernel's module fuse is needed (modprobe fuse)")]
    Device(io::Error),
    /// The system refused.
    #[error("{}: cannot mount there: {error}", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Without privilege it takes a program that is not there.
    #[error(
        "{}: mounting takes root, or the program fusermount3 of the package fuse3, which is not installed",
        path.display()
    )]
    NoHelper {
        /// Where to mount.
        path: PathBuf,
    },
    /// That program said no.
    #[error("{}: fusermount3 cannot mount there: {reason}", path.display())]
    Helper {
        /// Where to mount.
        path: PathBuf,
        /// What it said.
        reason: String,
    },
    /// The mount is in use.
    #[error("{}: cannot be unmounted: it is in use", path.display())]
    Busy {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// It cannot be unmounted.
    #[error("{}: cannot be unmounted: {reason}", path.display())]
    Unmount {
        /// Where it is mounted.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// A mounted connection. It is taken away when this is dropped.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
    id: MountId,
}

/// Whether something was still used when it was unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Nothing was; nobody can have an answer outstanding.
    Clean,
    /// Something was: it is gone from the file tree, and whoever has it open still reaches the server while that lives.
    InUse,
}

impl Mount {
    /// Mounts on `point`, an absolute path of a directory, or of a regular file, which is then what the mounted root is.
    /// Gives the descriptor that a [`Session`](crate::Session) serves: until it does, whoever looks at the mount
    /// point waits. Mount tables show `source`.
    pub fn new(point: &Path, source: &Path, read_only: bool) -> Result<(Mount, OwnedFd), MountError> {
        let refuse = |reason: String| MountError::Point { path: point.to_owned(), reason };
        let metadata = point.symlink_metadata().map_err(|error| refuse(error.to_string()))?;
        if !metadata.is_dir() && !metadata.is_file() {
            return Err(refuse(format!("it is {}, not a file or directory", kind(&metadata))));
        }
        let fd = match mount_directly(point, source, &metadata, read_only) {
            Err(MountError::Refused { error, .. }) if error.kind() == io::ErrorKind::PermissionDenied => {
                helper::mount(point, source, read_only)?
            }
            result => result?,
        };
        let entry = table::mounted(point).filter(Entry::is_ours);
        let entry = entry.ok_or_else(|| refuse("another mount covers it".into()))?;
        Ok((Mount { point: point.to_owned(), id: MountId::of(&entry, point) }, fd))
    }

    /// Where it was mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// What tells it from other mounts.
    pub fn id(&self) -> MountId {
        self.id
    }

    /// Leaves alone what is at the mount point: somebody else took this mount away, and another may be there by now, under the
    /// same numbers.
    pub fn forget(self) {
        std::mem::forget(self);
    }

    /// Takes it away, whether it is in use or not.
    pub fn unmount(self) -> Result<Unmounted, MountError> {
        unmount_wherever(&self.id)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // After `unmount` it finds nothing to do, and nobody is left to be told.
        let _ = unmount_wherever(&self.id);
    }
}

/// Unmounts this mount wherever it is now; does nothing if it is already gone.
///
/// # Errors
/// It is not this user's to unmount, another mount covers it, which no unmounting reaches through, or the directories above it
/// change all the time.
pub fn unmount_wherever(mount: &MountId) -> Result<Unmounted, MountError> {
    let mut attempts = 1;
    let held = loop {
        let Some(Place { point, entry, cover }) = place_of(mount) else { return Ok(Unmounted::Clean) };
        if let Some((_, cover)) = cover {
            let kind = cover.kind;
            let reason = format!("another mount covers it ({kind}); unmount that first, then this one with umount");
            return Err(MountError::Unmount { path: point, reason });
        }
        match Held::new(&point, &entry) {
            Ok(held) => break held,
            Err(error) if attempts >= MOVES => return Err(error),
            Err(_) => attempts += 1,
        }
    };
    // Detached, it has no new users, whatever the reason is.
    unmount_unused(&held).map(|()| Unmounted::Clean).or_else(|_| detach(&held).map(|()| Unmounted::InUse))
}

/// Takes a mount away.
///
/// # Errors
/// [`MountError::Busy`] if somebody uses it, for longer than a moment; or it is not this user's to unmount.
pub fn unmount_unused(mount: &Held) -> Result<(), MountError> {
    for _ in 1..ATTEMPTS {
        if mount.unmount(false).is_ok() {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    mount.unmount(false)
}

/// Detaches a mount and all mounts in it (`MNT_DETACH`): programs keep the files that they have open, and no new file is opened.
///
/// # Errors
/// It is not this user's to unmount.
pub fn detach(mount: &Held) -> Result<(), MountError> {
    mount.unmount(true)
}

impl Entry {
    /// Whether it is a mount of this program's.
    pub fn is_ours(&self) -> bool {
        self.kind == TYPE
    }
}

/// Mounts by mount(2), which takes `CAP_SYS_ADMIN`.
fn mount_directly(point: &Path, source: &Path, metadata: &Metadata, read_only: bool) -> Result<OwnedFd, MountError> {
    let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| MountError::Device(errno.into()))?;
    // Others than us have access as the file's permissions say, which the kernel checks.
    let options = format!(
        "fd={},rootmode={:o},user_id={},group_id={},allow_other,default_permissions",
        device.as_raw_fd(),
        metadata.mode() & 0o170_000,
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let options = CString::new(options).map_err(|error| MountError::Device(error.into()))?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if read_only {
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
