//! A file that gets its name when it is complete.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use super::named::{self, Place, create_named};
use crate::path_error::PathError;

/// How many temporary names are tried.
const ATTEMPTS: u32 = 100;

/// The output of a job that is read as a whole: a file that replaces another one when it is complete, or anything else that takes
/// bytes, such as a pipe or a device.
#[derive(Debug)]
pub enum WholeFile {
    /// A file that does not have its name yet.
    New(NewFile),
    /// What cannot be replaced. A symbolic link's target is not either.
    InPlace(File),
}

impl WholeFile {
    /// Opens `path` for writing.
    ///
    /// # Errors
    /// It cannot be opened or made.
    pub fn create(path: &Path) -> Result<WholeFile, PathError> {
        let is_replaced = path.symlink_metadata().map_or(true, |metadata| metadata.is_file());
        // A file may be written where its directory may not.
        if is_replaced && let Ok(new) = NewFile::create(path, || {}) {
            return Ok(WholeFile::New(new));
        }
        let file = create_named(path).map_err(|error| PathError::new(path, "cannot write there", error))?;
        Ok(WholeFile::InPlace(file))
    }

    /// The file.
    pub fn file(&self) -> &File {
        match self {
            WholeFile::New(new) => &new.file,
            WholeFile::InPlace(file) => file,
        }
    }

    /// Gives a new file its name.
    ///
    /// # Errors
    /// It cannot have it.
    pub fn commit(self) -> Result<(), PathError> {
        match self {
            WholeFile::New(new) => new.commit(),
            WholeFile::InPlace(_) => Ok(()),
        }
    }
}

/// A file that gets its name when it is complete. If it is dropped before, nothing remains; with `O_TMPFILE`, not even
/// after SIGKILL.
pub struct NewFile {
    /// The file, open for writing.
    pub file: File,
    path: PathBuf,
    directory: OwnedFd,
    name: OsString,
    /// Its temporary name, if the file system has no nameless files.
    temporary: Option<OsString>,
    /// Called when there is a temporary name.
    named: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for NewFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NewFile").field(&self.path).finish()
    }
}

impl NewFile {
    /// A new file that will replace `path`, or what `path` links to. Calls `named` when it has a temporary name, which this process
    /// must live to remove.
    pub fn create(path: &Path, named: impl Fn() + Send + Sync + 'static) -> Result<NewFile, PathError> {
        NewFile::create_with(path, OFlags::TMPFILE, Box::new(named))
    }

