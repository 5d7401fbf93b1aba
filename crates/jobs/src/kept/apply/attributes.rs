//! Owner, permissions, extended attributes and times of what an apply makes or changes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use inarch_tree::{FileType, InodeId, Tree};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, RawMode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat, fchmod,
    fchown, fremovexattr, fsetxattr, fstat, futimens, lremovexattr, lsetxattr, openat, statat, utimensat,
};
use rustix::io::Errno;

use super::host::{Directory, mtime};
use super::make::{MakeError, host};
use crate::kept::OwnersBack;

/// What is wanted of something on the host besides its content.
pub(super) struct Wanted<'a> {
    pub tree: &'a Tree,
    pub inode: InodeId,
    pub uid: u32,
    pub gid: u32,
    pub back: &'a OwnersBack,
    /// Attributes that are there and that the guest does not have.
    pub unwanted: Vec<Box<[u8]>>,
}

/// What of the attributes could not be had, for want of privilege or support: never a reason to leave the rest.
#[derive(Clone, Debug, Default)]
pub(super) struct Lost {
    pub owners: u64,
    pub xattrs: u64,
}

/// Something on the host.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// A file that is open.
    Open(BorrowedFd<'a>),
    /// What has this name in a directory, be it a symlink.
    Named(&'a Directory, &'a [u8]),
}

/// Sets owner, permissions, extended attributes and the time of the last change, in the order in which the one does
/// not undo the other, as far as they are not what is wanted. `inherits`: it may have got an ACL when it was made.
pub(super) fn set_attributes(
    target: Target<'_>,
    inherits: bool,
    wanted: &Wanted<'_>,
    lost: &mut Lost,
) -> Result<(), MakeError> {
    let inode = wanted.tree.inode(wanted.inode);
    let there = target.stat().map_err(host("look at"))?;
    let owner_differs = (there.st_uid, there.st_gid) != (wanted.uid, wanted.gid);
    if owner_differs {
        match target.chown(wanted.uid, wanted.gid) {
            Err(Errno::PERM) => lost.owners += 1,
            result => result.map_err(host("set the owner of"))?,
        }
    }
    let inherited = [&b"system.posix_acl_access"[..], b"system.posix_acl_default"].into_iter().filter(|_| inherits);
    for name in wanted.unwanted.iter().map(|name| &name[..]).chain(inherited) {
        // It may not be there.
        let _ = target.remove_xattr(name);
    }
    // Another owner, or an ACL less, may have changed them.
    let mode_differs = (there.st_mode ^ inode.mode()) & 0o7777 != 0;
    if inode.file_type() != FileType::Symlink && (mode_differs || owner_differs || inherits) {
        target.chmod(inode.mode() & 0o7777).map_err(host("set the permissions of"))?;
    }
    for xattr in wanted.tree.xattrs(inode.xattrs()) {
        let mut value = xattr.value.to_vec();
        if xattr.name.starts_with(b"system.posix_acl_") {
            wanted.back.acl(&mut value);
        }
        match target.set_xattr(&xattr.name, &value) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => lost.xattrs += 1,
            result => result.map_err(host("set the extended attributes of"))?,
        }
    }
    if mtime(&there) == inode.mtime() {
        return Ok(());
    }
    let time = inode.mtime();
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    };
    target.set_times(&times).map_err(host("set the time of"))
}

impl Target<'_> {
    fn stat(self) -> Result<Stat, Errno> {
        match self {
            Target::Open(file) => fstat(file),
            Target::Named(directory, name) => statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    fn chown(self, uid: u32, gid: u32) -> Result<(), Errno> {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        match self {
            Target::Open(file) => fchown(file, uid, gid),
            Target::Named(directory, name) => chownat(directory.as_fd(), name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    /// Sets permissions of what is no symlink: of a name by a descriptor, since the call itself would follow one.
    fn chmod(self, mode: u32) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(mode as RawMode);
        match self {
            Target::Open(file) => fchmod(file, mode),
            Target::Named(directory, name) => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = openat(directory.as_fd(), name, flags, Mode::empty())?;
                if rustix::fs::FileType::from_raw_mode(fstat(&opened)?.st_mode).is_symlink() {
                    return Err(Errno::LOOP);
                }
                rustix::fs::chmod(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()), mode)
            }
        }
    }

    fn set_xattr(self, attribute: &[u8], value: &[u8]) -> Result<(), Errno> {
        match self {
            Target::Open(file) => fsetxattr(file, attribute, value, XattrFlags::empty()),
            Target::Named(directory, name) => lsetxattr(directory.path_to(name), attribute, value, XattrFlags::empty()),
        }
    }

    fn remove_xattr(self, attribute: &[u8]) -> Result<(), Errno> {
        match self {
            Target::Open(file) => fremovexattr(file, attribute),
            Target::Named(directory, name) => lremovexattr(directory.path_to(name), attribute),
        }
    }

    fn set_times(self, times: &Timestamps) -> Result<(), Errno> {
        match self {
            Target::Open(file) => futimens(file, times),
            Target::Named(directory, name) => utimensat(directory.as_fd(), name, times, AtFlags::SYMLINK_NOFOLLOW),
        }
    }
}
