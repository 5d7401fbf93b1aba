//! Creates the file that holds an overlay's data.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{CLUSTER, MAX_CLUSTERS, OverlayError};

pub(super) fn failed(action: &'static str, path: &Path, source: impl Into<io::Error>) -> OverlayError {
    OverlayError::Io { action, path: path.into(), source: source.into() }
}

/// Refuses a capacity that is too large, or for which the file may exceed `RLIMIT_FSIZE`; the kernel would send SIGXFSZ
/// for such a write.
pub(super) fn check_size(path: &Path, data_start: u64, clusters: u64) -> Result<(), OverlayError> {
    if clusters > MAX_CLUSTERS {
        return Err(OverlayError::TooLarge(clusters));
    }
    let need = data_start + clusters * CLUSTER;
    match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
        Some(limit) if limit < need => Err(OverlayError::FileSizeLimit { path: path.into(), need, limit }),
        _ => Ok(()),
    }
}

/// Makes the file sparse, with its greatest length: a lower limit of the file system shows now.
pub(super) fn set_length(file: &File, path: &Path, length: u64) -> Result<(), OverlayError> {
    file.set_len(length).map_err(|error| failed("set the length of", path, error))
}

/// Creates a nameless file in `dir`; `None` if the file system cannot.
pub(super) fn nameless(dir: &Path) -> io::Result<Option<File>> {
    match new_file().custom_flags(libc::O_TMPFILE).open(dir) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => Ok(None),
        result => result.map(Some),
    }
}

/// A file in `dir` that vanishes with its last descriptor.
pub(crate) fn ephemeral(dir: &Path) -> Result<File, OverlayError> {
    if let Some(file) = nameless(dir).map_err(|error| failed("make", dir, error))? {
        return Ok(file);
    }
    // It has a name only between the two system calls.
    let mut attempt = 0;
    loop {
        let path = dir.join(format!(".inarch-overlay-{}-{attempt}", std::process::id()));
        match new_file().create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
            result => {
                let file = result.map_err(|error| failed("make", &path, error))?;
                fs::remove_file(&path).map_err(|error| failed("unlink", &path, error))?;
                return Ok(file);
            }
        }
    }
}

fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}
