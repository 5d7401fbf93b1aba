//! Writes, reads and removes files beneath the mounted root. Every path is resolved in it as in a chroot: an absolute
//! symbolic link of the guest leads to the guest's root, and `..` not above it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawMode, ResolveFlags, Stat, Uid, XattrFlags, chmodat, chownat, fchmod,
    fchown, fgetxattr, flistxattr, fsetxattr, fstat, fsync, linkat, mkdirat, openat, openat2, readlinkat, renameat,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::failure::Failure;
use super::mounts::Mounted;
use crate::appliance::wire::{Found, Kind, PIECE, send};

/// Symbolic links on one way, at most: `MAXSYMLINKS` of Linux's include/linux/namei.h.
const MAX_LINKS: u32 = 40;

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

/// Opens a path beneath `root`.
pub(super) fn open_in_root(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = match path {
        [] => &b"/"[..],
        path => path,
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(root, OsStr::from_bytes(path), flags | OFlags::CLOEXEC, Mode::empty(), resolve)
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

/// What a new file is like: mode, owner, and whether there may be none already.
type Wish = (Option<u32>, Option<(u32, u32)>, bool);

/// Writes a file under no name, then gives it its name in one step.
pub(super) fn write(mounted: &Mounted, path: &[u8], wish: Wish, data: &mut dyn Read) -> Result<Found, Failure> {
    let (mode, owner, only_new) = wish;
    let fail = |error: Errno| Failure::at(path, error);
    let Spot { directory, name } = find(mounted, path, Last::Followed)?;
    mounted.check_place(directory.as_fd())?;
    let old = match statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) if only_new => return Err(fail(Errno::EXIST)),
        Ok(old) => match FileType::from_raw_mode(old.st_mode) {
            FileType::RegularFile => Some(old),
            FileType::Directory => return Err(fail(Errno::ISDIR)),
            _ => return Err(Failure::new(format!("{}: it is no regular file", String::from_utf8_lossy(path)))),
        },
        Err(Errno::NOENT) => None,
        Err(error) => return Err(fail(error)),
    };
    let mut new = NewFile::make(&directory).map_err(fail)?;
    let bytes = copy(data, &mut new.file).map_err(|error| Failure::at(path, error))?;
    set_attributes(&new.file, (&directory, &name), old.as_ref(), mode, owner).map_err(fail)?;
    fsync(&new.file).map_err(fail)?;
    new.name(&directory, &name).map_err(fail)?;
    reopened(&directory).and_then(fsync).map_err(fail)?;
    Ok(Found { bytes, was: old.is_some(), is: false })
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

/// A file that has no name yet, or one that nobody knows.
struct NewFile {
    file: File,
    /// Where it is, if the file system has no files without names.
    named: Option<(OwnedFd, OsString)>,
}

impl NewFile {
    fn make(directory: &OwnedFd) -> Result<NewFile, Errno> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match openat(directory, c".", flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => return Ok(NewFile { file: file.into(), named: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS | Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let name = unused_name();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, &name, flags, Mode::from_raw_mode(0o600))?;
        let directory = directory.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        Ok(NewFile { file: file.into(), named: Some((directory, name)) })
    }

    /// Gives it its name, in place of another file that has it.
    fn name(mut self, directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
        if let Some((_, own)) = &self.named {
            renameat(directory, own, directory, name)?;
            self.named = None;
            return Ok(());
        }
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let own = unused_name();
        linkat(rustix::fs::CWD, link, directory, &own, AtFlags::SYMLINK_FOLLOW)?;
        renameat(directory, &own, directory, name).inspect_err(|_| {
            let _ = unlinkat(directory, &own, AtFlags::empty());
        })
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some((directory, name)) = &self.named {
            let _ = unlinkat(directory, name, AtFlags::empty());
        }
    }
}

fn unused_name() -> OsString {
    let mut random = [0; 8];
    let _ = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random));
    format!(".inarch-{:016x}", u64::from_le_bytes(random)).into()
}

