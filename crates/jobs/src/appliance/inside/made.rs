//! [`Made`]: the paths that a copy has made. The copy neither replaces them later nor follows its own symlinks.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::failure::Failure;

/// Symbolic links on one way, at most: `MAXSYMLINKS` of Linux's include/linux/namei.h.
pub(super) const MAX_LINKS: usize = 40;

/// Files by device and inode number. Two of the files that are copied can have one place: by a link that the image has, or in a file
/// system that does not distinguish `a` and `A`.
#[derive(Debug, Default)]
pub(super) struct Made {
    files: RefCell<HashSet<(u64, u64)>>,
    has_links: Cell<bool>,
}

impl Made {
    /// Another copy begins.
    pub fn forget(&self) {
        self.files.borrow_mut().clear();
        self.has_links.set(false);
    }

    /// Adds a file.
    pub fn add(&self, file: &Stat) {
        self.files.borrow_mut().insert(identity(file));
        if FileType::from_raw_mode(file.st_mode) == FileType::Symlink {
            self.has_links.set(true);
        }
    }

    fn has(&self, file: &Stat) -> bool {
        self.files.borrow().contains(&identity(file))
    }

    /// Refuses to replace the file `old`, or to merge a directory into it, if this copy has made it.
    pub fn spare(&self, path: &[u8], old: Option<&Stat>) -> Result<(), Failure> {
        if old.is_some_and(|old| self.has(old)) {
            let path = String::from_utf8_lossy(path);
            return Err(Failure::new(format!("{path}: this copy has already written another file there")));
        }
        Ok(())
    }

    /// Refuses a path beneath `root` that leads through a symbolic link that this copy has made, or ends at one. What does not exist, or
    /// cannot be entered, is left to the caller.
    pub fn check_way(&self, root: BorrowedFd<'_>, path: &[u8]) -> Result<(), Failure> {
        if self.has_links.get() && self.leads_through_a_link(root, path).map_err(|error| Failure::at(path, error))? {
            let path = String::from_utf8_lossy(path);
            return Err(Failure::new(format!("{path}: it leads through a symbolic link that this copy has made")));
        }
        Ok(())
    }

    fn leads_through_a_link(&self, root: BorrowedFd<'_>, path: &[u8]) -> Result<bool, Errno> {
        let names = |path: &[u8]| {
            path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).map(<[u8]>::to_vec).collect()
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (mut left, mut links): (VecDeque<Vec<u8>>, _) = (names(path), 0);
        let mut way: Vec<OwnedFd> = Vec::new();
        while let Some(name) = left.pop_front() {
            if name == b".." {
                way.pop();
                continue;
            }
            let at = way.last().map_or(root, std::os::fd::AsFd::as_fd);
            let Ok(is) = statat(at, &*name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(false) };
            match FileType::from_raw_mode(is.st_mode) {
                FileType::Symlink if self.has(&is) => return Ok(true),
                FileType::Symlink => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP);
                    }
                    let target = readlinkat(at, &*name, Vec::new())?.into_bytes();
                    if target.starts_with(b"/") {
                        way.clear();
                    }
                    let mut ahead: VecDeque<Vec<u8>> = names(&target);
                    ahead.append(&mut left);
                    left = ahead;
                }
                FileType::Directory => match openat(at, &*name, flags, Mode::empty()) {
                    Ok(directory) => way.push(directory),
                    Err(_) => return Ok(false),
                },
                _ => return Ok(false),
            }
        }
        Ok(false)
    }
}

fn identity(file: &Stat) -> (u64, u64) {
    (file.st_dev, file.st_ino)
}
