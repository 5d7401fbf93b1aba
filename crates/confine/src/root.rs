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

#![allow(unsafe_code, reason = "unshare(2)")]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mkdirat, mknodat, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};

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
    try_enter(places, writable).map_err(|(call, errno)| format!("{call}: {errno}"))
}

/// A path that the new root will have.
struct Place<'p> {
    path: &'p Path,
    mount: OwnedFd,
    is_directory: bool,
}

impl<'p> Place<'p> {
    /// Clones the mount at `path` with all mounts beneath it. A path that was named itself may be a device.
    fn take(path: &'p Path, writable: bool) -> Result<Place<'p>, Failure> {
        let mount = clone_of(path)?;
        let is_directory = FileType::from_raw_mode(fstat(&mount).or_fail("fstat")?.st_mode) == FileType::Directory;
        let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID;
        flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, is_directory);
        flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, !writable);
        set_attributes(mount.as_fd(), flags, true)?;
        Ok(Place { path, mount, is_directory })
    }
}

/// The system call that failed, and its error.
type Failure = (&'static str, Errno);

fn try_enter(places: &[PathBuf], writable: bool) -> Result<(), Failure> {
    // SAFETY: CLONE_NEWNS gives the thread mounts, a root and a working directory of its own; it affects no descriptor
    // and no memory.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.or_fail("unshare")?;
    // Mounts of the host propagate into this namespace, not the other way round.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).or_fail("mount")?;
    let places = places.iter().map(|path| Place::take(path, writable)).collect::<Result<Vec<_>, _>>()?;
    let own = Path::new("/proc/self");
    let own = Place { path: own, mount: clone_of(own)?, is_directory: true };
    let root = new_root()?;
    // Mount it over the old root, which pivot_root then replaces.
    move_mount(root.as_fd(), "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).or_fail("move_mount")?;
    let entered = (|| {
        places.iter().chain([&own]).try_for_each(|place| attach(root.as_fd(), place))?;
        set_attributes(root.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, false)?;
        fchdir(&root).or_fail("fchdir")?;
        // The old root is then mounted over the new one, see pivot_root(2).
        pivot_root(".", ".").or_fail("pivot_root")
    })();
    if let Err(failure) = entered {
        // Fails only if it is gone already.
        let _ = fchdir(&root).and_then(|()| unmount(".", UnmountFlags::DETACH));
        let _ = chdir("/");
        return Err(failure);
    }
    unmount(".", UnmountFlags::DETACH).or_fail("umount2")?;
    chdir("/").or_fail("chdir")
}

/// An empty file system in memory, mounted nowhere yet.
fn new_root() -> Result<OwnedFd, Failure> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).or_fail("fsopen")?;
    fsconfig_set_string(context.as_fd(), "mode", "0755").or_fail("fsconfig")?;
    fsconfig_create(context.as_fd()).or_fail("fsconfig")?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags).or_fail("fsmount")
}

/// What is at `path` with all that is mounted beneath it, mounted nowhere yet.
fn clone_of(path: &Path) -> Result<OwnedFd, Failure> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags).or_fail("open_tree")
}

/// Mounts `place` within `root`. Makes its directories first, or a file where the place is not a directory.
fn attach(root: BorrowedFd<'_>, place: &Place<'_>) -> Result<(), Failure> {
    let mut at = root.try_clone_to_owned().map_err(|_| ("fcntl", Errno::MFILE))?;
    let mut components = place.path.components().peekable();
    while let Some(component) = components.next() {
        let Component::Normal(name) = component else { continue };
        let made = if place.is_directory || components.peek().is_some() {
            mkdirat(&at, name, Mode::from_raw_mode(0o755)).or_fail("mkdirat")
        } else {
            mknodat(&at, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0).or_fail("mknodat")
        };
        match made {
            Ok(()) | Err((_, Errno::EXIST)) => {}
            Err(failure) => return Err(failure),
        }
        at = openat(&at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).or_fail("openat")?;
    }
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(place.mount.as_fd(), "", at.as_fd(), "", flags).or_fail("move_mount")
}

/// mount_setattr(2) of what is mounted at `mount`.
fn set_attributes(mount: BorrowedFd<'_>, set: MountAttrFlags, recursive: bool) -> Result<(), Failure> {
    inarch_mount::set_attributes(mount, set, recursive, false, None).or_fail("mount_setattr")
}

/// Names the system call of a result.
trait OrFail<T> {
    fn or_fail(self, call: &'static str) -> Result<T, Failure>;
}

impl<T> OrFail<T> for Result<T, Errno> {
    fn or_fail(self, call: &'static str) -> Result<T, Failure> {
        self.map_err(|errno| (call, errno))
    }
}
