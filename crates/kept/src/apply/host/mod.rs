//! Reaches the host's tree one directory at a time: no symlink is followed, and nothing leads out of the tree.

mod object;
mod pretend;

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use inarch_tree::{FileType, Inode, Timestamp};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, Stat, linkat, openat, openat2, readlinkat, renameat_with,
    statat, unlinkat,
};
use rustix::io::Errno;

use super::calls::{Ability, Calls};
use super::paths::is_beneath;
use crate::VolumeId;

pub(super) use object::{Object, path_of};
use pretend::Pretended;

/// Directories that stay open between steps.
const OPEN_MAX: usize = 64;
/// Bytes of a path that are given to the kernel at once: below PATH_MAX.
const PATH_PIECE: usize = 4000;
/// The most bytes of a path that are walked in one step.
const NEAR: usize = 512;
/// The longest value of an extended attribute in bytes (include/uapi/linux/limits.h).
const XATTR_SIZE_MAX: usize = 65536;

/// A directory of the host that is open.
#[derive(Clone)]
pub(super) struct Directory {
    fd: Arc<OwnedFd>,
    calls: Calls,
    /// Whether it has a default ACL, which what is made in it inherits.
    pub gives_acl: bool,
}

impl Directory {
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A path to `name` in it, for the calls that take no descriptor of a directory. The name itself may be a symlink.
    pub fn path_to(&self, name: &[u8]) -> Vec<u8> {
        [format!("/proc/self/fd/{}/", self.fd.as_raw_fd()).as_bytes(), name].concat()
    }

    /// To be asked before each call that looks at the host or changes it.
    pub fn call(&self) -> Result<(), Errno> {
        self.calls.next()
    }

    /// Whether a test treats its file system as one that lacks an ability.
    pub fn lacks(&self, ability: Ability) -> bool {
        self.calls.lacks(ability)
    }

