//! Finds the files that moved with a renamed directory.
//!
//! An access to rename a directory names the directory alone. So its files are listed there when the command has ended.

use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use inarch_tree::{Timestamp, open_beneath};
use inarch_vfs::Identity;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, statat};
use rustix::io;

use super::places::Name;
use super::{Before, Touched, Use, known_at, shown_path};

impl Touched {
    /// Makes inputs and outputs of all that came along with a renamed directory. `list` returns the names in a directory and what
    /// they are, or nothing of what is no directory. Symbolic links are not followed.
    pub fn find_renamed(&mut self, list: &mut dyn FnMut(&Path) -> Vec<(Name, Identity)>) {
        for (top, original) in self.places.moved() {
            let movers = self.changed_by(shown_path(&top)).cloned().unwrap_or_default();
            if original != top {
                self.came_along(&original, None, &movers);
            }
            let mut directories = vec![top];
            while let Some(directory) = directories.pop().filter(|_| !self.lacks()) {
                for (name, identity) in list(shown_path(&directory)) {
                    let path: Name = [&*directory, b"/", &name].concat().into();
                    // What has a change of its own did not come along, or is a top itself.
                    if self.places.shown(&path).is_some() {
                        continue;
                    }
                    let Some(original) = self.places.original(&path) else { continue };
                    let is_directory = identity.mode & libc::S_IFMT == libc::S_IFDIR;
                    if original == path {
                        // Back again, but in between there was something else by this name.
                        let known = known_at(&mut self.known, original, &mut self.places.room);
                        if let Some(known) = known {
                            known.is_there();
                        }
                    } else if self.came_along(&original, Some(identity), &movers) {
                        self.places.pin(&path, original, is_directory);
                    } else {
                        continue;
                    }
                    if is_directory {
                        directories.push(path);
                    }
                }
            }
        }
    }

    /// Whether what is now elsewhere was at `original` before the command; then it is an input, unless its whole content was
    /// written.
    fn came_along(&mut self, original: &[u8], identity: Option<Identity>, movers: &BTreeSet<u32>) -> bool {
        let room = &mut self.places.room;
        let Some(known) = known_at(&mut self.known, original.into(), room) else { return false };
        if known.before == Before::Absent {
            // Another program put it there.
            return false;
        }
        known.is_there();
        if !known.written {
            known.uses(Use::Moved);
        }
        movers.iter().for_each(|process| known.is_of(Some(*process), room));
        if let Some(identity) = identity {
            known.is_directory = identity.mode & libc::S_IFMT == libc::S_IFDIR;
            if !known.written && !known.attributes && known.identity.is_none() {
                known.identity = Some(Box::new(identity));
            }
        }
        true
    }
}

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The names in a directory of this machine, and what they are. Leaves out what is gone meanwhile or cannot be read.
pub fn listed(directory: &Path) -> Vec<(Name, Identity)> {
    openat(CWD, directory, FLAGS, Mode::empty()).and_then(|directory| all_in(&directory)).unwrap_or_default()
}

/// The same of a directory beneath `root`, to which no symbolic link leads: others may have made what is there.
pub fn listed_beneath(root: BorrowedFd<'_>, directory: &Path) -> Vec<(Name, Identity)> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let opened = open_beneath(root, directory.as_os_str().as_bytes(), FLAGS);
    opened.and_then(|directory| all_in(&directory)).unwrap_or_default()
}

fn all_in(directory: &OwnedFd) -> io::Result<Vec<(Name, Identity)>> {
    let mut all = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let mtime = Timestamp { seconds: stat.st_mtime, nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        all.push((name.to_bytes().into(), Identity { inode: stat.st_ino, mode: stat.st_mode, size, mtime }));
    }
    Ok(all)
}
