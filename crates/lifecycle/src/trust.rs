//! Opens directories and files that no other user could have redirected.
//!
//! A place such as `XDG_STATE_HOME` may belong to another user, for instance if root runs with a user's `HOME` (`sudo
//! -E`, `su`). A user who may write to a directory can put a symbolic link, a hard link or their own directory in the
//! place of an entry. So the path to a directory is walked from the root, and each component must be safe:
//!
//! - It belongs to this user or root.
//! - No other user may write to it, unless it is sticky like `/tmp`: there only a name's owner can replace it. A group may write to it
//!   only if that is the private group of this user or root, which has the same number, and if there is no ACL: the mode shows an
//!   ACL's mask as the group's bits, and not whom the ACL names.
//! - Symbolic links in such a directory are followed above this program's own directories, not among them.
//!
//! After that, only this user and root can change where the path leads: to replace a name, by rename(2) or renameat2(2) too,
//! another user needs write permission for its directory, and in a sticky one a name of their own. So the path may be used by
//! name. Code that deletes old files there, or writes files that root will run, keeps the checked directory open nevertheless
//! ([`open_directory`]): a user who could write to it until a moment ago may have waited for the check.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, getxattr, mkdirat, openat, readlinkat};
use rustix::io::Errno;

use crate::text::shown;

/// Symbolic links on one way, at most: `MAXSYMLINKS` of Linux's include/linux/namei.h.
const MAX_LINKS: u32 = 40;

const SYMLINK: &str = "it is a symbolic link, which is not followed";

/// What is done where a directory is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It is made, for this user alone.
    Make,
    /// It is made; others may read what is in it.
    MakeReadable,
    /// It stays missing.
    Leave,
}

/// Who may own this program's directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This user's.
    User,
    /// This user's or root's.
    UserOrRoot,
}

/// What is in the way to a directory.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", shown(path))]
pub struct Obstacle {
    /// Where.
    pub path: PathBuf,
    /// What.
    pub error: io::Error,
}

impl Obstacle {
    /// Whether the directory is usable, but another user could redirect it.
    pub fn is_distrust(&self) -> bool {
        self.error.kind() == io::ErrorKind::Other
    }
}

/// Checks the path to `home` and to the nested directories `below` it; `home` and those are this program's. Returns
/// false if one of them is missing and should not be created. `home` must be absolute.
///
/// # Errors
/// A directory on the way is not trusted, and why; or it cannot be opened or created.
pub fn directory(home: &Path, below: &[&str], missing: Missing, owner: Owner) -> Result<bool, Obstacle> {
    open_directory(home, below, missing, owner).map(|opened| opened.is_some())
}

/// As [`directory`], but gives the last directory, opened with `O_PATH`; `None` if one is missing.
///
/// # Errors
/// As [`directory`].
pub fn open_directory(
    home: &Path,
    below: &[&str],
    missing: Missing,
    owner: Owner,
) -> Result<Option<OwnedFd>, Obstacle> {
    let mut walk = Walk::from_the_root(missing)?;
    let (above, name) = (home.parent().unwrap_or(home), home.file_name().unwrap_or_default());
    if !walk.follow(above)? {
        return Ok(None);
    }
    for name in std::iter::once(name).chain(below.iter().map(OsStr::new)) {
        walk.path.push(name);
        let Some(entry) = walk.enter(name)? else { return Ok(None) };
        let stat = walk.stat(&entry)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => return Err(walk.distrust(SYMLINK.to_owned())),
            FileType::Directory => {}
            _ => return Err(walk.obstacle(Errno::NOTDIR)),
        }
        if owner == Owner::User && stat.st_uid != walk.user {
            return Err(walk.distrust(belongs_to(stat.st_uid)));
        }
        walk.check(&entry, &stat, false)?;
        walk.directory = entry;
    }
    Ok(Some(walk.directory))
}

