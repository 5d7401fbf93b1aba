//! Makes on the host what the guest has. A file is whole before it gets a name that anybody looks for.

use std::os::fd::{AsFd, OwnedFd};

use inarch_block::{Content, Cursor, read_content};
use inarch_tree::{DataRange, FileType, InodeId};
use rustix::fs::{Mode, OFlags, RawMode, copy_file_range, major, makedev, minor, mknodat, openat, symlinkat};
use rustix::io::Errno;

use super::attributes::{Changed, Lost, Target, Wanted, set_attributes};
use super::calls::Ability;
use super::error::{MakeError, host};
use super::host::Object;
use super::host::{Directory, file_type};
use super::seen::Identity;

/// Bytes that are copied at once: they stay in a processor's cache between the read and the write.
const PIECE: usize = 256 << 10;

/// Makes a regular file with its content and attributes, and gives it the name `name`, which is free. `buffer` is for
/// copies. Where a file cannot be made without a name, it has the name `part` until it is whole. Returns its identity.
pub(super) fn make_file(
    directory: &Directory,
    name: &[u8],
    part: &[u8],
    content: &dyn Content,
    wanted: &Wanted<'_>,
    (lost, buffer): (&mut Lost, &mut Vec<u8>),
) -> Result<Identity, MakeError> {
    directory.call().map_err(host("make"))?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    // Nobody can open what has no name, so that it may have its permissions at once: most often no call more is needed.
    let mode = Mode::from_raw_mode((wanted.tree.inode(wanted.inode).mode() & 0o777) as RawMode);
    let by_name = |directory: &Directory| {
        let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        openat(directory.as_fd(), part, flags, Mode::RUSR | Mode::WUSR)
    };
    let unnamed = match directory.lacks(Ability::Unnamed) {
        true => Err(Errno::OPNOTSUPP),
        false => openat(directory.as_fd(), c".", flags | OFlags::TMPFILE, mode),
    };
    let (file, named) = match unnamed {
        Ok(file) => (file, false),
        // Not every file system has files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => (by_name(directory).map_err(host("make"))?, true),
        Err(errno) => return Err(MakeError::Host("make", errno)),
    };
    let made =
        directory.call().map_err(host("write")).and_then(|()| fill(&file, content, wanted, buffer)).and_then(|()| {
            let target = Target::Open(file.as_fd(), directory);
            let identity = set_attributes(target, directory.gives_acl, Changed::ALL, wanted, lost)?;
            directory.call().map_err(host("name"))?;
            if !named {
                directory.name(file.as_fd(), name).map_err(host("name"))?;
            } else if has_name(directory, part, identity) {
                directory.rename_new(part, directory, name).map_err(host("name"))?;
            } else {
                return Err(MakeError::Changed);
            }
            Ok(identity)
        });
    if made.is_err()
        && named
        && directory.stat_of(file.as_fd()).is_ok_and(|is| has_name(directory, part, Identity::of(&is)))
    {
        // The first error is the one that counts.
        let _ = directory.remove(part);
    }
    made
}

/// Whether a name in a directory leads to what was made there, and not to what somebody else put there.
pub(super) fn has_name(directory: &Directory, name: &[u8], identity: Identity) -> bool {
    matches!(directory.stat(name), Ok(Some(stat)) if Identity::of(&stat) == identity)
}

/// A file of the host with the guest's content.
pub(super) struct Same<'f>(pub &'f OwnedFd);

impl Content for Same<'_> {
    fn read(&self, _: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> std::io::Result<()> {
        let mut piece = vec![0; count.min(PIECE as u64) as usize];
        let (mut at, end) = (offset, offset.saturating_add(count));
        while at < end {
            let want = (end - at).min(PIECE as u64) as usize;
            match rustix::io::pread(self.0, piece.get_mut(..want).unwrap_or_default(), at)? {
                0 => {
                    out.fill_zeros(end - at);
                    at = end;
                }
                read => {
                    out.copy_from(piece.get(..read).unwrap_or_default());
                    at += read as u64;
                }
            }
        }
        Ok(())
    }
}

/// Ranges of at least so many bytes are copied by the kernel, or shared where the file system can (reflink).
const COPIED_FROM: u64 = 128 << 10;

