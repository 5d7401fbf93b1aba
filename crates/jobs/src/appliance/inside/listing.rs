//! Tells the attributes of files.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat, major, minor, readlinkat, statat};
use rustix::io::Errno;

use super::failure::Failure;
use super::files::{Last, find};
use super::mounts::Mounted;
use super::mounts::open_in_root;
use crate::appliance::wire::{Bytes, Entry, Kind, send};

/// Sends the entries of a directory, or one entry of a file.
pub(super) fn list(
    mounted: &Mounted,
    path: &[u8],
    (itself, followed): (bool, bool),
    to: &mut File,
) -> Result<(), Failure> {
    let fail = |error: Errno| Failure::at(path, error);
    let root = mounted.root()?;
    if path.iter().all(|byte| matches!(byte, b'/' | b'.')) && itself {
        let directory = open_in_root(root, b"/", OFlags::PATH | OFlags::DIRECTORY).map_err(fail)?;
        return tell(&directory, OsStr::new("."), b"/", to).map_err(fail);
    }
    if !itself {
        match open_in_root(root, path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => return list_directory(&directory, to).map_err(fail),
            Err(Errno::NOTDIR) => {}
            Err(error) => return Err(fail(error)),
        }
    }
    if itself
        && followed
        && let Ok(directory) = open_in_root(root, path, OFlags::PATH | OFlags::DIRECTORY)
    {
        return tell(&directory, OsStr::new("."), b".", to).map_err(fail);
    }
    let spot = find(mounted, path, Last::Taken)?;
    tell(&spot.directory, &spot.name, spot.name.as_bytes(), to).map_err(fail)
}

fn list_directory(directory: &OwnedFd, to: &mut File) -> Result<(), Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            tell(directory, OsStr::from_bytes(name), name, to)?;
        }
    }
    Ok(())
}

fn tell(directory: &OwnedFd, name: &OsStr, shown: &[u8], to: &mut File) -> Result<(), Errno> {
    let Stat { st_mode, st_uid, st_gid, st_size, st_nlink, st_ino, st_rdev, st_mtime, st_mtime_nsec, .. } =
        statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_link = FileType::from_raw_mode(st_mode) == FileType::Symlink;
    let target = is_link.then(|| readlinkat(directory, name, Vec::new())).transpose()?;
    let entry = Entry {
        name: Bytes(shown.to_vec()),
        mode: st_mode,
        uid: st_uid,
        gid: st_gid,
        size: u64::try_from(st_size).unwrap_or_default(),
        links: st_nlink,
        inode: st_ino,
        device: (major(st_rdev), minor(st_rdev)),
        modified: (st_mtime, st_mtime_nsec as u32),
        target: target.map(|target| Bytes(target.into_bytes())),
    };
    let text = serde_json::to_vec(&entry).map_err(|_| Errno::INVAL)?;
    send(to, Kind::Data, &text).map_err(|_| Errno::PIPE)
}
