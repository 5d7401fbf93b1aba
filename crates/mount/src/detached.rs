//! Mounts that the kernel serves by itself: made detached, then attached to their mount point.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_fd,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};
use rustix::process::{getegid, geteuid};

use super::fuse::SUBTYPE;
use super::{DEVICE, Loop, Mount, MountError, MountId, Watch, set_attributes, table};

/// Why the kernel does not mount something.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {}", io::Error::from(*errno))]
pub struct Refusal {
    /// The system call, or the option.
    pub what: String,
    /// Its error.
    pub errno: Errno,
}

/// The system call, or the option, in words.
pub(crate) fn refused(what: impl Display) -> impl FnOnce(Errno) -> Refusal {
    move |errno| Refusal { what: what.to_string(), errno }
}

/// A detached mount. Dropping it unmounts it.
#[derive(Debug)]
pub struct Detached {
    mount: OwnedFd,
    /// Whether its file system is mounted nowhere else.
    is_own: bool,
    id: MountId,
}

/// The layers of an overlayfs (Linux's Documentation/filesystems/overlayfs.rst).
#[derive(Clone, Copy, Debug)]
pub struct Layers<'d> {
    /// The lower directory, which stays unchanged.
    pub lower: BorrowedFd<'d>,
    /// The upper directory, which receives what is written.
    pub upper: BorrowedFd<'d>,
    /// The work directory, where changes are prepared: beside the upper one, on the same file system.
    pub work: BorrowedFd<'d>,
    /// Whether what is written need not outlive a loss of power.
    pub is_thrown_away: bool,
}

impl Detached {
    /// A bind mount of a directory; with `recursive` including the mounts inside it.
    ///
    /// # Errors
    /// Those of open_tree(2) and mount_setattr(2): Linux 5.12 is needed.
    pub fn bind(
        directory: BorrowedFd<'_>,
        recursive: bool,
        attributes: MountAttrFlags,
        owners: Option<BorrowedFd<'_>>,
    ) -> Result<Detached, Refusal> {
        let mut flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
        let mount = open_tree(directory, "", flags).map_err(refused("open_tree"))?;
        let what = if owners.is_some() { "an idmapped mount of it" } else { "mount_setattr" };
        set_attributes(mount.as_fd(), attributes, recursive, true, owners).map_err(refused(what))?;
        let device = table::entry_of_file(directory).map(|entry| entry.device);
        let id = MountId::of_detached(mount.as_fd(), device).map_err(refused("statx"))?;
        Ok(Detached { mount, is_own: false, id })
    }

    /// An overlayfs. It writes only what the overlay of `inarch-vfs` understands: no file with content elsewhere
    /// (`metacopy`), no renamed directory (`redirect_dir`).
    ///
    /// # Errors
    /// The kernel has no overlayfs, or one of the file systems cannot be a layer.
    pub fn overlay(layers: Layers<'_>, source: &Path, attributes: MountAttrFlags) -> Result<Detached, Refusal> {
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(refused("overlay"))?;
        let set = |key: &str, value: &str| {
            fsconfig_set_string(context.as_fd(), key, value).map_err(refused(format_args!("overlay: {key}")))
        };
        // If this is refused, mount tables show another source.
        let _ = fsconfig_set_string(context.as_fd(), "source", source);
        set_directory(context.as_fd(), ["lowerdir+", "lowerdir"], layers.lower)?;
        set_directory(context.as_fd(), ["upperdir"; 2], layers.upper)?;
        set_directory(context.as_fd(), ["workdir"; 2], layers.work)?;
        for (key, value) in [("redirect_dir", "nofollow"), ("metacopy", "off"), ("index", "off"), ("xino", "auto")] {
            set(key, value)?;
        }
        if layers.is_thrown_away {
            fsconfig_set_flag(context.as_fd(), "volatile").map_err(refused("overlay: volatile"))?;
        }
        Detached::created(&context, "overlay", attributes)
    }

    /// An EROFS with its metadata on one device and its content on another.
    ///
    /// # Errors
    /// The kernel has no EROFS, or no support for that.
    pub fn erofs(metadata: &Loop, content: &Loop) -> Result<Detached, Refusal> {
        let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(refused("erofs"))?;
        // It would open the devices for writing.
        fsconfig_set_flag(context.as_fd(), "ro").map_err(refused("erofs: ro"))?;
        for (key, device) in [("source", metadata), ("device", content)] {
            let set = fsconfig_set_string(context.as_fd(), key, device.path());
            set.map_err(refused(format_args!("erofs: {key}")))?;
        }
        let attributes =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_RDONLY;
        Detached::created(&context, "erofs", attributes)
    }

