//! Finds the open files that a command inherits. It can use them past its view, where nothing is recorded.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A descriptor that the command has from its starter, and that leads to a file or directory outside of the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Its number.
    pub descriptor: u32,
    /// The file's path.
    pub path: PathBuf,
    /// Whether it is a regular file that is open for reading alone.
    pub is_input: bool,
}

/// Those of this process that a command would inherit, by number. A file without a name is none, and neither is one at or beneath
/// `outside`.
///
/// # Errors
/// `/proc` cannot be read.
pub(super) fn inherited(outside: &[PathBuf]) -> io::Result<Vec<Inherited>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name();
        let Some(descriptor) = number.to_str().and_then(|number| number.parse().ok()) else { continue };
        // One that was closed meanwhile was none of the command's.
        let Some(inherited) = behind(descriptor).and_then(Behind::inherited) else { continue };
        if !outside.iter().any(|outside| inherited.path.starts_with(outside)) {
            found.push(inherited);
        }
    }
    found.sort_by_key(|inherited| inherited.descriptor);
    Ok(found)
}

/// The regular file that is this process's standard output, if it has a name.
pub fn standard_output() -> Option<PathBuf> {
    behind(1)
        .filter(|behind| !behind.is_directory && behind.flags & libc::O_ACCMODE != libc::O_RDONLY)
        .map(|behind| behind.path)
}

/// The file or directory that a descriptor leads to.
struct Behind {
    descriptor: u32,
    path: PathBuf,
    is_directory: bool,
    flags: i32,
}

impl Behind {
    /// The same, if a command inherits it.
    fn inherited(self) -> Option<Inherited> {
        let Behind { descriptor, path, is_directory, flags } = self;
        let is_input = !is_directory && flags & libc::O_ACCMODE == libc::O_RDONLY;
        (flags & libc::O_CLOEXEC == 0).then_some(Inherited { descriptor, path, is_input })
    }
}

fn behind(descriptor: u32) -> Option<Behind> {
    let link = format!("/proc/self/fd/{descriptor}");
    let path = fs::read_link(&link).ok()?;
    let there = fs::metadata(&link).ok()?;
    let flags = flags(&fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?)?;
    let has_name = there.nlink() > 0 && is_same(&path, &there);
    let is_kind = there.is_file() || there.is_dir();
    (has_name && is_kind).then(|| Behind { descriptor, path, is_directory: there.is_dir(), flags })
}

/// Pipes and files without a name have a text in place of a path.
fn is_same(path: &Path, there: &Metadata) -> bool {
    path.is_absolute()
        && fs::symlink_metadata(path).is_ok_and(|named| (named.dev(), named.ino()) == (there.dev(), there.ino()))
}

/// The flags in a file of `/proc/self/fdinfo`; close-on-exec is one of them (Linux's fs/proc/fd.c).
fn flags(text: &str) -> Option<i32> {
    let octal = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(octal.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use rustix::io::{FdFlags, fcntl_setfd};

    use super::*;

    #[test]
    fn what_is_inherited_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        let files = ["kept", "closed", "removed"].map(|name| File::create(at(name)).unwrap());
        let pipe = io::pipe().unwrap();
        fs::remove_file(at("removed")).unwrap();
        let [kept, closed, removed] = &files;
        for file in [kept, removed] {
            fcntl_setfd(file, FdFlags::empty()).unwrap();
        }
        fcntl_setfd(&pipe.0, FdFlags::empty()).unwrap();
        let of_ours = |outside: &[PathBuf]| {
            let numbers = [kept, closed, removed].map(|file| file.as_raw_fd() as u32);
            let found = inherited(outside).unwrap().into_iter();
            let ours =
                |one: &Inherited| numbers.contains(&one.descriptor) || one.descriptor == pipe.0.as_raw_fd() as u32;
            found.filter(ours).collect::<Vec<_>>()
        };
        let expected = Inherited { descriptor: kept.as_raw_fd() as u32, path: at("kept"), is_input: false };
        assert_eq!(of_ours(&[]), [expected]);
        assert_eq!(of_ours(&[at("")]), []);
    }

    #[test]
    fn flags_are_octal() {
        assert_eq!(flags("pos:\t0\nflags:\t02100002\nmnt_id:\t29\n"), Some(0o2_100_002));
        assert_eq!(flags("flags:\tx\n").or(flags("pos: 0\n")), None);
    }
}
