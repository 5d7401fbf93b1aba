//! Attributes of files beneath the mounted root.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat,
    chownat, fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr, fstat, fstatfs, futimens, openat, statat,
    utimensat,
};
use rustix::io::Errno;

use crate::appliance::wire::{Bytes, NewAttributes};

/// Gives a new file the attributes of the one whose place it takes, then the wanted ones. Returns the extended attributes that its file
/// system does not take.
pub(super) fn set_on_new(
    new: &File,
    (directory, name): (&OwnedFd, &OsStr),
    old: Option<&Stat>,
    wanted: &NewAttributes,
) -> Result<Vec<Bytes>, Errno> {
    let is = fstat(new)?;
    let (uid, gid) = wanted.owner.or(old.map(|old| (old.st_uid, old.st_gid))).unwrap_or((is.st_uid, is.st_gid));
    if (uid, gid) != (is.st_uid, is.st_gid) {
        let owned = fchown(new, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        owned.or_else(|error| wanted.unless_it_keeps_none(new, error))?;
    }
    if old.is_some() {
        copy_xattrs(directory, name, new, wanted.copied)?;
    }
    if wanted.copied {
        remove_inherited_acls(new)?;
    }
    let lost = set_xattrs(new, &wanted.xattrs)?;
    // A file system without permissions has those of its mount, and takes no others.
    let mode = wanted.mode.or(old.map(|old| old.st_mode)).unwrap_or(0o644) & 0o7777;
    match fchmod(new, Mode::from_raw_mode(mode as RawMode)) {
        Err(Errno::PERM | Errno::OPNOTSUPP) if old.is_some_and(|old| old.st_mode & 0o7777 == is.st_mode & 0o7777) => {}
        Err(Errno::PERM) if old.is_none() => {}
        result => result.or_else(|error| wanted.unless_it_keeps_none(new, error))?,
    }
    if let Some(modified) = wanted.modified {
        futimens(new, &times(modified)).or_else(|error| wanted.unless_it_keeps_none(new, error))?;
    }
    Ok(lost)
}

/// Changes attributes of a file that is there. Returns the extended attributes that its file system does not take.
pub(super) fn change(directory: &OwnedFd, name: &OsStr, wanted: &NewAttributes) -> Result<Vec<Bytes>, Errno> {
    let NewAttributes { mode, owner, modified, xattrs, .. } = wanted;
    if let Some((uid, gid)) = *owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let owned = chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        owned.or_else(|error| wanted.unless_it_keeps_none(directory, error))?;
    }
    let mut lost = Vec::new();
    if !xattrs.is_empty() {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        lost = set_xattrs(&openat(directory, name, flags, Mode::empty())?.into(), xattrs)?;
    }
    if let Some(mode) = *mode {
        let is = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(is.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
        let changed = chmodat(directory, name, Mode::from_raw_mode((mode & 0o7777) as RawMode), AtFlags::empty());
        changed.or_else(|error| wanted.unless_it_keeps_none(directory, error))?;
    }
    if let Some(modified) = *modified {
        let timed = utimensat(directory, name, &times(modified), AtFlags::SYMLINK_NOFOLLOW);
        timed.or_else(|error| wanted.unless_it_keeps_none(directory, error))?;
    }
    Ok(lost)
}

impl NewAttributes {
    /// Passes over an error of a copy in a file system that has no owners and permissions, such as a FAT. Elsewhere, and where the user
    /// asked for an owner, the attribute is refused for another reason.
    fn unless_it_keeps_none(&self, file: impl AsFd, error: Errno) -> Result<(), Errno> {
        /// FAT, exFAT, NTFS by its own driver and by FUSE (linux/magic.h, and the drivers).
        const WITHOUT_OWNERS: [u32; 5] = [0x4d44, 0x2011_bab0, 0x5346_544e, 0x7366_746e, 0x6573_5546];
        let is_about_owners = matches!(error, Errno::PERM | Errno::OPNOTSUPP);
        let keeps_none = fstatfs(file).is_ok_and(|is| WITHOUT_OWNERS.contains(&(is.f_type as u32)));
        if self.copied && is_about_owners && keeps_none { Ok(()) } else { Err(error) }
    }
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

/// Sets extended attributes; returns those that the file system has no room or no place for.
fn set_xattrs(file: &File, xattrs: &[(Bytes, Bytes)]) -> Result<Vec<Bytes>, Errno> {
    let mut lost = Vec::new();
    for (name, value) in xattrs {
        match fsetxattr(file, OsStr::from_bytes(&name.0), &value.0, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL | Errno::NOSPC | Errno::TOOBIG | Errno::RANGE) => {
                lost.push(name.clone());
            }
            set => set?,
        }
    }
    Ok(lost)
}

/// Removes the ACLs that a new file has from its directory: a copy has those of its source, or none.
pub(super) fn remove_inherited_acls(new: &File) -> Result<(), Errno> {
    for name in [c"system.posix_acl_access", c"system.posix_acl_default"] {
        match fremovexattr(new, name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Gives a new file the extended attributes of the one whose place it takes. A copied file has its own capability and ACL, or none.
fn copy_xattrs(directory: &OwnedFd, name: &OsStr, new: &File, copied: bool) -> Result<(), Errno> {
    /// The longest value (`XATTR_SIZE_MAX`), and the longest list (`XATTR_LIST_MAX`).
    const MOST: usize = 65_536;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let old = openat(directory, name, flags, Mode::empty())?;
    let mut names = vec![0; MOST];
    let length = match flistxattr(&old, &mut names) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error),
    };
    let names = names.get(..length).unwrap_or_default();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        // Hashes of the content, which is another one now.
        if matches!(name, b"security.ima" | b"security.evm") {
            continue;
        }
        if copied && matches!(name, b"security.capability" | b"system.posix_acl_access") {
            continue;
        }
        let mut value = vec![0; MOST];
        let length = fgetxattr(&old, OsStr::from_bytes(name), &mut value)?;
        fsetxattr(new, OsStr::from_bytes(name), value.get(..length).unwrap_or_default(), XattrFlags::empty())?;
    }
    Ok(())
}
