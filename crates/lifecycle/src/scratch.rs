//! [`Scratch`]: a directory for unfinished files, beside the place where they go, or for files that others must not
//! see. A guard removes it, however this process ends.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::guard::Guard;
use crate::path_error::PathError;

/// How many names are tried.
const ATTEMPTS: u32 = 100;

/// A directory that only this user may enter, and that is gone when this value is, or the process.
pub struct Scratch {
    path: PathBuf,
    guard: Guard,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Scratch").field(&self.path).finish()
    }
}

impl Scratch {
    /// One in `directory`.
    ///
    /// # Errors
    /// None can be made there.
    pub fn within(directory: &Path) -> Result<Scratch, PathError> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let fail = |error: io::Error| PathError::new(directory, "cannot make a temporary directory there", error);
        let directory = directory.canonicalize().map_err(fail)?;
        for attempt in 0..ATTEMPTS {
            let path = directory.join(format!(".inarch-{}-{attempt}.tmp", std::process::id()));
            if path.symlink_metadata().is_ok() {
                continue;
            }
            // Before there is a directory, so that there is none without a guard.
            let guard = Guard::of_directory(&path)?;
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch { path, guard }),
                Err(error) => {
                    guard.dismiss();
                    if error.kind() != io::ErrorKind::AlreadyExists {
                        return Err(fail(error));
                    }
                }
            }
        }
        Err(fail(io::ErrorKind::AlreadyExists.into()))
    }

    /// It.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has it stay; returns where it is.
    pub fn keep(self) -> PathBuf {
        self.guard.dismiss();
        self.path
    }

    /// A new sparse file of `size` bytes in it, and its path.
    pub fn sparse(&self, name: &str, size: u64) -> Result<(File, PathBuf), PathError> {
        let path = self.path.join(name);
        let make = || {
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            file.set_len(size)?;
            Ok(file)
        };
        let file = make().map_err(|error: io::Error| PathError::new(&path, "cannot make a sparse file", error))?;
        Ok((file, path))
    }
}
