//! Files that get their name when they are complete, in place of another file that has it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;

/// A new file, unnamed (`O_TMPFILE`) or under a random temporary name.
pub(super) struct NewFile {
    pub file: File,
    /// Where it is, if the file system has no files without names.
    named: Option<(OwnedFd, OsString)>,
}

impl NewFile {
    pub fn make(directory: &OwnedFd) -> Result<NewFile, Errno> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match openat(directory, c".", flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => return Ok(NewFile { file: file.into(), named: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS | Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        let name = unused_name();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, &name, flags, Mode::from_raw_mode(0o600))?;
        let directory = directory.as_fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        Ok(NewFile { file: file.into(), named: Some((directory, name)) })
    }

    /// Gives it its name, in place of another file that has it.
    pub fn name(mut self, directory: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
        if let Some((_, own)) = &self.named {
            renameat(directory, own, directory, name)?;
            self.named = None;
            return Ok(());
        }
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        put(directory, name, |own| linkat(CWD, &link, directory, own, AtFlags::SYMLINK_FOLLOW))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some((directory, name)) = &self.named {
            let _ = unlinkat(directory, name, AtFlags::empty());
        }
    }
}

/// Puts what `make` makes under the name that it is given in the place of `name`.
pub(super) fn put(
    directory: &OwnedFd,
    name: &OsStr,
    make: impl FnOnce(&OsStr) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let own = unused_name();
    let put = make(&own).and_then(|()| renameat(directory, &own, directory, name));
    // Two names of one file stay as they are: rename(2).
    let _ = unlinkat(directory, &own, AtFlags::empty());
    put
}

fn unused_name() -> OsString {
    let mut random = [0; 8];
    let _ = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut random));
    format!(".inarch-{:016x}", u64::from_le_bytes(random)).into()
}
