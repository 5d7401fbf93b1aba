//! Holds something of the host by a descriptor: what is checked is what is changed, whatever becomes of its name.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, linkat, openat, readlinkat};
use rustix::io::Errno;

use super::Directory;

/// An object of the host, of any kind, held by a descriptor that opens nothing (`O_PATH`).
pub(in super::super) struct Object {
    fd: OwnedFd,
    pub stat: Stat,
}

impl Directory {
    /// The object called `name`, which may be a symlink. `None` if there is none.
    pub fn object(&self, name: &[u8]) -> Result<Option<Object>, Errno> {
        self.call()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(self.as_fd(), &*self.found_as(name), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            result => result?,
        };
        let stat = self.stat_of(fd.as_fd())?;
        Ok(Some(Object { fd, stat }))
    }

    /// Gives what a descriptor holds another name in it, which is free.
    pub fn name(&self, file: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        match linkat(file, c"", self.as_fd(), name, AtFlags::EMPTY_PATH) {
            // Without CAP_DAC_READ_SEARCH, before Linux 6.10; see link(2).
            Err(Errno::NOENT) => linkat(CWD, path_of(file), self.as_fd(), name, AtFlags::SYMLINK_FOLLOW),
            result => result,
        }
    }
}

impl Object {
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The file, to be read.
    pub fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(CWD, path_of(self.as_fd()), flags, Mode::empty())
    }

    /// Where a symlink leads to.
    pub fn target(&self) -> Result<Vec<u8>, Errno> {
        readlinkat(&self.fd, c"", Vec::new()).map(|target| target.into_bytes())
    }

    /// Whether a directory has nothing in it.
    pub fn is_empty(&self) -> Result<bool, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(&self.fd, c".", flags, Mode::empty())?;
        for entry in rustix::fs::Dir::new(opened)? {
            if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The path of what a descriptor holds, for calls that take no `O_PATH` descriptor. It leads there and no further, even
/// if that is a symlink.
pub(in super::super) fn path_of(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
