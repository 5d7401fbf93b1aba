//! Writes, reads and removes files beneath the mounted root. Every path is resolved in it as in a chroot: an absolute
//! symbolic link of the guest leads to the guest's root, and `..` not above it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawMode, Stat, chmodat, fstat, fsync, linkat, makedev, mkdirat, mknodat, openat,
    readlinkat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::attributes;
use super::failure::Failure;
use super::made::MAX_LINKS;
use super::mounts::{Mounted, open_in_root};
use super::new_file::{NewFile, put};
use crate::appliance::wire::{Found, Kind, NewAttributes, PIECE, send};

/// A directory beneath the mounted root, and the name of a file in it that is no symbolic link, or that is wanted as a
/// link.
pub(super) struct Spot {
    pub directory: OwnedFd,
    pub name: OsString,
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    Followed,
    Taken,
}

/// Finds the directory that a path's last name is in.
pub(super) fn find(mounted: &Mounted, path: &[u8], last: Last) -> Result<Spot, Failure> {
    let root = mounted.root()?;
    let mut path = path.to_vec();
    for _ in 0..MAX_LINKS {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        path.truncate(end);
        let start = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let (above, name) = path.split_at(start);
        if path.is_empty() {
            return Err(Failure {
                text: "/: it is the root directory, which stays as it is".to_owned(),
                errno: Some(Errno::INVAL.raw_os_error()),
            });
        }
        if matches!(name, b"" | b"." | b"..") {
            return Err(Failure::at(&path, Errno::INVAL));
        }
        let directory = open_in_root(root, above, OFlags::PATH | OFlags::DIRECTORY);
        let directory = directory.map_err(|error| Failure::at(if above.is_empty() { b"/" } else { above }, error))?;
        let name = OsString::from_vec(name.to_vec());
        let target = match last {
            Last::Followed => readlinkat(&directory, &name, Vec::new()).ok(),
            Last::Taken => None,
        };
        let Some(target) = target else { return Ok(Spot { directory, name }) };
        let target = target.into_bytes();
        path = if target.starts_with(b"/") { target } else { [above, &target].concat() };
    }
    Err(Failure::at(&path, Errno::LOOP))
}

/// Opens a directory for reading.
fn reopened(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    openat(directory, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Writes a file under no name, then gives it its name in one step.
pub(super) fn write(
    mounted: &Mounted,
    path: &[u8],
    (wanted, only_new): (&NewAttributes, bool),
    data: &mut dyn Read,
) -> Result<Found, Failure> {
    let fail = |error: Errno| Failure::at(path, error);
    if wanted.copied {
        mounted.made.check_way(mounted.root()?, path)?;
    }
    let Spot { directory, name } = find(mounted, path, Last::Followed)?;
    mounted.check_place(directory.as_fd())?;
    let old = replaceable(path, &directory, &name)?;
    if only_new && old.is_some() {
        return Err(fail(Errno::EXIST));
    }
    if wanted.copied {
        mounted.made.spare(path, old.as_ref())?;
    }
    let mut new = NewFile::make(&directory).map_err(fail)?;
    let bytes = copy(data, &mut new.file).map_err(|error| Failure::at(path, error))?;
    let lost = attributes::set_on_new(&new.file, (&directory, &name), old.as_ref(), wanted).map_err(fail)?;
    fsync(&new.file).map_err(fail)?;
    let is = fstat(&new.file).map_err(fail)?;
    new.name(&directory, &name).map_err(fail)?;
    if wanted.copied {
        mounted.made.add(&is);
    }
    sync_names(&directory, wanted.copied && old.is_none()).map_err(fail)?;
    Ok(Found { bytes, was: old.is_some(), lost, ..Found::default() })
}

/// The regular file of that name, if there is one. Another kind of file is not replaced.
fn replaceable(path: &[u8], directory: &OwnedFd, name: &OsStr) -> Result<Option<Stat>, Failure> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(old) => match FileType::from_raw_mode(old.st_mode) {
            FileType::RegularFile => Ok(Some(old)),
            FileType::Directory => Err(Failure::at(path, Errno::ISDIR)),
            _ => Err(Failure::new(format!("{}: it is no regular file", String::from_utf8_lossy(path)))),
        },
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(Failure::at(path, error)),
    }
}

/// Copies data; pieces of zeros become holes.
fn copy(data: &mut dyn Read, file: &mut File) -> io::Result<u64> {
    let mut piece = vec![0; PIECE];
    let mut bytes = 0u64;
    loop {
        let length = data.read(&mut piece)?;
        let Some(read) = piece.get(..length).filter(|read| !read.is_empty()) else { break };
        if read.iter().any(|byte| *byte != 0) {
            io::Seek::seek(file, io::SeekFrom::Start(bytes))?;
            file.write_all(read)?;
        }
        bytes = bytes.saturating_add(length as u64);
    }
    file.set_len(bytes)?;
    Ok(bytes)
}

