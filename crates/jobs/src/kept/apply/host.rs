//! The host's tree, reached one name at a time: no symlink is followed, nothing leads out of it.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use inarch_tree::{FileType, Inode, Timestamp};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, Stat, openat2, readlinkat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

/// Directories that stay open between steps.
const OPEN_MAX: usize = 64;

/// A directory of the host that is open.
#[derive(Clone)]
pub(super) struct Directory {
    fd: Arc<OwnedFd>,
    /// Whether what is made in it gets an ACL of its own accord.
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

    /// What `name` in it is; nothing if it is not there.
    pub fn stat(&self, name: &[u8]) -> Result<Option<Stat>, Errno> {
        match statat(&*self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub fn read_link(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        readlinkat(&*self.fd, name, Vec::new()).map(|target| target.into_bytes())
    }

    /// Removes a name that is no directory, if it is there.
    pub fn remove(&self, name: &[u8]) -> Result<(), Errno> {
        match unlinkat(&*self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    pub fn remove_directory(&self, name: &[u8]) -> Result<(), Errno> {
        unlinkat(&*self.fd, name, AtFlags::REMOVEDIR)
    }

    /// Gives what is called `from` the name `to` in another directory, which nothing has.
    pub fn rename_new(&self, from: &[u8], other: &Directory, to: &[u8]) -> Result<(), Errno> {
        match renameat_with(&*self.fd, from, &*other.fd, to, RenameFlags::NOREPLACE) {
            // A file system that cannot promise it: look first.
            Err(Errno::INVAL) if other.stat(to)?.is_none() => {
                renameat_with(&*self.fd, from, &*other.fd, to, RenameFlags::empty())
            }
            Err(Errno::INVAL) => Err(Errno::EXIST),
            result => result,
        }
    }

    /// Lets two names change places.
    pub fn exchange(&self, name: &[u8], other: &Directory, with: &[u8]) -> Result<(), Errno> {
        renameat_with(&*self.fd, name, &*other.fd, with, RenameFlags::EXCHANGE)
    }

    /// Gives what is called `from` the name `to`, whatever has that name.
    pub fn rename_over(&self, from: &[u8], other: &Directory, to: &[u8]) -> Result<(), Errno> {
        renameat_with(&*self.fd, from, &*other.fd, to, RenameFlags::empty())
    }
}

/// A tree of the host.
pub(super) struct Host {
    root: OwnedFd,
    resolve: ResolveFlags,
    open: HashMap<Vec<u8>, Directory>,
}

impl Host {
    /// The same tree, for another thread.
    pub fn another(&self) -> Result<Host, Errno> {
        let root = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?;
        Ok(Host { root, resolve: self.resolve, open: HashMap::new() })
    }

    /// The tree at `source`; it goes on into what is mounted below if `cross` is set.
    pub fn open(source: &Path, cross: bool) -> Result<Host, Errno> {
        let root = rustix::fs::openat(CWD, source, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        if !cross {
            resolve |= ResolveFlags::NO_XDEV;
        }
        Ok(Host { root, resolve, open: HashMap::new() })
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
        if let Some(directory) = self.open.get(path) {
            return Ok(directory.clone());
        }
        let fd = match path {
            [] => self.beneath(self.root.as_fd(), b".")?,
            path => {
                let (parent, name) = self.parent(path)?;
                self.beneath(parent.as_fd(), name)?
            }
        };
        let by_fd = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let gives_acl = rustix::fs::getxattr(by_fd, c"system.posix_acl_default", &mut [0u8; 0]).is_ok();
        let directory = Directory { fd: Arc::new(fd), gives_acl };
        if self.open.len() >= OPEN_MAX {
            self.open.clear();
        }
        self.open.insert(path.to_owned(), directory.clone());
        Ok(directory)
    }

    fn beneath(&self, parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            match openat2(parent, name, flags, Mode::empty(), self.resolve) {
                // Something else was renamed at the wrong moment; see openat2(2).
                Err(Errno::AGAIN | Errno::INTR) => {}
                result => return result,
            }
        }
    }

    /// Forgets open directories at and below `path`, which lead elsewhere now.
    pub fn forget(&mut self, path: &[u8]) {
        self.open.retain(|open, _| !is_beneath(open, path));
    }
}

/// Whether `path` is `top` or below it.
pub(super) fn is_beneath(path: &[u8], top: &[u8]) -> bool {
    top.is_empty() || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

pub(super) fn mtime(stat: &Stat) -> Timestamp {
    Timestamp { seconds: stat.st_mtime, nanoseconds: stat.st_mtime_nsec as u32 }
}

pub(super) fn file_type(stat: &Stat) -> Option<FileType> {
    FileType::from_mode(stat.st_mode)
}

/// Whether something on the host is still the inode that a scan saw, with the same content; with `strictly` set also
/// the same attributes.
pub(super) fn is_as_scanned(stat: &Stat, inode: &Inode, strictly: bool) -> bool {
    let ctime = Timestamp { seconds: stat.st_ctime, nanoseconds: stat.st_ctime_nsec as u32 };
    let is_file = inode.file_type() == FileType::Regular;
    let is_directory = inode.file_type() == FileType::Directory;
    stat.st_ino == inode.source_ino()
        && file_type(stat) == Some(inode.file_type())
        && (!is_file || stat.st_size as u64 == inode.size())
        // What is in a directory is looked at name by name.
        && (is_directory || mtime(stat) == inode.mtime())
        && (is_directory || !strictly || ctime == inode.ctime())
}
