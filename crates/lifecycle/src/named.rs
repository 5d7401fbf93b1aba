//! Opens what a user names, but through no symbolic link that another user planted.
//!
//! A user may name any place, and links lead there as for every program. But in a directory that others may write to, such as `/tmp`,
//! another user can put a link under a name that is known beforehand, and lead root's output into another file. The kernel refuses
//! such a link where `fs.protected_symlinks` is 1 (Documentation/admin-guide/sysctl/fs.rst); that is 0 on some systems. Here the
//! last component is followed link by link, each one opened before it is judged, so what was judged is what is followed.
//!
//! Directories on the way are the user's choice.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

/// Symbolic links on one way, at most: `MAXSYMLINKS` of Linux's include/linux/namei.h.
const MAX_LINKS: u32 = 40;

/// The symbolic links that are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    /// Not another user's in a world-writable directory, unless the directory is that user's too.
    NotPlanted,
    /// Those of this user and root.
    Ours,
}

/// Opens `path` for writing, as [`File::create`] does: a new file, or one whose content goes; a pipe; a device.
///
/// # Errors
/// It cannot be opened, or a link in its place is another user's (`ErrorKind::Other`).
pub fn create_named(path: &Path) -> io::Result<File> {
    open_file(path, OFlags::WRONLY | OFlags::TRUNC, Mode::from_raw_mode(0o666))
}

/// Opens `path` for writing with `flags`, and makes it with `mode` if it is not there.
///
/// # Errors
/// As [`create_named`].
pub(crate) fn open_file(path: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Errno::ISDIR.into());
    }
    open(path, Links::NotPlanted, flags | OFlags::CREATE, mode).map(File::from)
}

/// Opens what is at `path`, such as a device or a pipe.
///
/// # Errors
/// As [`create_named`].
pub fn open_named(path: &Path, flags: OFlags) -> io::Result<File> {
    open(path, Links::NotPlanted, flags, Mode::empty()).map(File::from)
}

/// Opens the directory `path` for reading. A link in its place must be this user's or root's.
///
/// # Errors
/// As [`create_named`].
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    open(path, Links::Ours, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// Where a path leads to.
pub(crate) struct Place {
    pub directory: OwnedFd,
    /// No symbolic link, or one of /proc.
    pub name: OsString,
    /// Whether it is a link of /proc, as /dev/stdout: what it leads to may have no name.
    pub is_magic: bool,
}

impl Place {
    /// The same for a file, which has a name: what a link of /proc leads to may be one.
    pub fn of_file(self) -> io::Result<Place> {
        if self.name == "." {
            return Err(Errno::ISDIR.into());
        }
        if !self.is_magic {
            return Ok(self);
        }
        let link = Path::new("/proc/self/fd").join(self.directory.as_raw_fd().to_string()).join(&self.name);
        let (above, name) = split(&link.canonicalize()?);
        let directory = openat(CWD, &above, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Place { directory, name, is_magic: false })
    }
}

/// Where what is to be written at `path` goes: the directory, and the name in it.
///
/// # Errors
/// As [`create_named`].
pub(crate) fn place(path: &Path) -> io::Result<Place> {
    follow(path, Links::NotPlanted)
}

fn open(path: &Path, links: Links, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    let Place { directory, name, is_magic } = follow(path, links)?;
    let flags = if is_magic { flags } else { flags | OFlags::NOFOLLOW };
    Ok(openat(&directory, &name, flags, mode)?)
}

fn follow(path: &Path, links: Links) -> io::Result<Place> {
    const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    let root = openat(CWD, "/", DIRECTORY, Mode::empty())?;
    let ours = [rustix::process::geteuid().as_raw(), 0, fstat(&root)?.st_uid];
    let mut base = openat(CWD, ".", DIRECTORY, Mode::empty())?;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let (above, name) = split(&path);
        let directory = openat(&base, &above, DIRECTORY, Mode::empty())?;
        let link = match openat(&directory, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Place { directory, name, is_magic: false }),
            link => link?,
        };
        let target = match readlinkat(&link, "", Vec::new()) {
            // No link.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(Place { directory, name, is_magic: false }),
            target => OsString::from_vec(target?.into_bytes()),
        };
        check(links, &ours, &fstat(&link)?, &fstat(&directory)?)?;
        if fstatfs(link.as_fd())?.f_type == PROC_SUPER_MAGIC {
            return Ok(Place { directory, name, is_magic: true });
        }
        (base, path) = (directory, PathBuf::from(target));
    }
    Err(Errno::LOOP.into())
}

