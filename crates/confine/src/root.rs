//! Gives the calling thread a root directory in a mount namespace of its own, with only a few of the host's paths and
//! `/proc/self` in it.
//!
//! Landlock does not stop a server with a path bug from changing a file's attributes, from calling stat(2), or from
//! following a link out of the tree. In this root there is nothing else to reach.
//!
//! Only root does this. An ordinary user would need a user namespace, in which other users' files appear as nobody's. A
//! user's server can do no more than the user.
//!
//! A later mount of the host beneath one of the paths appears here if the host's mounts are shared, as under systemd;
//! it does not if they are private.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use inarch_mount::{Refusal, attach_tree, clone_tree, replace_root, unshare_mounts};
use rustix::fs::{FileType, Mode, OFlags, fstat, mkdirat, mknodat, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen};

/// Reduces the root to `places`, which are absolute paths without symbolic links, read-only unless `writable`. After a
/// failure everything but the namespace is as before.
pub fn enter(places: &[PathBuf], writable: bool) -> Result<(), String> {
    // Nothing would be left out.
    if places.iter().any(|place| place == Path::new("/")) {
        return Err("the whole system is shared".to_owned());
    }
    if places.iter().any(|place| place.starts_with("/proc")) {
        return Err("it is the kernel's own".to_owned());
    }
    try_enter(places, writable).map_err(|Refusal { what, errno }| format!("{what}: {errno}"))
}

/// A path that the new root will have.
struct Place<'p> {
    path: &'p Path,
    mount: OwnedFd,
    is_directory: bool,
}

impl<'p> Place<'p> {
    /// Clones the mount at `path` with all mounts beneath it. A path that was named itself may be a device.
    fn take(path: &'p Path, writable: bool) -> Result<Place<'p>, Refusal> {
        let mount = clone_tree(path)?;
        let is_directory = FileType::from_raw_mode(fstat(&mount).or_fail("fstat")?.st_mode) == FileType::Directory;
        let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID;
        flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, is_directory);
        flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !writable);
        set_attributes(mount.as_fd(), flags, true)?;
        Ok(Place { path, mount, is_directory })
    }
}

fn try_enter(places: &[PathBuf], writable: bool) -> Result<(), Refusal> {
    unshare_mounts()?;
    let places = places.iter().map(|path| Place::take(path, writable)).collect::<Result<Vec<_>, _>>()?;
    let own = Path::new("/proc/self");
    let own = Place { path: own, mount: clone_tree(own)?, is_directory: true };
    let root = new_root()?;
    replace_root(root.as_fd(), || {
        places.iter().chain([&own]).try_for_each(|place| attach(root.as_fd(), place))?;
        set_attributes(root.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, false)
    })
}

/// An empty file system in memory, mounted nowhere yet.
fn new_root() -> Result<OwnedFd, Refusal> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).or_fail("fsopen")?;
    fsconfig_set_string(context.as_fd(), "mode", "0755").or_fail("fsconfig")?;
    fsconfig_create(context.as_fd()).or_fail("fsconfig")?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags).or_fail("fsmount")
}

/// Mounts `place` within `root`. Makes its directories first, or a file where the place is not a directory.
fn attach(root: BorrowedFd<'_>, place: &Place<'_>) -> Result<(), Refusal> {
    let mut at = root.try_clone_to_owned().map_err(|_| Errno::MFILE).or_fail("fcntl")?;
    let mut components = place.path.components().peekable();
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else { continue };
        let made = if place.is_directory || components.peek().is_some() {
            mkdirat(&at, name, Mode::from_raw_mode(0o755)).or_fail("mkdirat")
        } else {
            mknodat(&at, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0).or_fail("mknodat")
        };
        match made {
            Ok(()) | Err(Refusal { errno: Errno::EXIST, .. }) => {}
            Err(failure) => return Err(failure),
        }
        at = openat(&at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).or_fail("openat")?;
    }
    attach_tree(place.mount.as_fd(), at.as_fd())
}

/// mount_setattr(2) of what is mounted at `mount`.
fn set_attributes(mount: BorrowedFd<'_>, set: MountAttrFlags, recursive: bool) -> Result<(), Refusal> {
    inarch_mount::set_attributes(mount, set, recursive, false, None).or_fail("mount_setattr")
}

/// Names the system call of a result.
trait OrFail<T> {
    fn or_fail(self, call: &str) -> Result<T, Refusal>;
}

impl<T> OrFail<T> for Result<T, Errno> {
    fn or_fail(self, call: &str) -> Result<T, Refusal> {
        self.map_err(|errno| Refusal { what: call.to_owned(), errno })
    }
}
