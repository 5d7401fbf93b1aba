//! The output of an image: a new file that gets its name when it is complete, a block device, or a pipe.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, linkat, openat, renameat, seek, unlinkat};
use rustix::io::Errno;

use super::ImageEvent;
use crate::JobError;
use crate::events::Events;

/// How many temporary names are tried.
const ATTEMPTS: u32 = 100;

/// The output of an image.
pub(super) enum Output {
    /// A file that does not have its name yet.
    New(NewFile),
    /// A block device of so many bytes.
    Device { file: File, bytes: u64 },
    /// Standard output, a pipe, or a character device: takes bytes in order.
    Pipe(File),
}

impl Output {
    /// Opens `path`; `-` is standard output. If the unfinished output has a temporary name, reports that to `events`.
    pub(super) fn open(path: &Path, events: &Events<ImageEvent>) -> Result<Output, JobError> {
        if path == Path::new("-") {
            let stdout = rustix::stdio::stdout().try_clone_to_owned();
            let stdout = stdout.map_err(|error| JobError::path(path, "cannot use standard output", error))?;
            return Ok(Output::Pipe(File::from(stdout)));
        }
        let kind = match path.metadata() {
            Ok(metadata) => Some(metadata.file_type()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(JobError::path(path, "cannot write there", error)),
        };
        match kind {
            Some(kind) if kind.is_dir() => {
                Err(JobError::path(path, "cannot write the image", io::Error::from(ErrorKind::IsADirectory)))
            }
            Some(kind) if kind.is_block_device() => {
                // Refuses a device that is mounted or otherwise in use: O_EXCL has that meaning for block devices.
                let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
                let file = openat(CWD, path, flags, Mode::empty())
                    .map_err(|error| JobError::path(path, "cannot have the device for writing", error))?;
                let bytes = seek(&file, SeekFrom::End(0))
                    .map_err(|error| JobError::path(path, "cannot tell the device's size", error))?;
                Ok(Output::Device { file: File::from(file), bytes })
            }
            Some(kind) if !kind.is_file() => {
                let file = openat(CWD, path, OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
                    .map_err(|error| JobError::path(path, "cannot write there", error))?;
                Ok(Output::Pipe(File::from(file)))
            }
            _ => Ok(Output::New(NewFile::create(path, events)?)),
        }
    }
}

impl Output {
    /// Waits until the data is on stable storage.
    pub(super) fn sync(&self) -> io::Result<()> {
        match self {
            Output::New(NewFile { file, .. }) | Output::Device { file, .. } => file.sync_all(),
            Output::Pipe(_) => Ok(()),
        }
    }

    /// Gives a new file its name.
    pub(super) fn finish(self) -> Result<(), JobError> {
        match self {
            Output::New(new) => new.commit(),
            _ => Ok(()),
        }
    }
}

/// A file that gets its name when it is complete. If it is dropped before, nothing remains; with `O_TMPFILE`, not even
/// after SIGKILL.
pub(super) struct NewFile {
    pub(super) file: File,
    path: PathBuf,
    directory: OwnedFd,
    name: OsString,
    /// Its temporary name, if the file system has no nameless files.
    temporary: Option<OsString>,
    /// Receives an event if there is a temporary name.
    events: Events<ImageEvent>,
}

impl NewFile {
    /// A new file that will replace `path`, or what `path` links to.
    fn create(path: &Path, events: &Events<ImageEvent>) -> Result<NewFile, JobError> {
        NewFile::create_with(path, OFlags::TMPFILE, events)
    }

    /// `nameless` is the flag for nameless files.
    fn create_with(path: &Path, nameless: OFlags, events: &Events<ImageEvent>) -> Result<NewFile, JobError> {
        let fail = |error: Errno| JobError::path(path, "cannot write there", error);
        let target = if path.is_symlink() { path.canonicalize() } else { Ok(path.to_owned()) };
        let target = target.map_err(|error| JobError::path(path, "cannot write there", error))?;
        let Some(name) = target.file_name() else { return Err(fail(Errno::ISDIR)) };
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, parent, flags, Mode::empty()).map_err(fail)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        let (file, temporary) = match openat(&directory, ".", flags | nameless, mode) {
            Ok(file) => (file, None),
            // Systems that do not know the flag return EISDIR or EINVAL.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                events.emit(ImageEvent::Named);
                let (file, name) =
                    with_new_name(|name| openat(&directory, name, flags | OFlags::CREATE | OFlags::EXCL, mode))
                        .map_err(fail)?;
                (file, Some(name))
            }
            Err(error) => return Err(fail(error)),
        };
        let (path, name) = (path.to_owned(), name.to_owned());
        Ok(NewFile { file: File::from(file), path, directory, name, temporary, events: events.clone() })
    }

    /// Gives the file its name, replacing any file of that name.
    fn commit(mut self) -> Result<(), JobError> {
        self.name_it().map_err(|error| JobError::path(&self.path, "cannot give the image its name", error))
    }

    fn name_it(&mut self) -> Result<(), Errno> {
        if self.temporary.is_none() {
            let link = |name: &OsStr| {
                let file = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
                linkat(CWD, &*file, &self.directory, name, AtFlags::SYMLINK_FOLLOW)
            };
            match link(&self.name) {
                Err(Errno::EXIST) => {}
                result => return result,
            }
            // From here to the rename it has a temporary name.
            self.events.emit(ImageEvent::Named);
            self.temporary = Some(with_new_name(link)?.1);
        }
        if let Some(temporary) = &self.temporary {
            renameat(&self.directory, temporary, &self.directory, &self.name)?;
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
                let dropped = NewFile::create_with(&path, nameless, &Events::ignored()).unwrap();
                assert_eq!(names(dir.path()).iter().filter(|name| name.ends_with(".tmp")).count(), meanwhile);
                drop(dropped);
                let mut new = NewFile::create_with(&path, nameless, &Events::ignored()).unwrap();
                new.file.write_all(content.as_bytes()).unwrap();
                new.commit().unwrap();
                assert_eq!(names(dir.path()), ["image"]);
                assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            }
            // The target of a symlink is replaced; the symlink stays.
            let link = dir.path().join("link");
            std::os::unix::fs::symlink("image", &link).unwrap();
            let mut new = NewFile::create_with(&link, nameless, &Events::ignored()).unwrap();
            new.file.write_all(b"three").unwrap();
            new.commit().unwrap();
            assert!(link.is_symlink());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
        }
    }
}