    /// What is called `name` in it. `None` if there is nothing.
    pub fn stat(&self, name: &[u8]) -> Result<Option<Stat>, Errno> {
        self.call()?;
        match statat(&*self.fd, &*self.found_as(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(self.calls.seen(self.fd.as_fd(), stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// What a descriptor holds.
    pub fn stat_of(&self, file: BorrowedFd<'_>) -> Result<Stat, Errno> {
        Ok(self.calls.seen(self.fd.as_fd(), rustix::fs::fstat(file)?))
    }

    /// The name that it finds for `name`.
    pub fn found_as<'n>(&self, name: &'n [u8]) -> Cow<'n, [u8]> {
        self.calls.found_as(self.fd.as_fd(), name)
    }

    /// The file system and the mount that it is in. No file has names in two of these.
    pub fn volume(&self) -> Result<Volume, Errno> {
        let device = self.stat(b".")?.ok_or(Errno::NOENT)?.st_dev;
        let flags = AtFlags::EMPTY_PATH;
        // Before Linux 5.8 without the mount.
        let mount =
            rustix::fs::statx(&*self.fd, c"", flags, rustix::fs::StatxFlags::MNT_ID).map_or(0, |stat| stat.stx_mnt_id);
        Ok(Volume { device, mount })
    }

    /// A regular file in it, to be read.
    pub fn open_file(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        self.call()?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(&*self.fd, &*self.found_as(name), flags, Mode::empty())
    }

    /// The names in it.
    pub fn names(&self) -> Result<Vec<Vec<u8>>, Errno> {
        self.names_of(b".")
    }

    /// The names in a directory in it.
    pub fn names_of(&self, name: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        self.call()?;
        let opened = openat(
            &*self.fd,
            name,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(opened)? {
            let name = entry?.file_name().to_bytes().to_owned();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The value of an extended attribute of what is called `name`, if it has it.
    pub fn xattr(&self, name: &[u8], attribute: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let mut value = vec![0; XATTR_SIZE_MAX];
        match rustix::fs::lgetxattr(self.path_to(name), attribute, &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                Ok(Some(value))
            }
            Err(Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Waits until a file in it, and its name, is on the disk.
    pub fn sync_file(&self, name: &[u8]) -> Result<(), Errno> {
        let is_file = self.stat(name)?.is_some_and(|stat| file_type(&stat) == Some(FileType::Regular));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&*self.fd, c".", flags, Mode::empty())?;
        // Another kind of file has no content besides its inode.
        if is_file {
            match self.open_file(name) {
                Ok(file) => {
                    rustix::fs::fsync(&file)?;
                    self.calls.synced(rustix::fs::fstat(&file)?.st_ino);
                }
                // The file's mode may keep this user from opening it.
                Err(Errno::ACCESS) => rustix::fs::syncfs(&directory)?,
                Err(errno) => return Err(errno),
            }
        }
        rustix::fs::fsync(directory)
    }

    pub fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.call()?;
        readlinkat(&*self.fd, name, Vec::new()).map(|target| target.into_bytes())
    }

    /// Removes a name that is no directory, if it is there.
    pub fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        self.call()?;
        self.calls.goes(&self.fd, name);
        match unlinkat(&*self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    pub fn remove_directory(&self, name: &[u8]) -> Result<(), Errno> {
        self.call()?;
        self.calls.goes(&self.fd, name);
        unlinkat(&*self.fd, name, AtFlags::REMOVEDIR)
    }

    /// Gives what is called `from`, a temporary name of ours, the name `to` in another directory, which is free. What
    /// takes that name in this moment stays (`EXIST`).
    pub fn rename_new(&self, from: &[u8], other: &Directory, to: &[u8]) -> Result<(), Errno> {
        match self.rename_no_replace(from, other, to) {
            // Nor does link(2) replace anything, on any file system.
            Err(Errno::INVAL) => match self.link_by_name(from, other, to) {
                Ok(()) => self.remove(from),
                // A directory, whose rename replaces an empty one at most; or a file system without links.
                Err(Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.rename_after_look(from, other, to)
                }
                Err(errno) => Err(errno),
            },
            result => result,
        }
    }

    /// Gives what is called `name` the name `to` in another directory, a temporary one of ours, which is free.
    pub fn set_aside(&self, name: &[u8], other: &Directory, to: &[u8]) -> Result<(), Errno> {
        match self.rename_no_replace(name, other, to) {
            // By links it would go wrong if something else took `name` in between: that would be removed.
            Err(Errno::INVAL) => self.rename_after_look(name, other, to),
            result => result,
        }
    }

    /// `INVAL` if the file system cannot promise that it replaces nothing.
    fn rename_no_replace(&self, from: &[u8], other: &Directory, to: &[u8]) -> Result<(), Errno> {
        self.call()?;
        match self.lacks(Ability::NoReplace) {
            true => Err(Errno::INVAL),
            false => renameat_with(&*self.fd, from, &*other.fd, to, RenameFlags::NOREPLACE),
        }
    }

    fn rename_after_look(&self, from: &[u8], other: &Directory, to: &[u8]) -> Result<(), Errno> {
        if other.stat(to)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.call()?;
        renameat_with(&*self.fd, from, &*other.fd, to, RenameFlags::empty())
    }

    fn link_by_name(&self, from: &[u8], other: &Directory, to: &[u8]) -> Result<(), Errno> {
        self.call()?;
        match self.lacks(Ability::Link) {
            true => Err(Errno::PERM),
            false => linkat(&*self.fd, from, &*other.fd, to, AtFlags::empty()),
        }
    }

    /// Links something that is in it to the name `to` in another directory.
    pub fn link(&self, object: &Object, other: &Directory, to: &[u8]) -> Result<(), Errno> {
        self.call()?;
        if self.lacks(Ability::Link) {
            return Err(Errno::PERM);
        }
        if self.calls.are_apart(self.fd.as_fd(), other.fd.as_fd()) {
            return Err(Errno::XDEV);
        }
        other.name(object.as_fd(), to)
    }

    /// Exchanges two names. `away` is a free name, for file systems that cannot do this in one step.
    pub fn exchange(&self, name: &[u8], other: &Directory, with: &[u8], away: &[u8]) -> Result<(), Errno> {
        self.call()?;
        let exchanged = match self.lacks(Ability::Exchange) {
            true => Err(Errno::INVAL),
            false => renameat_with(&*self.fd, name, &*other.fd, with, RenameFlags::EXCHANGE),
        };
        match exchanged {
            Err(Errno::INVAL | Errno::NOSYS) => {
                other.set_aside(with, self, away)?;
                if let Err(errno) = self.rename_new(name, other, with) {
                    // The first error is the one that counts.
                    let _ = self.rename_new(away, other, with);
                    return Err(errno);
                }
                self.rename_new(away, self, name)
            }
            result => result,
        }
    }
}

/// Where files can have names in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Volume {
    device: u64,
    mount: u64,
}

/// A tree of the host.
pub(super) struct Host {
    root: OwnedFd,
    resolve: ResolveFlags,
    /// Directories by path, the one that was opened last at the end.
    open: VecDeque<(Vec<u8>, Directory)>,
    pub calls: Calls,
    /// The changes of names that a dry run sees as made.
    pretended: Option<Pretended>,
    cross: bool,
}

impl Host {
    /// The same tree, for another thread.
    pub fn another(&self) -> Result<Host, Errno> {
        let root = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?;
        let (open, calls) = (VecDeque::new(), self.calls.clone());
        Ok(Host { root, resolve: self.resolve, open, calls, pretended: None, cross: self.cross })
    }

    /// The tree at `source`, whose root is no symlink; with `cross`, mounts below belong to it.
    pub fn open(source: &Path, cross: bool) -> Result<Host, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, source, flags, Mode::empty())?;
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        if !cross {
            resolve |= ResolveFlags::NO_XDEV;
        }
        Ok(Host { root, resolve, open: VecDeque::new(), calls: Calls::default(), pretended: None, cross })
    }

    /// Whether its root is the directory that a scan saw, in the file system that it saw it in.
    pub fn is_root(&self, inode: &Inode, volume: Option<VolumeId>) -> Result<bool, Errno> {
        let stat = rustix::fs::fstat(&self.root)?;
        Ok(stat.st_ino == inode.source_ino()
            && file_type(&stat) == Some(FileType::Directory)
            && !VolumeId::is_another(volume, VolumeId::of(&self.root)?))
    }

    /// Syncs the file systems of the tree: its root's, and those of the paths `written`.
    pub fn sync<'p>(&mut self, written: impl Iterator<Item = &'p [u8]>) -> Result<(), Errno> {
        self.calls.next()?;
        self.sync_file_system(self.root.as_fd())?;
        let mut synced = HashSet::from([rustix::fs::fstat(&self.root)?.st_dev]);
        let crosses = self.cross;
        // sync(2) reaches all at once, and does not say what failed.
        for path in written.take_while(|_| crosses) {
            let directory = match self.parent(path) {
                Ok((directory, _)) => directory,
                // A path that is gone needs no sync.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                Err(errno) => return Err(errno),
            };
            if synced.insert(directory.stat_of(directory.as_fd())?.st_dev) {
                self.sync_file_system(directory.as_fd())?;
            }
        }
        Ok(())
    }

    /// Waits until everything in the file system of a directory is on the disk.
    fn sync_file_system(&self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::syncfs(openat(directory, c".", flags, Mode::empty())?)?;
        self.calls.file_system_synced(directory);
        Ok(())
    }

    /// The directory that `path` is in, and its name there; of the root itself its own name in itself.
    pub fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(Directory, &'p [u8]), Errno> {
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => Ok((self.directory(&path[..slash])?, &path[slash + 1..])),
            None if path.is_empty() => Ok((self.directory(b"")?, b".")),
            None => Ok((self.directory(b"")?, path)),
        }
    }

    fn directory(&mut self, path: &[u8]) -> Result<Directory, Errno> {
        // A tree is walked in its order, so the parent is most often open.
        let above = self.open.iter().filter(|(open, _)| is_beneath(path, open)).max_by_key(|(open, _)| open.len());
        let (mut directory, mut at) = match above {
            Some((open, directory)) => (directory.clone(), open.len()),
            None => {
                self.calls.next()?;
                let root = self.beneath(self.root.as_fd(), b".")?;
                (self.keep(b"", root), 0)
            }
        };
        while at < path.len() {
            self.calls.next()?;
            let start = if at == 0 { 0 } else { at + 1 };
            at = next_stop(path, start);
            let fd = self.beneath(directory.as_fd(), &path[start..at])?;
            directory = self.keep(&path[..at], fd);
        }
        Ok(directory)
    }

    /// Keeps a directory open.
    fn keep(&mut self, path: &[u8], fd: OwnedFd) -> Directory {
        let gives_acl = rustix::fs::getxattr(path_of(fd.as_fd()), c"system.posix_acl_default", &mut [0u8; 0]).is_ok();
        let directory = Directory { fd: Arc::new(fd), calls: self.calls.clone(), gives_acl };
        if self.open.len() >= OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back((path.to_owned(), directory.clone()));
        directory
    }

    fn beneath(&self, parent: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.calls.found_as(parent, path);
        loop {
            match openat2(parent, &*path, flags, Mode::empty(), self.resolve) {
                // Something else was renamed at the wrong moment; see openat2(2).
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
    }

    /// Forgets open directories at and below `path`, which lead elsewhere now.
    pub fn forget(&mut self, path: &[u8]) {
        self.open.retain(|(open, _)| !is_beneath(open, path));
    }
}

/// Where the next step from `start` ends: at the end of the path, or so far that the kernel takes the path, and near
/// enough to the end that the directories above it can be used again.
fn next_stop(path: &[u8], start: usize) -> usize {
    let rest = path.len() - start;
    if rest <= NEAR {
        return path.len();
    }
    let limit = start + (rest - NEAR / 2).min(PATH_PIECE);
    let slash = path[start..=limit.min(path.len() - 1)].iter().rposition(|byte| *byte == b'/');
    match slash {
        Some(slash) if slash > 0 => start + slash,
        _ => path[start..].iter().position(|byte| *byte == b'/').map_or(path.len(), |slash| start + slash),
    }
}

pub(super) fn mtime(stat: &Stat) -> Timestamp {
    Timestamp { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 }
}

pub(super) fn file_type(stat: &Stat) -> Option<FileType> {
    FileType::from_mode(stat.st_mode)
}

/// Whether something on the host is still the inode that a scan saw, with the same content and, if `strictly`, the same
/// attributes.
pub(super) fn is_as_scanned(stat: &Stat, inode: &Inode, strictly: bool) -> bool {
    let ctime = Timestamp { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec as u32 };
    let is_file = inode.file_type() == FileType::Regular;
    let is_directory = inode.file_type() == FileType::Directory;
    stat.st_ino == inode.source_ino()
        && file_type(stat) == Some(inode.file_type())
        && (!is_file || stat.st_size as u64 == inode.size())
        // The content of a directory is compared name by name.
        && (is_directory || mtime(stat) == inode.mtime())
        && (is_directory || !strictly || ctime == inode.ctime())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::property_tests::config;
    use super::*;

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn a_path_is_walked_whole_in_pieces_that_the_kernel_takes(
            lengths in prop::collection::vec(prop_oneof![1usize..4, 1usize..256, Just(255)], 1..120),
        ) {
            let path = lengths.iter().map(|length| "n".repeat(*length)).collect::<Vec<_>>().join("/").into_bytes();
            let (mut start, mut pieces) = (0, Vec::new());
            loop {
                let end = next_stop(&path, start);
                prop_assert!(end > start && end - start <= PATH_PIECE, "{start}..{end} of {}", path.len());
                pieces.push(&path[start..end]);
                if end == path.len() {
                    break;
                }
                prop_assert_eq!(path[end], b'/');
                start = end + 1;
            }
            prop_assert_eq!(pieces.join(&b'/'), path);
        }
    }
}
