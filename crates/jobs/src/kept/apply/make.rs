//! Making what the guest has on the host: whole, before it gets a name that anybody looks for.

use std::os::fd::{AsRawFd, OwnedFd};

use inarch_block::{Content, read_content};
use inarch_tree::{DataRange, FileType, InodeId, Tree};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, RawMode, Timespec, Timestamps, UTIME_OMIT, Uid, chownat, linkat, lremovexattr,
    lsetxattr, makedev, mknodat, openat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::host::Directory;
use crate::kept::OwnersBack;

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// Why something cannot be made or changed.
#[derive(Debug)]
pub(super) enum MakeError {
    /// The guest's bytes cannot be read: the host's file that holds a part of them changed.
    Read,
    /// The host refused.
    Host(&'static str, Errno),
}

/// The host's answer to `action` as an error.
pub(super) fn host(action: &'static str) -> impl Fn(Errno) -> MakeError {
    move |errno| MakeError::Host(action, errno)
}

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

/// Makes a regular file with all its content and attributes, and gives it the name `name`, which nothing has.
pub(super) fn make_file(
    directory: &Directory,
    name: &[u8],
    content: &dyn Content,
    wanted: &Wanted<'_>,
    lost: &mut Lost,
) -> Result<(), MakeError> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let own = Mode::RUSR | Mode::WUSR;
    let by_name = |directory: &Directory| {
        openat(directory.as_fd(), name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, own)
    };
    let (file, named) = match openat(directory.as_fd(), c".", flags | OFlags::TMPFILE, own) {
        Ok(file) => (file, false),
        // Not every file system has files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => (by_name(directory).map_err(host("make"))?, true),
        Err(errno) => return Err(MakeError::Host("make", errno)),
    };
    let made = fill(&file, content, wanted).and_then(|()| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // By the path of the descriptor, whose last component is followed.
        set_attributes(Target::Followed(path.as_bytes()), directory.gives_acl, wanted, lost)?;
        if named {
            Ok(())
        } else {
            linkat(CWD, path, directory.as_fd(), name, AtFlags::SYMLINK_FOLLOW).map_err(host("name"))
        }
    });
    if made.is_err() && named {
        // The first error is the one that counts.
        let _ = directory.remove(name);
    }
    made
}

/// Copies what the guest's file holds; its holes stay holes.
fn fill(file: &OwnedFd, content: &dyn Content, wanted: &Wanted<'_>) -> Result<(), MakeError> {
    let size = wanted.tree.inode(wanted.inode).size();
    let whole = [DataRange { offset: 0, length: size }];
    let ranges = wanted.tree.sparse_ranges(wanted.inode).unwrap_or(&whole);
    let mut buffer = vec![0; size.min(PIECE as u64) as usize];
    let mut end = 0;
    for range in ranges {
        let stop = range.offset + range.length;
        let mut at = range.offset;
        while at < stop {
            let count = (stop - at).min(PIECE as u64) as usize;
            let piece = buffer.get_mut(..count).unwrap_or_default();
            read_content(content, wanted.inode, at, piece).map_err(|_| MakeError::Read)?;
            write_all(file, piece, at).map_err(host("write"))?;
            at += piece.len() as u64;
        }
        end = stop;
    }
    if end < size { rustix::fs::ftruncate(file, size).map_err(host("write")) } else { Ok(()) }
}

