//! Opens what lies beneath a directory, at any depth, without following a symbolic link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// The longest path of one system call, without its NUL: `PATH_MAX` of include/uapi/linux/limits.h.
const MAX_PATH: usize = 4095;

/// A directory on the way. `openat2` refuses `O_NONBLOCK` with `O_PATH`.
const ON_THE_WAY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// `openat2` gives `EAGAIN` if something else on the host is renamed at the wrong moment; see openat2(2).
const ATTEMPTS: usize = 16;

/// Opens `path` beneath `root`. A path may be longer than one system call takes. `flags` are those of openat2(2).
///
/// # Errors
/// Those of openat2(2): among them `ELOOP` for a symbolic link anywhere on the path, and `EXDEV` for a path that leads out of `root`.
pub fn open_beneath(root: BorrowedFd<'_>, mut path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut parent: Option<OwnedFd> = None;
    while let Some(head) = path.get(..MAX_PATH).filter(|_| path.len() > MAX_PATH) {
        let slash = head.iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?;
        let (head, tail) = path.split_at(slash);
        let from = parent.as_ref().map_or(root, |parent| parent.as_fd());
        parent = Some(step(from, head, ON_THE_WAY)?);
        path = tail.get(1..).unwrap_or_default();
    }
    step(parent.as_ref().map_or(root, |parent| parent.as_fd()), path, flags)
}

fn step(parent: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, mkdirat, openat};

    use super::*;

    #[test]
    fn long_paths_are_opened_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("outside"), "").unwrap();
        let root = directory.path().join("root");
        fs::create_dir(&root).unwrap();
        symlink("..", root.join("up")).unwrap();
        let root = openat(CWD, &root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let name = "d".repeat(255);
        let mut deepest = openat(&root, ".", OFlags::PATH, Mode::empty()).unwrap();
        let mut path = Vec::new();
        for _ in 0..40 {
            mkdirat(&deepest, &*name, Mode::RWXU).unwrap();
            deepest = openat(&deepest, &*name, OFlags::PATH, Mode::empty()).unwrap();
            path.extend_from_slice(name.as_bytes());
            path.push(b'/');
        }
        openat(&deepest, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
        let read = OFlags::RDONLY | OFlags::CLOEXEC;
        let at_end = |last: &str| open_beneath(root.as_fd(), &[&path, last.as_bytes()].concat(), read);
        at_end("file").unwrap();
        assert_eq!(at_end("nothing").unwrap_err(), Errno::NOENT);
        let shallow = |path: &str| open_beneath(root.as_fd(), path.as_bytes(), read).unwrap_err();
        assert_eq!(shallow("up/outside"), Errno::LOOP);
        assert_eq!(shallow("../outside"), Errno::XDEV);
        assert_eq!(shallow(&"n".repeat(5000)), Errno::NAMETOOLONG);
    }
}