    /// A file system in memory, with at most so many bytes and inodes.
    ///
    /// # Errors
    /// The kernel refuses that size.
    pub fn memory(bytes: u64, inodes: u64) -> Result<Detached, Refusal> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(refused("tmpfs"))?;
        for (key, value) in
            [("mode", "0700".to_owned()), ("size", bytes.to_string()), ("nr_inodes", inodes.to_string())]
        {
            fsconfig_set_string(context.as_fd(), key, value).map_err(refused(format_args!("tmpfs: {key}")))?;
        }
        Detached::created(&context, "tmpfs", MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV)
    }

    /// A FUSE file system whose root is a directory, and the descriptor for a session to serve. Every user sees it as its
    /// files' permissions say, which the kernel checks. Mount tables show `source`.
    ///
    /// # Errors
    /// There is no `/dev/fuse`, or the caller may not mount.
    pub fn fuse(source: &Path, attributes: MountAttrFlags) -> Result<(Detached, OwnedFd), Refusal> {
        let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(refused(DEVICE))?;
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC).map_err(refused("fuse"))?;
        let set = |key: &str, value: &Path| {
            fsconfig_set_string(context.as_fd(), key, value).map_err(refused(format_args!("fuse: {key}")))
        };
        set("source", source)?;
        set("subtype", Path::new(SUBTYPE))?;
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        for (key, value) in
            [("fd", device.as_raw_fd().to_string()), ("user_id", user.to_string()), ("group_id", group.to_string())]
        {
            set(key, Path::new(&value))?;
        }
        set("rootmode", Path::new("40000"))?;
        for key in ["allow_other", "default_permissions"] {
            fsconfig_set_flag(context.as_fd(), key).map_err(refused(format_args!("fuse: {key}")))?;
        }
        let detached = Detached::created(&context, "fuse", attributes)?;
        Ok((detached, device))
    }

    fn created(context: &OwnedFd, kind: &str, attributes: MountAttrFlags) -> Result<Detached, Refusal> {
        fsconfig_create(context.as_fd()).map_err(refused(kind))?;
        let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(refused("fsmount"))?;
        let id = MountId::of_detached(mount.as_fd(), None).map_err(refused("statx"))?;
        Ok(Detached { mount, is_own: true, id })
    }

    /// Its root.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// What tells it from other mounts, before it is attached and afterwards.
    pub fn id(&self) -> MountId {
        self.id
    }

    /// Attaches the mount to a directory, which was found at the absolute path `point`. The watch ends with the
    /// mount, or with its file system if that is mounted nowhere else.
    ///
    /// # Errors
    /// Those of move_mount(2) and inotify(7).
    pub fn attach(self, directory: BorrowedFd<'_>, point: &Path) -> Result<(Mount, Watch), MountError> {
        let fail = |errno: Errno| MountError::Refused { path: point.to_owned(), error: errno.into() };
        let watch = Watch::begin(self.is_own.then(|| self.root())).map_err(fail)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(self.mount.as_fd(), "", directory, "", flags).map_err(fail)?;
        let Some((place, _)) = table::entry_of(self.id.number()) else {
            // Its mount namespace is gone, or somebody unmounted the directory.
            return Err(fail(Errno::NOENT));
        };
        Ok((Mount { point: place, id: self.id }, watch.of(self.id)))
    }
}

/// Gives an overlayfs a layer. Before Linux 6.13 it accepts no descriptor, only a path that leads to one.
fn set_directory(context: BorrowedFd<'_>, keys: [&str; 2], directory: BorrowedFd<'_>) -> Result<(), Refusal> {
    let [by_descriptor, by_path] = keys;
    if fsconfig_set_fd(context, by_descriptor, directory).is_ok() {
        return Ok(());
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    fsconfig_set_string(context, by_path, path).map_err(refused(format_args!("overlay: {by_path}")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, Mode, OFlags, openat};

    use super::*;
    use crate::{Unmounted, mounted, place_of, unmount_wherever};

    #[test]
    fn a_directory_is_seen_where_it_is_bound_until_that_is_taken_away() {
        if !rustix::process::geteuid().is_root() {
            return println!(
                "skipped: a_directory_is_seen_where_it_is_bound_until_that_is_taken_away: only root mounts"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        for name in ["tree", "point"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("tree/file"), "content").unwrap();
        let open = |name: &str| {
            openat(CWD, dir.path().join(name), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .unwrap()
        };
        let bound = Detached::bind(open("tree").as_fd(), false, MountAttrFlags::MOUNT_ATTR_RDONLY, None).unwrap();
        let point = dir.path().join("point").canonicalize().unwrap();
        let id = bound.id();
        assert!(place_of(&id).is_none());
        let (mount, watch) = bound.attach(open("point").as_fd(), &point).unwrap();
        assert_eq!(mount.point(), point);
        assert!(mount.id() == id && id.is(&mounted(&point).unwrap()) && place_of(&id).is_some());
        assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "content");
        assert!(fs::write(point.join("file"), "").is_err());
        let waiting = std::thread::spawn(move || watch.wait());
        assert_eq!(unmount_wherever(&mount.id()).unwrap(), Unmounted::Clean);
        waiting.join().unwrap().unwrap();
        assert!(mounted(&point).is_none());
    }
}
