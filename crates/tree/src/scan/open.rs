//! Opens directories at any depth, with a bounded number of descriptors.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Flags for a directory on the path; `openat2` refuses `O_NONBLOCK` with `O_PATH`.
const ON_THE_WAY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// `PATH_MAX` minus the NUL, of `include/uapi/linux/limits.h`: longer paths are opened in parts.
const PATH_MAX: usize = 4095;

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
        None => open_in_parts(root, path.strip_suffix(&[0]).unwrap_or(path)),
    }
}

fn open_in_parts(root: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let mut at: Option<OwnedFd> = None;
    let mut rest = path;
    loop {
        let cut = if rest.len() <= PATH_MAX {
            rest.len()
        } else {
            // A component has at most 255 bytes, so there is a slash.
            rest[..PATH_MAX].iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?
        };
        let (part, after) = rest.split_at(cut);
        let last = after.is_empty();
        let flags = if last { DIRECTORY } else { ON_THE_WAY };
        let from = at.as_ref().map_or(root, |fd| fd.as_fd());
        let fd = open_beneath(from, part, flags)?;
        if last {
            return Ok(fd);
        }
        rest = after.strip_prefix(b"/").unwrap_or(after);
        at = Some(fd);
    }
}

fn open_beneath(from: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(from, path, flags, Mode::empty(), resolve) {
        // Something was renamed while the kernel resolved the path.
        Err(Errno::AGAIN) => rustix::fs::openat2(from, path, flags, Mode::empty(), resolve),
        result => result,
    }
}
