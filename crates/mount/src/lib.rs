//! Mounts and unmounts: the kernel's own file systems ([`Detached`]) and FUSE ([`Mount::fuse`]), by mount(2) where
//! permitted, otherwise by the set-user-ID program fusermount3.
//!
//! - [`Detached`]: a bind mount, an overlayfs, an EROFS or a file system in memory, made without a place; it is
//!   attached through a descriptor of its mount point, so that no path is resolved twice.
//! - [`Loop`] and [`Lease`]: a file as a block device for the kernel, protected from changes meanwhile.
//! - [`Mount`]: a mount, identified by numbers that survive renames of directories ([`MountId`]).
//! - [`unshare_mounts`], [`replace_root`]: mounts of a thread's own, and another root in them.
//! - [`Watch`]: waits until a mount, or its file system, is gone.
//! - [`mounted`], [`place_of`], [`users()`] and others: read the kernel's tables, without contacting any file system.
//!
//! ```
//! use std::path::Path;
//!
//! let proc = inarch_mount::mounted(Path::new("/proc")).expect("it is mounted");
//! assert_eq!(proc.kind, "proc");
//! ```

#![deny(unsafe_code)]

mod attributes;
mod detached;
mod fuse;
mod held;
mod helper;
mod identity;
mod lease;
mod loops;
mod root;
mod table;
mod user_namespace;
mod users;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

pub use attributes::set_attributes;
pub use detached::{Detached, Layers, Refusal};
pub use fuse::{FuseAccess, orphan_at};
pub use held::Held;
pub use identity::{DeviceNumber, MountId};
pub use lease::Lease;
pub use loops::{Loop, LoopId};
pub use root::{
    attach_tree, clone_tree, replace_root, restrict, restrict_beneath, unshare_mounts, unshare_mounts_as_user,
};
pub use table::{
    Copy, Entry, Place, copies, is_free_of_mounts, mount_points_beneath, mounted, mounts_at, mounts_within, place_of,
    process_that_sees, restrictions_beneath, topmost_beneath,
};
pub use user_namespace::{IdRange, hold_user_namespace, user_namespace};
pub use users::{User, users};
pub use watch::Watch;

/// Where requests of the kernel for files come from.
pub const DEVICE: &str = "/dev/fuse";

/// How often to try to unmount a mount in use, and the pause: a program that only looks around uses it for a moment.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(5);

/// How often to look for a mount whose parent directories are being renamed.
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
    /// fusermount3 failed.
    #[error("{}: fusermount3 cannot mount there: {reason}", path.display())]
    Helper {
        /// Where to mount.
        path: PathBuf,
        /// Its message.
        reason: String,
    },
    /// The mount is in use.
    #[error("{}: cannot be unmounted: it is in use", path.display())]
    Busy {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// Another mount is above it.
    #[error(
        "{}: cannot be unmounted: another mount covers it ({kind}); unmount that first, then this one with umount",
        path.display()
    )]
    Covered {
        /// Where it is mounted.
        path: PathBuf,
        /// The type of what covers it.
        kind: String,
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

/// A mount that is unmounted when this is dropped.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
    id: MountId,
}

/// Whether something was still used when it was unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It was not in use; no request can be outstanding.
    Clean,
    /// It was in use: it is detached, and programs with open files still reach the server while it runs.
    InUse,
}

impl Mount {
    /// Where it was mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Its identity.
    pub fn id(&self) -> MountId {
        self.id
    }

    /// Forgets the mount without unmounting: somebody else unmounted it, and another mount may have its numbers by
    /// now.
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
        // After `unmount` there is nothing to do, and nobody to report to.
        let _ = unmount_wherever(&self.id);
    }
}

/// Unmounts this mount wherever it is now; does nothing if it is gone.
///
/// # Errors
/// It belongs to another user, another mount covers it, or the directories above it change all the time.
pub fn unmount_wherever(mount: &MountId) -> Result<Unmounted, MountError> {
    let mut attempts = 1;
    let held = loop {
        let Some(Place { point, entry, cover }) = place_of(mount) else { return Ok(Unmounted::Clean) };
        if let Some((_, cover)) = cover {
            return Err(MountError::Covered { path: point, kind: cover.kind });
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

/// Unmounts the mounts inside this one, unless they are in use.
///
/// # Errors
/// A mount inside is in use.
pub fn unmount_within(mount: &MountId) -> Result<(), MountError> {
    for (point, entry) in mounts_within(mount) {
        Held::new(&point, &entry).and_then(|held| unmount_unused(&held))?;
    }
    Ok(())
}

/// Unmounts a mount.
///
/// # Errors
/// [`MountError::Busy`] if it stays in use for longer than a moment; or it belongs to another user.
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