    /// `nameless` is the flag for nameless files.
    fn create_with(path: &Path, nameless: OFlags, named: Box<dyn Fn() + Send + Sync>) -> Result<NewFile, PathError> {
        let fail = |error: Errno| PathError::new(path, "cannot write there", error);
        let place = match path.as_os_str().as_bytes().ends_with(b"/") {
            true => Err(Errno::ISDIR.into()),
            false => named::place(path).and_then(Place::of_file),
        };
        let Place { directory, name, .. } = place.map_err(|error| PathError::new(path, "cannot write there", error))?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        let (file, temporary) = match openat(&directory, ".", flags | nameless, mode) {
            Ok(file) => (file, None),
            // Systems that do not know the flag return EISDIR or EINVAL.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                named();
                let (file, name) =
                    with_new_name(|name| openat(&directory, name, flags | OFlags::CREATE | OFlags::EXCL, mode))
                        .map_err(fail)?;
                (file, Some(name))
            }
            Err(error) => return Err(fail(error)),
        };
        let path = path.to_owned();
        Ok(NewFile { file: File::from(file), path, directory, name, temporary, named })
    }

    /// Gives the file its name, replacing any file of that name.
    pub fn commit(mut self) -> Result<(), PathError> {
        self.name_it(true).map_err(|error| PathError::new(&self.path, "cannot give the file its name", error))
    }

    /// As [`NewFile::commit`], unless a file has the name: that one stays as it is, for those who read it.
    pub fn commit_unless_there(mut self) -> Result<(), PathError> {
        self.name_it(false).map_err(|error| PathError::new(&self.path, "cannot give the file its name", error))
    }

    /// As [`NewFile::commit`], but with another name in the same directory.
    pub fn commit_as(mut self, name: &str) -> Result<(), PathError> {
        self.name = name.into();
        self.path.set_file_name(name);
        self.commit()
    }

    fn name_it(&mut self, replaces: bool) -> Result<(), Errno> {
        if self.temporary.is_none() {
            let link = |name: &OsStr| {
                let file = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
                match linkat(CWD, &*file, &self.directory, name, AtFlags::SYMLINK_FOLLOW) {
                    // There is no /proc, as in a chroot. Before Linux 6.10 this needs CAP_DAC_READ_SEARCH.
                    Err(Errno::NOENT) => linkat(&self.file, c"", &self.directory, name, AtFlags::EMPTY_PATH),
                    linked => linked,
                }
            };
            match link(&self.name) {
                Err(Errno::EXIST) if replaces => {}
                Err(Errno::EXIST) => return Ok(()),
                result => return result,
            }
            // From here to the rename it has a temporary name.
            (self.named)();
            self.temporary = Some(with_new_name(link)?.1);
        }
        if let Some(temporary) = &self.temporary {
            let rename = |flags| renameat_with(&self.directory, temporary, &self.directory, &self.name, flags);
            let renamed = if replaces { Err(Errno::INVAL) } else { rename(RenameFlags::NOREPLACE) };
            match renamed {
                Err(Errno::EXIST) => return Ok(()),
                // Some file systems only replace.
                Err(Errno::INVAL | Errno::NOSYS) => renameat(&self.directory, temporary, &self.directory, &self.name)?,
                renamed => renamed?,
            }
            self.temporary = None;
        }
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // Nothing can be done if it cannot be removed.
            let _ = unlinkat(&self.directory, &*temporary, AtFlags::empty());
        }
    }
}

/// Calls `make` with temporary names until one is not taken.
fn with_new_name<T>(mut make: impl FnMut(&OsStr) -> Result<T, Errno>) -> Result<(T, OsString), Errno> {
    for attempt in 0..ATTEMPTS {
        let name = OsString::from(format!(".inarch-{}-{attempt}.tmp", std::process::id()));
        match make(&name) {
            Err(Errno::EXIST) => {}
            result => return result.map(|made| (made, name)),
        }
    }
    Err(Errno::EXIST)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Tests both kinds of file systems: without the flag, `.` is a directory that cannot be opened for writing
    /// (EISDIR), as on a system that does not know it.
    #[test]
    fn a_file_has_its_name_when_it_is_whole_and_not_before() {
        for nameless in [OFlags::TMPFILE, OFlags::empty()] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("image");
            let meanwhile = usize::from(nameless.is_empty());
            for content in ["one", "two"] {
                let dropped = NewFile::create_with(&path, nameless, Box::new(|| {})).unwrap();
                assert_eq!(names(dir.path()).iter().filter(|name| name.ends_with(".tmp")).count(), meanwhile);
                drop(dropped);
                let mut new = NewFile::create_with(&path, nameless, Box::new(|| {})).unwrap();
                new.file.write_all(content.as_bytes()).unwrap();
                new.commit().unwrap();
                assert_eq!(names(dir.path()), ["image"]);
                assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            }
            let mut late = NewFile::create_with(&path, nameless, Box::new(|| {})).unwrap();
            late.file.write_all(b"late").unwrap();
            late.commit_unless_there().unwrap();
            assert_eq!(
                (names(dir.path()), std::fs::read_to_string(&path).unwrap()),
                (vec!["image".to_owned()], "two".to_owned())
            );
            // The target of a symlink is replaced; the symlink stays.
            let link = dir.path().join("link");
            std::os::unix::fs::symlink("image", &link).unwrap();
            let mut new = NewFile::create_with(&link, nameless, Box::new(|| {})).unwrap();
            new.file.write_all(b"three").unwrap();
            new.commit().unwrap();
            assert!(link.is_symlink());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
        }
    }
}