/// Sends a file.
pub(super) fn read(
    mounted: &Mounted,
    path: &[u8],
    (offset, count): (u64, u64),
    to: &mut File,
) -> Result<Found, Failure> {
    let fail = |error: io::Error| Failure::at(path, error);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open_in_root(mounted.root()?, path, flags).map_err(|error| Failure::at(path, error))?;
    let mut file = File::from(file);
    let kind = file.metadata().map_err(fail)?.file_type();
    if !kind.is_file() {
        return Err(Failure::at(path, if kind.is_dir() { Errno::ISDIR } else { Errno::INVAL }));
    }
    io::Seek::seek(&mut file, io::SeekFrom::Start(offset)).map_err(fail)?;
    let mut file = file.take(count);
    let mut piece = vec![0; PIECE];
    let mut bytes = 0;
    loop {
        let length = file.read(&mut piece).map_err(fail)?;
        let Some(read) = piece.get(..length).filter(|read| !read.is_empty()) else { break };
        send(to, Kind::Data, read).map_err(fail)?;
        bytes += length as u64;
    }
    Ok(Found { bytes, ..Found::default() })
}

/// Removes a file or a directory.
pub(super) fn remove(mounted: &Mounted, path: &[u8], recursive: bool) -> Result<(), Failure> {
    let fail = |error: Errno| Failure::at(path, error);
    let Spot { directory, name } = find(mounted, path, Last::Taken)?;
    mounted.check_place(directory.as_fd())?;
    let is = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
    if FileType::from_raw_mode(is.st_mode) != FileType::Directory {
        unlinkat(&directory, &name, AtFlags::empty()).map_err(fail)?;
    } else if !recursive {
        unlinkat(&directory, &name, AtFlags::REMOVEDIR).map_err(fail)?;
    } else {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let itself = openat(&directory, &name, flags, Mode::empty()).map_err(fail)?;
        if mounted.has_mount_in(itself.as_fd())? {
            return Err(Failure::new(format!(
                "{}: another volume is mounted on it or below it; remove its files first",
                String::from_utf8_lossy(path)
            )));
        }
        let place = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(&name);
        fs::remove_dir_all(place).map_err(|error| Failure::at(path, error))?;
    }
    reopened(&directory).and_then(fsync).map_err(fail)
}

/// Makes a directory, and those that it is in. The pair is what it gets: its mode, and whether it is copied.
pub(super) fn make_directory(
    mounted: &Mounted,
    path: &[u8],
    parents: bool,
    (mode, copied): (Option<u32>, bool),
) -> Result<(), Failure> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
    let mut parts: Vec<&[u8]> = ends.filter_map(|end| path.get(..end)).filter(|part| !part.is_empty()).collect();
    parts.dedup();
    let own = parts.pop().unwrap_or(path);
    if parents {
        for part in parts {
            make_one(mounted, part, (None, false), true)?;
        }
    }
    make_one(mounted, own, (mode, copied), parents)
}

fn make_one(
    mounted: &Mounted,
    path: &[u8],
    (mode, copied): (Option<u32>, bool),
    may_be_there: bool,
) -> Result<(), Failure> {
    let fail = |error: Errno| Failure::at(path, error);
    if copied {
        mounted.made.check_way(mounted.root()?, path)?;
    }
    if may_be_there && let Ok(there) = open_in_root(mounted.root()?, path, OFlags::PATH | OFlags::DIRECTORY) {
        if copied {
            let is = fstat(&there).map_err(fail)?;
            mounted.made.spare(path, Some(&is))?;
            mounted.made.add(&is);
        }
        return Ok(());
    }
    let Spot { directory, name } = find(mounted, path, Last::Taken)?;
    mounted.check_place(directory.as_fd())?;
    // The copy may end before the directory has its attributes.
    let usual = if copied { 0o700 } else { 0o755 };
    let wanted = Mode::from_raw_mode(mode.unwrap_or(usual) as RawMode);
    mkdirat(&directory, &name, wanted).map_err(fail)?;
    if mode.is_some() {
        // Beyond the mask.
        chmodat(&directory, &name, wanted, AtFlags::empty()).map_err(fail)?;
    }
    if copied {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(&directory, &name, flags, Mode::empty());
        let made = made.map_err(fail)?.into();
        attributes::remove_inherited_acls(&made).map_err(fail)?;
        mounted.made.add(&fstat(&made).map_err(fail)?);
    }
    sync_names(&directory, copied).map_err(fail)
}

/// Gives a file another name.
pub(super) fn rename(mounted: &Mounted, from: &[u8], to: &[u8]) -> Result<(), Failure> {
    let (old, new) = (find(mounted, from, Last::Taken)?, find(mounted, to, Last::Taken)?);
    mounted.check_place(new.directory.as_fd())?;
    renameat(&old.directory, &old.name, &new.directory, &new.name).map_err(|error| Failure::at(from, error))?;
    let synced = reopened(&old.directory).and_then(fsync).and_then(|()| reopened(&new.directory).and_then(fsync));
    synced.map_err(|error| Failure::at(to, error))
}