fn write_all(file: &OwnedFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => (bytes, at) = (&bytes[written..], at + written as u64),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Makes anything but a regular file, with its attributes but those of a directory, under `name`, which nothing has.
pub(super) fn make_other(
    directory: &Directory,
    name: &[u8],
    wanted: &Wanted<'_>,
    lost: &mut Lost,
) -> Result<(), MakeError> {
    let inode = wanted.tree.inode(wanted.inode);
    let node = |file_type, device| {
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(directory.as_fd(), name, file_type, mode, device).map_err(host("make the node"))
    };
    let device = makedev(inode.device().0, inode.device().1);
    match inode.file_type() {
        FileType::Symlink => {
            symlinkat(wanted.tree.symlink_target(wanted.inode), directory.as_fd(), name).map_err(host("make"))?
        }
        FileType::CharDevice => node(rustix::fs::FileType::CharacterDevice, device)?,
        FileType::BlockDevice => node(rustix::fs::FileType::BlockDevice, device)?,
        FileType::Fifo => node(rustix::fs::FileType::Fifo, 0)?,
        FileType::Socket => node(rustix::fs::FileType::Socket, 0)?,
        FileType::Directory => {
            return rustix::fs::mkdirat(directory.as_fd(), name, Mode::RWXU).map_err(host("make"));
        }
        FileType::Regular => return Err(MakeError::Host("make", Errno::INVAL)),
    }
    let made = set_attributes(Target::Itself(&directory.path_to(name)), directory.gives_acl, wanted, lost);
    if made.is_err() {
        let _ = directory.remove(name);
    }
    made
}

/// Something on the host by its path.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// What the path, a symlink to an open file in `/proc`, leads to.
    Followed(&'a [u8]),
    /// What has the path as its name, be it a symlink.
    Itself(&'a [u8]),
}

/// Sets owner, permissions, extended attributes and the time of the last change, in the order in which the one does
/// not undo the other.
pub(super) fn set_attributes(
    target: Target<'_>,
    has_acl: bool,
    wanted: &Wanted<'_>,
    lost: &mut Lost,
) -> Result<(), MakeError> {
    let inode = wanted.tree.inode(wanted.inode);
    let (path, flags) = match target {
        Target::Followed(path) => (path, AtFlags::empty()),
        Target::Itself(path) => (path, AtFlags::SYMLINK_NOFOLLOW),
    };
    match chownat(CWD, path, Some(Uid::from_raw(wanted.uid)), Some(Gid::from_raw(wanted.gid)), flags) {
        Err(Errno::PERM) => lost.owners += 1,
        result => result.map_err(host("set the owner of"))?,
    }
    let unwanted = wanted.unwanted.iter().map(|name| &name[..]);
    let inherited = if has_acl { &[&b"system.posix_acl_access"[..], b"system.posix_acl_default"][..] } else { &[] };
    for name in unwanted.chain(inherited.iter().copied()) {
        // It may not be there.
        let _ = match target {
            Target::Followed(path) => rustix::fs::removexattr(path, name),
            Target::Itself(path) => lremovexattr(path, name),
        };
    }
    if inode.file_type() != FileType::Symlink {
        chmod(target, inode.mode() & 0o7777).map_err(host("set the permissions of"))?;
    }
    for xattr in wanted.tree.xattrs(inode.xattrs()) {
        let mut value = xattr.value.to_vec();
        if xattr.name.starts_with(b"system.posix_acl_") {
            wanted.back.acl(&mut value);
        }
        let set = match target {
            Target::Followed(path) => rustix::fs::setxattr(path, &*xattr.name, &value, rustix::fs::XattrFlags::empty()),
            Target::Itself(path) => lsetxattr(path, &*xattr.name, &value, rustix::fs::XattrFlags::empty()),
        };
        match set {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => lost.xattrs += 1,
            result => result.map_err(host("set the extended attributes of"))?,
        }
    }
    let mtime = inode.mtime();
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanoseconds.into() },
    };
    utimensat(CWD, path, &times, flags).map_err(host("set the time of"))
}

/// Sets permissions of what is no symlink: of a name by a descriptor, since the call itself would follow one.
fn chmod(target: Target<'_>, mode: u32) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(mode as RawMode);
    match target {
        Target::Followed(path) => rustix::fs::chmod(path, mode),
        Target::Itself(path) => {
            let opened = openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            if rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(&opened)?.st_mode).is_symlink() {
                return Err(Errno::LOOP);
            }
            rustix::fs::chmod(format!("/proc/self/fd/{}", opened.as_raw_fd()), mode)
        }
    }
}