/// Copies the content of a guest's file. Holes stay holes.
fn fill(file: &OwnedFd, content: &dyn Content, wanted: &Wanted<'_>, buffer: &mut Vec<u8>) -> Result<(), MakeError> {
    let size = wanted.tree.inode(wanted.inode).size();
    let whole = [DataRange { offset: 0, length: size }];
    let ranges = wanted.tree.sparse_ranges(wanted.inode).unwrap_or(&whole);
    buffer.resize(PIECE, 0);
    let mut end = 0;
    for range in ranges {
        let stop = range.offset + range.length;
        let copied = range.length >= COPIED_FROM && copy_range(file, content, wanted.inode, range)?;
        let mut at = if copied { stop } else { range.offset };
        while at < stop {
            let count = (stop - at).min(PIECE as u64) as usize;
            let piece = buffer.get_mut(..count).unwrap_or_default();
            read_content(content, wanted.inode, at, piece).map_err(|_| MakeError::Read)?;
            write_all(file, piece, at).map_err(host("write"))?;
            at += count as u64;
        }
        // The kernel may leave a hole at the end.
        end = if copied { end } else { stop };
    }
    if end < size { rustix::fs::ftruncate(file, size).map_err(host("write")) } else { Ok(()) }
}

/// Lets the kernel copy a range (`copy_file_range`). False if it cannot; a part may have been copied then.
fn copy_range(file: &OwnedFd, content: &dyn Content, inode: InodeId, range: &DataRange) -> Result<bool, MakeError> {
    let mut refused = None;
    let copied = content.lend(inode, range.offset, range.length, &mut |source, lent| {
        let (mut from, mut to) = (lent.at, lent.offset);
        while to < lent.offset + lent.length {
            let left = (lent.offset + lent.length - to) as usize;
            match copy_file_range(source, Some(&mut from), file, Some(&mut to), left) {
                Ok(0) => return Err(refuse(&mut refused, Errno::IO)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(refuse(&mut refused, errno)),
            }
        }
        Ok(())
    });
    match (copied, refused) {
        (Ok(copied), _) => Ok(copied),
        // Not between these file systems, or not of such files.
        (Err(_), Some(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM)) => Ok(false),
        (Err(_), Some(errno)) => Err(MakeError::Host("write", errno)),
        (Err(_), None) => Err(MakeError::Read),
    }
}

/// Notes why the host refused to copy.
fn refuse(refused: &mut Option<Errno>, errno: Errno) -> std::io::Error {
    *refused = Some(errno);
    errno.into()
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

/// Makes anything but a regular file under `name`, which is free, with its attributes unless it is a directory. `gone`
/// is a temporary name. Returns its identity.
pub(super) fn make_other(
    directory: &Directory,
    (name, gone): (&[u8], &[u8]),
    wanted: &Wanted<'_>,
    lost: &mut Lost,
) -> Result<Identity, MakeError> {
    directory.call().map_err(host("make"))?;
    let inode = wanted.tree.inode(wanted.inode);
    let node = |file_type, device| {
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(directory.as_fd(), name, file_type, mode, device).map_err(host("make"))
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
        FileType::Directory => rustix::fs::mkdirat(directory.as_fd(), name, Mode::RWXU).map_err(host("make"))?,
        FileType::Regular => return Err(MakeError::Host("make", Errno::INVAL)),
    }
    let object = directory.object(name).map_err(|errno| {
        if inode.file_type() == FileType::Directory {
            // The first error is the one that counts.
            let _ = directory.remove_directory(name);
        }
        MakeError::Host("look at", errno)
    })?;
    let object = object.ok_or(MakeError::Changed)?;
    if !is_made(&object, wanted).map_err(host("look at"))? {
        return Err(MakeError::Changed);
    }
    let identity = Identity::of(&object.stat);
    if inode.file_type() == FileType::Directory {
        return Ok(identity);
    }
    let target = Target::Held(object.as_fd(), directory, &object.stat);
    let made = set_attributes(target, directory.gives_acl, Changed::ALL, wanted, lost);
    if made.is_err() {
        // The first error is the one that counts.
        let _ = directory.remove_seen(name, gone, |stat| Identity::of(stat) == identity);
    }
    made
}

/// Whether something may be what was just made. The calls that make it return no descriptor. What it could be mistaken
/// for has the same content and no other name.
fn is_made(object: &Object, wanted: &Wanted<'_>) -> Result<bool, Errno> {
    let inode = wanted.tree.inode(wanted.inode);
    if file_type(&object.stat) != Some(inode.file_type()) {
        return Ok(false);
    }
    match inode.file_type() {
        FileType::Directory => object.is_empty(),
        _ if object.stat.st_nlink > 1 => Ok(false),
        FileType::Symlink => Ok(object.target()? == wanted.tree.symlink_target(wanted.inode)),
        FileType::CharDevice | FileType::BlockDevice => {
            Ok((major(object.stat.st_rdev), minor(object.stat.st_rdev)) == inode.device())
        }
        _ => Ok(true),
    }
}