/// Whether a link is followed.
fn check(links: Links, ours: &[u32], link: &Stat, directory: &Stat) -> io::Result<()> {
    let shared = Mode::from_raw_mode(directory.st_mode).contains(Mode::WOTH);
    let is_followed = match links {
        Links::NotPlanted => ours[0] == link.st_uid || !shared || link.st_uid == directory.st_uid,
        Links::Ours => ours.contains(&link.st_uid),
    };
    if is_followed {
        return Ok(());
    }
    let reason = format!(
        "a symbolic link there belongs to user {}, who could redirect it; name another place, or the one it leads to",
        link.st_uid
    );
    Err(io::Error::other(reason))
}

/// The directory of a path, and the name in it.
fn split(path: &Path) -> (PathBuf, OsString) {
    let name = path.file_name().unwrap_or(OsStr::new("."));
    // What ends in `..` is a directory, and no link.
    let above = if path.file_name().is_none() { Some(path) } else { path.parent() };
    let above = above.filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    (above.to_owned(), name.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions, set_permissions};
    use std::io::Write;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};

    use super::*;

    const ANOTHER: u32 = 65_534;

    #[test]
    fn files_are_made_and_emptied_through_links_of_ours() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("d")).unwrap();
        symlink("d/../second", at("first")).unwrap();
        symlink(at("d/file"), at("second")).unwrap();
        for content in ["a longer text", "short"] {
            create_named(&at("first")).unwrap().write_all(content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(at("d/file")).unwrap(), content);
        }
        symlink("loop", at("loop")).unwrap();
        assert_eq!(create_named(&at("loop")).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        for (path, why) in
            [("d", Errno::ISDIR), ("new/", Errno::ISDIR), ("none/x", Errno::NOENT), ("d/..", Errno::ISDIR)]
        {
            let error = create_named(&at(path)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(why.raw_os_error()), "{path}");
        }
        assert!(!at("new").exists());
        let (reader, writer) = io::pipe().unwrap();
        let by_number = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        symlink(by_number, at("stream")).unwrap();
        create_named(&at("stream")).unwrap().write_all(b"through a pipe").unwrap();
        drop(writer);
        assert_eq!(io::read_to_string(reader).unwrap(), "through a pipe");
        symlink("d", at("link")).unwrap();
        let inode = |directory: &OwnedFd| fstat(directory).unwrap().st_ino;
        let expected = fs::metadata(at("d")).unwrap().ino();
        for path in ["d", "d/", "link", "link/", "d/.", "d/../d"] {
            assert_eq!(inode(&open_directory(&at(path)).unwrap()), expected, "{path}");
        }
        assert_eq!(inode(&open_directory(Path::new("/")).unwrap()), fs::metadata("/").unwrap().ino());
    }

    #[test]
    fn links_that_another_user_planted_lead_nowhere() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: links_that_another_user_planted_lead_nowhere: not root");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("shared")).unwrap();
        set_permissions(at("shared"), Permissions::from_mode(0o1777)).unwrap();
        fs::write(at("victim"), "content").unwrap();
        fs::create_dir(at("directory")).unwrap();
        let plant = |target: &str, link: &str| {
            symlink(at(target), at(link)).unwrap();
            lchown(at(link), Some(ANOTHER), None).unwrap();
        };
        plant("victim", "shared/link");
        plant("not there", "shared/dangling");
        symlink("shared/link", at("mine")).unwrap();
        for link in ["shared/link", "shared/dangling", "mine"] {
            let error = create_named(&at(link)).unwrap_err();
            assert!(
                error.kind() == io::ErrorKind::Other && error.to_string().contains("belongs to user 65534"),
                "{error}"
            );
        }
        for link in ["shared/link", "shared/dangling", "mine"] {
            let error = crate::new_file::NewFile::create(&at(link), || {}).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534"), "{error}");
            assert!(open_named(&at(link), OFlags::WRONLY).unwrap_err().to_string().contains("belongs to user 65534"));
        }
        assert_eq!(fs::read(at("victim")).unwrap(), b"content");
        assert!(!at("not there").exists());
        // A user's own directory is that user's, also for root: but not to make it private.
        plant("directory", "theirs");
        plant("victim", "their file");
        assert!(open_directory(&at("theirs")).unwrap_err().to_string().contains("belongs to user 65534"));
        create_named(&at("their file")).unwrap();
        assert_eq!(fs::read(at("victim")).unwrap(), b"");
    }
}