/// Opens a file in a directory that [`directory`] checked. It must be a regular file of this user with a single link.
/// Follows no symbolic link and does not block on a FIFO.
///
/// # Errors
/// It is something else, or cannot be opened.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = options.custom_flags(flags).open(path).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => io::Error::other(SYMLINK),
        Some(Errno::NXIO) => io::Error::other(IRREGULAR),
        _ => error,
    })?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Reads such a file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, OpenOptions::new().read(true))?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Opens a file that says what is done here, as the configuration of a project does; `None` if there is none. It must be a regular file with a single
/// link, owned by this user or root and writable by its owner alone.
///
/// # Errors
/// It is something else, or cannot be opened.
pub fn open_given(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        // A directory that cannot be entered has no file to be read.
        Err(Errno::ACCESS) if fs::symlink_metadata(path).is_err() => return Ok(None),
        Err(Errno::LOOP) => return Err(io::Error::other(SYMLINK)),
        Err(Errno::NXIO) => return Err(io::Error::other(IRREGULAR)),
        Err(errno) => return Err(errno.into()),
    };
    let stat = fstat(&file)?;
    let user = rustix::process::geteuid().as_raw();
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other(IRREGULAR));
    }
    if ![user, 0].contains(&stat.st_uid) {
        return Err(io::Error::other(format!(
            "it belongs to user {}; only a file of yours or root's is read",
            stat.st_uid
        )));
    }
    if stat.st_nlink > 1 {
        return Err(io::Error::other(LINKED));
    }
    match remedy(&file, &stat, user) {
        Some(remedy) => Err(io::Error::other(format!("other users may write to it ({remedy})"))),
        None => Ok(Some(File::from(file))),
    }
}

/// Creates such a file, empty, replacing an existing one.
///
/// # Errors
/// It cannot be made.
pub fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    open(path, OpenOptions::new().write(true).create_new(true).mode(0o600))
}

const IRREGULAR: &str = "it is no regular file";
const LINKED: &str = "it has another name, under which it may be something else";

/// Checks that `metadata` describes a regular file of this user with a single link.
///
/// # Errors
/// It is not, and why.
pub fn check(metadata: &Metadata) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    match metadata {
        link if link.is_symlink() => Err(io::Error::other(SYMLINK)),
        other if !other.is_file() => Err(io::Error::other(IRREGULAR)),
        theirs if theirs.uid() != user => Err(io::Error::other(belongs_to(theirs.uid()))),
        linked if linked.nlink() > 1 => Err(io::Error::other(LINKED)),
        _ => Ok(()),
    }
}

fn belongs_to(user: u32) -> String {
    format!("it is another user's: it belongs to user {user}, who could redirect it")
}

/// Whatever the umask is, no group writes to it.
const READABLE: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP).union(Mode::ROTH).union(Mode::XOTH);

