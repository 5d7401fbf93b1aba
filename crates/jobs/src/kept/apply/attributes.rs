//! Owner, permissions, extended attributes and times of what an apply makes or changes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use inarch_tree::compare::Aspects;
use inarch_tree::{FileType, Inode, InodeId, Tree, Xattr};
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
    /// Whether the guest's owner or group is none that the host has: then the two are somebody else's.
    pub is_foreign: bool,
    pub back: &'a OwnersBack,
    /// Attributes that are there and that the guest does not have.
    pub unwanted: Vec<Box<[u8]>>,
}

/// What of the attributes could not be had, for want of privilege or support: never a reason to leave the rest.
#[derive(Clone, Debug, Default)]
pub(super) struct Lost {
    pub owners: u64,
    /// Owners that are outside of every range of ids.
    pub foreign: u64,
    /// Files without the privileges that they would give: their owner is another one.
    pub privileges: u64,
    pub xattrs: u64,
}

impl Lost {
    pub fn join(&mut self, other: &Lost) {
        self.owners += other.owners;
        self.foreign += other.foreign;
        self.privileges += other.privileges;
        self.xattrs += other.xattrs;
    }

    /// A line for each kind.
    pub fn lines(&self) -> Vec<String> {
        let line = |count: u64, text: &str| (count > 0).then(|| format!("{count} {text}"));
        let owners = line(self.owners, "files could not be set, for want of privilege")
            .map(|text| format!("the owners of {text}"));
        let foreign =
            line(self.foreign, "files are outside of every range of --map-uid and --map-gid, and were not set")
                .map(|text| format!("the owners of {text}"));
        let privileges = line(
            self.privileges,
            "files came without set-user-ID, set-group-ID or capabilities, since their owner is another",
        );
        let xattrs = line(self.xattrs, "extended attributes could not be set, for want of privilege or support");
        [owners, foreign, privileges, xattrs].into_iter().flatten().collect()
    }
}

/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

/// Something on the host.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// A file that is open.
    Open(BorrowedFd<'a>, &'a Directory),
    /// What has this name in a directory, be it a symlink.
    Named(&'a Directory, &'a [u8]),
}

/// The attributes that are set, and the extended ones that there were before.
#[derive(Clone, Copy)]
pub(super) struct Changed<'a> {
    pub aspects: Aspects,
    pub had: &'a [Xattr],
}

impl Changed<'_> {
    /// Of what was made just now: all.
    pub const ALL: Changed<'static> = Changed {
        aspects: Aspects {
            mode: true,
            owner: true,
            mtime: true,
            xattrs: true,
            file_type: false,
            content: false,
            inode: false,
        },
        had: &[],
    };
}

/// Sets owner, permissions, extended attributes and the time of the last change, in the order in which the one does
/// not undo the other, as far as they are `changed` and not what is wanted: the others stay the host's. `inherits`: it may have got an
/// ACL when it was made.
pub(super) fn set_attributes(
    target: Target<'_>,
    inherits: bool,
    changed: Changed<'_>,
    wanted: &Wanted<'_>,
    lost: &mut Lost,
) -> Result<(), MakeError> {
    let Changed { aspects, had } = changed;
    let inode = wanted.tree.inode(wanted.inode);
    let there = target.stat().map_err(host("look at"))?;
    let mut is_owned = !wanted.is_foreign;
    lost.foreign += u64::from(wanted.is_foreign && aspects.owner);
    let owner_differs = (there.st_uid, there.st_gid) != (wanted.uid, wanted.gid);
    if owner_differs && !aspects.owner {
        is_owned = false;
    } else if owner_differs {
        match target.chown(wanted.uid, wanted.gid) {
            Err(Errno::PERM) => {
                lost.owners += 1;
                is_owned = false;
            }
            result => result.map_err(host("set the owner of"))?,
        }
    }
    let inherited = [&b"system.posix_acl_access"[..], b"system.posix_acl_default"].into_iter().filter(|_| inherits);
    let unwanted = wanted.unwanted.iter().map(|name| &name[..]).filter(|_| aspects.xattrs);
    for name in unwanted.chain(inherited) {
        // It may not be there.
        let _ = target.remove_xattr(name);
    }
    // What a file may do in its owner's name it may not do in another's.
    let has_mode = if aspects.mode { inode.mode() } else { there.st_mode };
    let is_another = if aspects.mode { !is_owned } else { owner_differs && aspects.owner };
    let is_denied = is_another && inode.file_type() != FileType::Directory;
    let denied = if is_denied { has_mode & SET_ID } else { 0 };
    let mode = has_mode & 0o7777 & !denied;
    // Another owner, or an ACL less, may have changed them.
    let mode_differs = (there.st_mode ^ mode) & 0o7777 != 0;
    if inode.file_type() != FileType::Symlink && (mode_differs || (owner_differs && aspects.owner) || inherits) {
        target.chmod(mode).map_err(host("set the permissions of"))?;
    }
    let mut without = denied != 0;
    let xattrs = if aspects.xattrs { wanted.tree.xattrs(inode.xattrs()) } else { &[] };
    for xattr in xattrs.iter().filter(|xattr| !had.contains(xattr)) {
        let mut value = xattr.value.to_vec();
        if *xattr.name == *b"security.capability" && !is_owned {
            without = true;
            let _ = target.remove_xattr(&xattr.name);
            continue;
        }
        if xattr.name.starts_with(b"system.posix_acl_") && !wanted.back.acl(&mut value) {
            lost.foreign += 1;
            continue;
        }
        match target.set_xattr(&xattr.name, &value) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => lost.xattrs += 1,
            result => result.map_err(host("set the extended attributes of"))?,
        }
    }
    lost.privileges += u64::from(without);
    if aspects.mtime { set_time(target, inode, &there) } else { Ok(()) }
}

fn set_time(target: Target<'_>, inode: &Inode, there: &Stat) -> Result<(), MakeError> {
    if mtime(there) == inode.mtime() {
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
            Target::Open(file, _) => fstat(file),
            Target::Named(directory, name) => statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    fn call(self) -> Result<(), Errno> {
        match self {
            Target::Open(_, directory) | Target::Named(directory, _) => directory.call(),
        }
    }

    fn chown(self, uid: u32, gid: u32) -> Result<(), Errno> {
        self.call()?;
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        match self {
            Target::Open(file, _) => fchown(file, uid, gid),
            Target::Named(directory, name) => chownat(directory.as_fd(), name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    /// Sets permissions of what is no symlink: of a name by a descriptor, since the call itself would follow one.
    fn chmod(self, mode: u32) -> Result<(), Errno> {
        self.call()?;
        let mode = Mode::from_raw_mode(mode as RawMode);
        match self {
            Target::Open(file, _) => fchmod(file, mode),
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
        self.call()?;
        match self {
            Target::Open(file, _) => fsetxattr(file, attribute, value, XattrFlags::empty()),
            Target::Named(directory, name) => lsetxattr(directory.path_to(name), attribute, value, XattrFlags::empty()),
        }
    }

    fn remove_xattr(self, attribute: &[u8]) -> Result<(), Errno> {
        self.call()?;
        match self {
            Target::Open(file, _) => fremovexattr(file, attribute),
            Target::Named(directory, name) => lremovexattr(directory.path_to(name), attribute),
        }
    }

    fn set_times(self, times: &Timestamps) -> Result<(), Errno> {
        self.call()?;
        match self {
            Target::Open(file, _) => futimens(file, times),
            Target::Named(directory, name) => utimensat(directory.as_fd(), name, times, AtFlags::SYMLINK_NOFOLLOW),
        }
    }
}
