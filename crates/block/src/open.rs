//! Opens a tree's files beneath its root.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use inarch_tree::open_beneath;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens regular files by their path within a directory.
#[derive(Debug)]
pub(crate) struct Opener {
    root: OwnedFd,
    /// Only a file's owner may use `O_NOATIME`; after a refusal it is not used again.
    keep_atime: AtomicBool,
}

impl Opener {
    pub(crate) fn new(root: OwnedFd) -> Opener {
        Opener { root, keep_atime: AtomicBool::new(true) }
    }

    /// Opens `path` for reading. Follows no symlink, never leaves the root and never blocks (on a FIFO).
    pub(crate) fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let root = self.root.as_fd();
        if self.keep_atime.load(Ordering::Relaxed) {
            match open_beneath(root, path, flags | OFlags::NOATIME) {
                Err(Errno::PERM) => self.keep_atime.store(false, Ordering::Relaxed),
                result => return result,
            }
        }
        open_beneath(root, path, flags)
    }
}
