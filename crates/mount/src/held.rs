//! A handle of a mount that stays valid when directories above the mount are renamed.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, open, statx};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::table::{Entry, entry_of, is_gone, mounts_within};
use super::{MountError, MountId, helper, unmount_within};

/// A mount, held by the directory that contains it. If it were found by its path, the owner of a directory above
/// could place a symbolic link there between a look at the table and umount(2), and a privileged caller would unmount
/// another mount. The last component cannot be renamed as long as something is mounted there.
#[derive(Debug)]
pub struct Held {
    point: PathBuf,
    parent: OwnedFd,
    name: OsString,
    entry: Entry,
}

impl Held {
    /// Holds the mount that the table lists as `entry` at `point`, an absolute path.
    ///
    /// # Errors
    /// The path leads to another mount by now.
    pub fn new(point: &Path, entry: &Entry) -> Result<Held, MountError> {
        let refuse = |reason: String| MountError::Unmount { path: point.to_owned(), reason };
        let elsewhere = || refuse("the directories above it changed meanwhile; try again".to_owned());
        let (Some(directory), Some(name)) = (point.parent(), point.file_name()) else {
            return Err(refuse("it is the root of all files".to_owned()));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = match open(directory, flags, Mode::empty()) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(elsewhere()),
            Err(errno) => return Err(refuse(io::Error::from(errno).to_string())),
        };
        let held = Held { point: point.to_owned(), parent, name: name.to_owned(), entry: entry.clone() };
        if held.is_uppermost() { Ok(held) } else { Err(elsewhere()) }
    }

    /// Where it was when it was found.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Whether this mount is the uppermost one there. Does not contact its server, which may be dead.
    fn is_uppermost(&self) -> bool {
        let entry = &self.entry;
        let Ok(told) = self.numbers() else { return false };
        let is_device = entry.device.is(Some(told.stx_dev_major), Some(told.stx_dev_minor));
        match told.stx_mask & StatxFlags::MNT_ID.bits() {
            // Linux before 5.8 does not tell the number.
            0 => is_device,
            // Btrfs reports other device numbers than the table.
            _ => told.stx_mnt_id == entry.id && (is_device || !entry.is_fuse()),
        }
    }

    /// Unmounts the mounts inside it, unless they are in use.
    ///
    /// # Errors
    /// A mount inside is in use.
    pub fn unmount_within(&self) -> Result<(), MountError> {
        self.id().map_or(Ok(()), |id| unmount_within(&id))
    }

    /// All mounts within it, at any depth.
    pub fn mounts_within(&self) -> Vec<(PathBuf, Entry)> {
        self.id().map(|id| mounts_within(&id)).unwrap_or_default()
    }

    /// The numbers of the file system and of the mount that are uppermost there. No attributes are asked for: a FUSE mount denies those of
    /// its root to everybody but its user, root included (`fuse_getattr` in fs/fuse/dir.c).
    fn numbers(&self) -> Result<Statx, Errno> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        statx(self.parent.as_fd(), &self.name, flags, StatxFlags::empty())
    }

    fn id(&self) -> Option<MountId> {
        let (point, entry) = self.numbers().ok().and_then(|told| entry_of(told.stx_mnt_id))?;
        Some(MountId::of(&entry, &point))
    }

    /// Unmounts it; with `detach`, only removes it from the file tree (`MNT_DETACH`). Succeeds if another process has
    /// unmounted it meanwhile, such as the guard of a killed server.
    pub(super) fn unmount(&self, detach: bool) -> Result<(), MountError> {
        // umount(2) takes the uppermost mount at a path, and another process may have mounted one there since the last look.
        if !self.is_uppermost() {
            if is_gone(&self.entry) {
                return Ok(());
            }
            return Err(MountError::Covered { path: self.point.clone(), kind: "it came just now".to_owned() });
        }
        let flags = if detach { UnmountFlags::NOFOLLOW | UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
        let path = Path::new("/proc/self/fd").join(self.parent.as_raw_fd().to_string()).join(&self.name);
        match unmount(path, flags) {
            Ok(()) => Ok(()),
            Err(Errno::PERM) => helper::unmount(&self.point, detach),
            Err(Errno::INVAL | Errno::NOENT) if is_gone(&self.entry) => Ok(()),
            Err(Errno::BUSY) => Err(MountError::Busy { path: self.point.clone() }),
            Err(errno) => {
                let reason = io::Error::from(errno).to_string();
                Err(MountError::Unmount { path: self.point.clone(), reason })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounted;

    #[test]
    fn another_mount_in_its_way_is_not_taken_for_it() {
        let entry = mounted(Path::new("/proc")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        // A symbolic link leads to another place of the same name.
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        assert!(Held::new(Path::new("/proc"), &entry).is_ok());
        assert!(Held::new(&dir.path().join("root/proc"), &entry).is_ok());
        for point in ["proc", "root/dev", "root/none", "none/proc"] {
            let error = Held::new(&dir.path().join(point), &entry).unwrap_err().to_string();
            assert!(error.contains("changed meanwhile"), "{point}: {error}");
        }
        assert!(Held::new(Path::new("/"), &entry).is_err());
    }

    /// A mount that comes above a held one stays when the held one is to be unmounted.
    #[test]
    fn what_covers_it_meanwhile_stays() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: what_covers_it_meanwhile_stays: not root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().canonicalize().unwrap();
        let mount = |name: &str| {
            let made = std::process::Command::new("mount").args(["-t", "tmpfs", name]).arg(&point).status();
            assert!(made.unwrap().success());
        };
        mount("lower");
        let held = Held::new(&point, &mounted(&point).unwrap()).unwrap();
        mount("upper");
        for detach in [false, true] {
            let error = held.unmount(detach).unwrap_err().to_string();
            assert!(error.contains("another mount covers it"), "{error}");
        }
        let above = mounted(&point).unwrap();
        assert_eq!(above.source, Path::new("upper"));
        Held::new(&point, &above).unwrap().unmount(false).unwrap();
        held.unmount(false).unwrap();
        assert!(mounted(&point).is_none());
        // Another process was faster, such as the guard of a killed server: nothing covers a mount that is gone.
        held.unmount(false).unwrap();
    }
}
