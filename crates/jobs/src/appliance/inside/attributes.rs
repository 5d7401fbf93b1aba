//! Attributes of files beneath the mounted root.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawMode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat,
    chownat, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, fstat, futimens, openat, statat, utimensat,
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
        owned.or_else(|error| wanted.unless_it_keeps_none(error))?;
    }
    if old.is_some() {
        copy_xattrs(directory, name, new)?;
    }
    let lost = set_xattrs(new, &wanted.xattrs)?;
    // A file system without permissions has those of its mount, and takes no others.
    let mode = wanted.mode.or(old.map(|old| old.st_mode)).unwrap_or(0o644) & 0o7777;
    match fchmod(new, Mode::from_raw_mode(mode as RawMode)) {
        Err(Errno::PERM | Errno::OPNOTSUPP) if old.is_some_and(|old| old.st_mode & 0o7777 == is.st_mode & 0o7777) => {}
        Err(Errno::PERM) if old.is_none() => {}
        result => result?,
    }
    // Last: the others change it.
    if let Some(modified) = wanted.modified {
        futimens(new, &times(modified)).or_else(|error| wanted.unless_it_keeps_none(error))?;
    }
    Ok(lost)
}

/// Changes attributes of a file that is there. Returns the extended attributes that its file system does not take.
pub(super) fn change(directory: &OwnedFd, name: &OsStr, wanted: &NewAttributes) -> Result<Vec<Bytes>, Errno> {
    let NewAttributes { mode, owner, modified, xattrs } = wanted;
    if let Some((uid, gid)) = *owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let owned = chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
        owned.or_else(|error| wanted.unless_it_keeps_none(error))?;
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
        changed.or_else(|error| wanted.unless_it_keeps_none(error))?;
    }
    if let Some(modified) = *modified {
        let timed = utimensat(directory, name, &times(modified), AtFlags::SYMLINK_NOFOLLOW);
        timed.or_else(|error| wanted.unless_it_keeps_none(error))?;
    }
    Ok(lost)
}

impl NewAttributes {
    /// A copy, which has a time, goes on where the file system cannot keep an attribute, such as an owner in a FAT. Who asks for an owner
    /// alone is told.
    fn unless_it_keeps_none(&self, error: Errno) -> Result<(), Errno> {
        match error {
            Errno::PERM | Errno::OPNOTSUPP if self.modified.is_some() => Ok(()),
            error => Err(error),
        }
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

fn copy_xattrs(directory: &OwnedFd, name: &OsStr, new: &File) -> Result<(), Errno> {
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
        let mut value = vec![0; MOST];
        let length = fgetxattr(&old, OsStr::from_bytes(name), &mut value)?;
        fsetxattr(new, OsStr::from_bytes(name), value.get(..length).unwrap_or_default(), XattrFlags::empty())?;
    }
    Ok(())
}
