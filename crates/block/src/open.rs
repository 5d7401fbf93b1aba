//! Opens a tree's files beneath its root.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// The longest path of one system call, without its NUL: `PATH_MAX` of include/uapi/linux/limits.h.
const MAX_PATH: usize = 4095;

/// `openat2` gives `EAGAIN` if something else on the host is renamed at the wrong moment; see openat2(2).
const ATTEMPTS: usize = 16;

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
        let (parent, path) = self.descend(path)?;
        let parent = parent.as_ref().map_or(self.root.as_fd(), |parent| parent.as_fd());
        if self.keep_atime.load(Ordering::Relaxed) {
            match beneath(parent, path, flags | OFlags::NOATIME) {
                Err(Errno::PERM) => self.keep_atime.store(false, Ordering::Relaxed),
                result => return result,
            }
        }
        beneath(parent, path, flags)
    }

    /// Resolves a path that is too long for one call down to where the rest is short enough.
    fn descend<'p>(&self, mut path: &'p [u8]) -> Result<(Option<OwnedFd>, &'p [u8]), Errno> {
        let mut parent: Option<OwnedFd> = None;
        while let Some(head) = path.get(..MAX_PATH).filter(|_| path.len() > MAX_PATH) {
            let slash = head.iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?;
            let (head, tail) = path.split_at(slash);
            let from = parent.as_ref().map_or(self.root.as_fd(), |parent| parent.as_fd());
            parent = Some(beneath(from, head, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?);
            path = tail.get(1..).unwrap_or_default();
        }
        Ok((parent, path))
    }
}

fn beneath(parent: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mut result = Err(Errno::AGAIN);
    for _ in 0..ATTEMPTS {
        result = openat2(parent, path, flags, Mode::empty(), resolve);
        if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    result
}