/// Gives a new file the attributes of the one whose place it takes, or those of the wish.
fn set_attributes(
    new: &File,
    (directory, name): (&OwnedFd, &OsStr),
    old: Option<&Stat>,
    mode: Option<u32>,
    owner: Option<(u32, u32)>,
) -> Result<(), Errno> {
    let is = fstat(new)?;
    let (uid, gid) = owner.or(old.map(|old| (old.st_uid, old.st_gid))).unwrap_or((is.st_uid, is.st_gid));
    if (uid, gid) != (is.st_uid, is.st_gid) {
        fchown(new, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    if old.is_some() {
        copy_xattrs(directory, name, new)?;
    }
    // A file system without permissions has those of its mount, and takes no others.
    let mode = mode.or(old.map(|old| old.st_mode)).unwrap_or(0o644) & 0o7777;
    match fchmod(new, Mode::from_raw_mode(mode as RawMode)) {
        Err(Errno::PERM | Errno::OPNOTSUPP) if old.is_some_and(|old| old.st_mode & 0o7777 == is.st_mode & 0o7777) => {
            Ok(())
        }
        Err(Errno::PERM) if old.is_none() => Ok(()),
        result => result,
    }
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

/// Makes a directory, and those that it is in.
pub(super) fn make_directory(mounted: &Mounted, path: &[u8], parents: bool, mode: Option<u32>) -> Result<(), Failure> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at).chain([path.len()]);
    let mut parts: Vec<&[u8]> = ends.filter_map(|end| path.get(..end)).filter(|part| !part.is_empty()).collect();
    parts.dedup();
    let own = parts.pop().unwrap_or(path);
    if parents {
        for part in parts {
            make_one(mounted, part, None, true)?;
        }
    }
    make_one(mounted, own, mode, parents)
}

fn make_one(mounted: &Mounted, path: &[u8], mode: Option<u32>, may_be_there: bool) -> Result<(), Failure> {
    let fail = |error: Errno| Failure::at(path, error);
    if may_be_there && open_in_root(mounted.root()?, path, OFlags::PATH | OFlags::DIRECTORY).is_ok() {
        return Ok(());
    }
    let Spot { directory, name } = find(mounted, path, Last::Taken)?;
    mounted.check_place(directory.as_fd())?;
    let wanted = Mode::from_raw_mode(mode.unwrap_or(0o755) as RawMode);
    mkdirat(&directory, &name, wanted).map_err(fail)?;
    if mode.is_some() {
        // Beyond the mask.
        chmodat(&directory, &name, wanted, AtFlags::empty()).map_err(fail)?;
    }
    reopened(&directory).and_then(fsync).map_err(fail)
}

/// Gives a file another name.
pub(super) fn rename(mounted: &Mounted, from: &[u8], to: &[u8]) -> Result<(), Failure> {
    let (old, new) = (find(mounted, from, Last::Taken)?, find(mounted, to, Last::Taken)?);
    mounted.check_place(new.directory.as_fd())?;
    renameat(&old.directory, &old.name, &new.directory, &new.name).map_err(|error| Failure::at(from, error))?;
    let synced = reopened(&old.directory).and_then(fsync).and_then(|()| reopened(&new.directory).and_then(fsync));
    synced.map_err(|error| Failure::at(to, error))
}

/// Makes a symbolic link.
pub(super) fn symlink(mounted: &Mounted, target: &[u8], path: &[u8]) -> Result<(), Failure> {
    let fail = |error: Errno| Failure::at(path, error);
    let target = CString::new(target).map_err(|_| fail(Errno::INVAL))?;
    let Spot { directory, name } = find(mounted, path, Last::Taken)?;
    mounted.check_place(directory.as_fd())?;
    symlinkat(&*target, &directory, &name).map_err(fail)?;
    reopened(&directory).and_then(fsync).map_err(fail)
}

/// Changes permissions and owner.
pub(super) fn change(
    mounted: &Mounted,
    path: &[u8],
    mode: Option<u32>,
    owner: Option<(u32, u32)>,
) -> Result<(), Failure> {
    let fail = |error: Errno| Failure::at(path, error);
    let Spot { directory, name } = find(mounted, path, if mode.is_some() { Last::Followed } else { Last::Taken })?;
    mounted.check_place(directory.as_fd())?;
    if let Some((uid, gid)) = owner {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        chownat(&directory, &name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
    }
    if let Some(mode) = mode {
        let is = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
        if FileType::from_raw_mode(is.st_mode) == FileType::Symlink {
            return Err(fail(Errno::LOOP));
        }
        chmodat(&directory, &name, Mode::from_raw_mode((mode & 0o7777) as RawMode), AtFlags::empty()).map_err(fail)?;
    }
    reopened(&directory).and_then(fsync).map_err(fail)
}