/// A walk from directory to directory.
struct Walk {
    directory: OwnedFd,
    /// Its path, for messages.
    path: PathBuf,
    missing: Missing,
    user: u32,
    /// The owner of the root directory: root, under whatever ID this user namespace shows it.
    root: u32,
    links: u32,
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Walk {
    fn from_the_root(missing: Missing) -> Result<Walk, Obstacle> {
        let fail = |errno: Errno| Obstacle { path: "/".into(), error: errno.into() };
        let directory = openat(CWD, "/", DIRECTORY, Mode::empty()).map_err(fail)?;
        let root = fstat(&directory).map_err(fail)?.st_uid;
        let user = rustix::process::geteuid().as_raw();
        Ok(Walk { directory, path: "/".into(), missing, user, root, links: 0 })
    }

    /// Walks an absolute path, following symbolic links. Returns false if a component is missing.
    fn follow(&mut self, path: &Path) -> Result<bool, Obstacle> {
        let mut pending = steps(path);
        while let Some(name) = pending.pop() {
            if name == "/" {
                *self = Walk { links: self.links, ..Walk::from_the_root(self.missing)? };
                continue;
            }
            self.path.push(&name);
            let Some(entry) = self.enter(&name)? else { return Ok(false) };
            let stat = self.stat(&entry)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    self.check(&entry, &stat, true)?;
                    self.directory = entry;
                    if name == ".." {
                        // The name and what it leads back over; no link is left in the path.
                        self.path.pop();
                        self.path.pop();
                    }
                }
                FileType::Symlink => {
                    self.check_owner(&stat)?;
                    self.links += 1;
                    if self.links > MAX_LINKS {
                        return Err(self.obstacle(Errno::LOOP));
                    }
                    let target = readlinkat(&entry, "", Vec::new()).map_err(|errno| self.obstacle(errno))?;
                    pending.extend(steps(Path::new(&OsString::from_vec(target.into_bytes()))));
                    self.path.pop();
                }
                _ => return Err(self.obstacle(Errno::NOTDIR)),
            }
        }
        Ok(true)
    }

    /// Opens `name` in the directory, creating it if requested.
    fn enter(&self, name: &OsStr) -> Result<Option<OwnedFd>, Obstacle> {
        let open = || openat(&self.directory, name, DIRECTORY, Mode::empty());
        let make = |mode| match mkdirat(&self.directory, name, mode) {
            Ok(()) | Err(Errno::EXIST) => open(),
            Err(errno) => Err(errno),
        };
        let opened = match (open(), self.missing) {
            (Err(Errno::NOENT), Missing::Leave) => return Ok(None),
            (Err(Errno::NOENT), Missing::Make) => make(Mode::RWXU),
            (Err(Errno::NOENT), Missing::MakeReadable) => make(READABLE),
            (opened, _) => opened,
        };
        opened.map(Some).map_err(|errno| self.obstacle(errno))
    }

    fn stat(&self, entry: &OwnedFd) -> Result<Stat, Obstacle> {
        fstat(entry).map_err(|errno| self.obstacle(errno))
    }

    fn check_owner(&self, stat: &Stat) -> Result<(), Obstacle> {
        match stat.st_uid {
            owner if [self.user, self.root, 0].contains(&owner) => Ok(()),
            owner => Err(self.distrust(belongs_to(owner))),
        }
    }

    /// Checks that no other user can replace a name of this user or root in the directory. In a sticky directory that
    /// holds although others may add names.
    fn check(&self, entry: &OwnedFd, stat: &Stat, may_be_sticky: bool) -> Result<(), Obstacle> {
        self.check_owner(stat)?;
        let mode = Mode::from_raw_mode(stat.st_mode);
        if may_be_sticky && mode.contains(Mode::SVTX) {
            return Ok(());
        }
        let Some(remedy) = remedy(entry, stat, self.user) else { return Ok(()) };
        Err(self.distrust(format!("other users may write to it and could redirect it ({remedy})")))
    }

    fn distrust(&self, reason: String) -> Obstacle {
        Obstacle { path: self.path.clone(), error: io::Error::other(reason) }
    }

    fn obstacle(&self, errno: Errno) -> Obstacle {
        Obstacle { path: self.path.clone(), error: errno.into() }
    }
}

/// What would keep other users from writing to a file or directory of this user or root; `None` if none may.
fn remedy(entry: &OwnedFd, stat: &Stat, user: u32) -> Option<String> {
    match Mode::from_raw_mode(stat.st_mode) {
        all if all.contains(Mode::WOTH) => Some("chmod go-w".to_owned()),
        group if !group.contains(Mode::WGRP) => None,
        _ if may_have_acl(entry) => Some("by an ACL; setfacl -b, or chmod g-w".to_owned()),
        // A group of this user's own, as systems with umask 002 give it to each. A primary group may be common to many.
        _ if [user, 0].contains(&stat.st_gid) => None,
        _ => Some(format!("those of group {}; chmod g-w", stat.st_gid)),
    }
}

/// Whether a directory has an ACL that says more than its mode, or that cannot be found out. The kernel keeps no other.
fn may_have_acl(directory: &OwnedFd) -> bool {
    // A descriptor of O_PATH has no attributes of its own.
    let there = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let acl = getxattr(there, "system.posix_acl_access", &mut [0_u8; 0]);
    !matches!(acl, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// The components of a path, the first one last.
fn steps(path: &Path) -> Vec<OsString> {
    let components = path.components().filter(|component| *component != Component::CurDir);
    let mut steps: Vec<OsString> = components.map(|component| component.as_os_str().to_owned()).collect();
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests;