/// Gives a regular file another name.
pub(super) fn link(mounted: &Mounted, from: &[u8], to: &[u8], copied: bool) -> Result<(), Failure> {
    let fail = |error: Errno| Failure::at(to, error);
    if copied {
        mounted.made.check_way(mounted.root()?, to)?;
    }
    let old = find(mounted, from, Last::Followed)?;
    let Spot { directory, name } = find(mounted, to, Last::Followed)?;
    mounted.check_place(directory.as_fd())?;
    let Some(file) = replaceable(from, &old.directory, &old.name)? else {
        return Err(Failure::at(from, Errno::NOENT));
    };
    let other = replaceable(to, &directory, &name)?;
    let other = other.filter(|other| (other.st_dev, other.st_ino) != (file.st_dev, file.st_ino));
    if copied {
        mounted.made.spare(to, other.as_ref())?;
    }
    put(&directory, &name, |own| linkat(&old.directory, &old.name, &directory, own, AtFlags::empty())).map_err(fail)?;
    sync_names(&directory, copied && other.is_none()).map_err(fail)
}

/// Makes a symbolic link; if it `replaces`, in place of what is no directory.
pub(super) fn symlink(
    mounted: &Mounted,
    target: &[u8],
    path: &[u8],
    (wanted, replaces): (&NewAttributes, bool),
) -> Result<(), Failure> {
    let target = CString::new(target).map_err(|_| Failure::at(path, Errno::INVAL))?;
    make_special(mounted, path, (wanted, replaces), |directory, name| symlinkat(&*target, directory, name))
}

/// Makes a FIFO, a socket or a device, in place of what is no directory. The pair is its `st_mode` and its major and minor number.
pub(super) fn node(
    mounted: &Mounted,
    path: &[u8],
    (kind, (major, minor)): (u32, (u32, u32)),
    wanted: &NewAttributes,
) -> Result<(), Failure> {
    let kind = FileType::from_raw_mode(kind as RawMode);
    if !matches!(kind, FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice) {
        return Err(Failure::at(path, Errno::INVAL));
    }
    let make = |directory: &OwnedFd, name: &OsStr| {
        mknodat(directory, name, kind, Mode::RUSR | Mode::WUSR, makedev(major, minor))
    };
    make_special(mounted, path, (wanted, true), make)
}

/// Makes what is neither a regular file nor a directory; if it `replaces`, in place of what is no directory.
fn make_special(
    mounted: &Mounted,
    path: &[u8],
    (wanted, replaces): (&NewAttributes, bool),
    make: impl Fn(&OwnedFd, &OsStr) -> Result<(), Errno>,
) -> Result<(), Failure> {
    let fail = |error: Errno| Failure::at(path, error);
    let Spot { directory, name } = find(mounted, path, Last::Taken)?;
    mounted.check_place(directory.as_fd())?;
    let there = || statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW);
    let old = there().ok();
    if wanted.copied {
        mounted.made.spare(path, old.as_ref())?;
    }
    let make = |name: &OsStr| {
        make(&directory, name)?;
        attributes::change(&directory, name, wanted).map(drop)
    };
    if replaces { put(&directory, &name, make) } else { make(&name) }.map_err(fail)?;
    if wanted.copied {
        mounted.made.add(&there().map_err(fail)?);
    }
    sync_names(&directory, wanted.copied && old.is_none()).map_err(fail)
}

/// Has the names in a directory written, unless all that was done is a new name of a copy. Such names are written at the copy's end
/// ([`Ask::Sync`](super::super::wire::Ask::Sync)): before that it is not complete in any case. What replaced a file is written at once, because a
/// file system without a journal may use the blocks of the old file before the disk has the new name.
fn sync_names(directory: &OwnedFd, is_new_of_copy: bool) -> Result<(), Errno> {
    if is_new_of_copy { Ok(()) } else { reopened(directory).and_then(fsync) }
}

/// Changes attributes.
pub(super) fn change(mounted: &Mounted, path: &[u8], wanted: &NewAttributes) -> Result<Found, Failure> {
    let fail = |error: Errno| Failure::at(path, error);
    // The root keeps its attributes when a directory is copied to it.
    if wanted.copied && is_root(mounted, path)? {
        return Ok(Found::default());
    }
    let last = if wanted.mode.is_some() { Last::Followed } else { Last::Taken };
    let Spot { directory, name } = find(mounted, path, last)?;
    mounted.check_place(directory.as_fd())?;
    let lost = attributes::change(&directory, &name, wanted).map_err(fail)?;
    reopened(&directory).and_then(fsync).map_err(fail)?;
    Ok(Found { lost, ..Found::default() })
}

/// Whether a path leads to the root, whatever links it leads over.
fn is_root(mounted: &Mounted, path: &[u8]) -> Result<bool, Failure> {
    let root = mounted.root()?;
    let is = open_in_root(root, path, OFlags::PATH).and_then(fstat).map_err(|error| Failure::at(path, error))?;
    let root = fstat(root).map_err(|error| Failure::at(b"/", error))?;
    Ok((is.st_dev, is.st_ino) == (root.st_dev, root.st_ino))
}
