//! [`Host`]: what a reader of archives asks this machine for.
//!
//! A reader runs in a thread that can open nothing ([`Parsing`](inarch_confine::Parsing)). It needs these few things besides the
//! bytes that it was given, and a host outside of the thread provides them. The names in its questions come from the archive:
//! they are hostile.

use std::fs::{self, File};
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use inarch_tree::open_beneath;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::ReadError;
use crate::oci::malformed;

/// A list of the host's accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounts {
    /// `/etc/passwd`.
    Users,
    /// `/etc/group`.
    Groups,
}

/// What a reader may ask for. Called from several threads at once.
pub trait Host: Sync {
    /// A new file without a name, for what is unpacked; open for reading and writing.
    fn spool(&self) -> Result<File, ReadError>;

    /// The error of a file of [`Host::spool`] that cannot be written.
    fn spool_failed(&self, error: io::Error) -> ReadError;

    /// The regular file with that name beneath an OCI layout's directory, open for reading; none if there is no such name.
    ///
    /// Errors: no layout was given, the name leads out of it or through a symlink, or it is no regular file.
    fn of_layout(&self, name: &str) -> Result<Option<File>, ReadError>;

    /// The text of a list of accounts, empty if it cannot be read: access control lists in archives may have names alone.
    fn accounts(&self, of: Accounts) -> String;

    /// How many threads may work at once.
    fn threads(&self) -> usize;
}

/// This machine, asked from where files can be opened.
#[derive(Debug)]
pub struct ThisHost {
    spool_directory: PathBuf,
    layout: Option<(OwnedFd, PathBuf)>,
}

impl ThisHost {
    /// What is unpacked goes into `spool_directory`.
    pub fn new(spool_directory: &Path) -> ThisHost {
        ThisHost { spool_directory: spool_directory.to_owned(), layout: None }
    }

    /// Where what is unpacked goes.
    pub fn spool_directory(&self) -> &Path {
        &self.spool_directory
    }

    /// With an OCI layout's directory. `path` names it in messages.
    pub fn with_layout(self, directory: OwnedFd, path: PathBuf) -> ThisHost {
        ThisHost { layout: Some((directory, path)), ..self }
    }
}

impl Host for ThisHost {
    fn spool(&self) -> Result<File, ReadError> {
        tempfile::tempfile_in(&self.spool_directory).map_err(|error| self.spool_failed(error))
    }

    fn spool_failed(&self, error: io::Error) -> ReadError {
        ReadError::Spool { directory: self.spool_directory.clone(), error }
    }

    /// The directory may come from anywhere: no symlink in it is followed.
    fn of_layout(&self, name: &str) -> Result<Option<File>, ReadError> {
        let Some((directory, path)) = &self.layout else { return Err(malformed("it is no directory")) };
        let at = path.join(name);
        let failed = |reason: String| malformed(format!("{}: {reason}", at.display()));
        // Does not wait for a writer if the file is a FIFO.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = match open_beneath(directory.as_fd(), name.as_bytes(), flags) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::LOOP) => return Err(failed("symlinks in an image layout are not followed".to_owned())),
            Err(Errno::XDEV | Errno::INVAL) => return Err(failed("this leads out of the image layout".to_owned())),
            Err(errno) => return Err(failed(errno.to_string())),
        };
        let metadata = file.metadata().map_err(|error| failed(error.to_string()))?;
        if !metadata.is_file() {
            return Err(failed("it is not a regular file".to_owned()));
        }
        Ok(Some(file))
    }

    fn accounts(&self, of: Accounts) -> String {
        let path = match of {
            Accounts::Users => "/etc/passwd",
            Accounts::Groups => "/etc/group",
        };
        fs::read_to_string(path).unwrap_or_default()
    }

    fn threads(&self) -> usize {
        thread::available_parallelism().map_or(1, NonZero::get)
    }
}
