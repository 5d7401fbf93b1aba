//! Opens directories at any depth, with a bounded number of descriptors.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::open_beneath;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// A directory that stays open because its subdirectories are still to be read.
#[derive(Debug)]
pub(super) struct KeptDirectory<'a> {
    fd: OwnedFd,
    kept: &'a AtomicUsize,
}

impl<'a> KeptDirectory<'a> {
    /// Keeps `fd` open and counts it in `kept`, unless `limit` are open already.
    pub(super) fn keep(fd: OwnedFd, kept: &'a AtomicUsize, limit: usize) -> Option<KeptDirectory<'a>> {
        if kept.fetch_add(1, Ordering::Relaxed) >= limit {
            kept.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(KeptDirectory { fd, kept })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for KeptDirectory<'_> {
    fn drop(&mut self) {
        self.kept.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Opens the directory `path` (from `root`, with a NUL at its end). Its last component starts at `name`, and `parent`
/// is the directory of that component if it is open. Follows no symlink and never leaves `root`.
pub(super) fn open_directory(
    root: BorrowedFd<'_>,
    parent: Option<BorrowedFd<'_>>,
    path: &[u8],
    name: usize,
) -> Result<OwnedFd, Errno> {
    let component = |from: usize| CStr::from_bytes_with_nul(path.get(from..).unwrap_or_default());
    match parent {
        Some(parent) => {
            let name = component(name).map_err(|_| Errno::INVAL)?;
            rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
        }
        None if path.len() <= 1 => rustix::fs::openat(root, c".", DIRECTORY, Mode::empty()),
        None => open_beneath(root, path.strip_suffix(&[0]).unwrap_or(path), DIRECTORY),
    }
}
