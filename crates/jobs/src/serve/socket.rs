//! Listens on Unix sockets.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::JobError;

/// The longest path a Unix socket can have: `sun_path` less its final NUL.
const LONGEST_SOCKET_PATH: usize = 107;

/// Fails if no socket can have this path.
fn check_length(path: &Path) -> Result<(), JobError> {
    let length = path.as_os_str().as_bytes().len();
    if length > LONGEST_SOCKET_PATH {
        let reason = format!("the path has {length} bytes; a socket's has at most {LONGEST_SOCKET_PATH}");
        return Err(JobError::Socket { path: path.to_owned(), reason });
    }
    Ok(())
}

/// The path of a socket as other programs, in other directories, can name it.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, JobError> {
    check_length(path)?;
    std::path::absolute(path).map_err(|error| JobError::path(path, "cannot make the path absolute", error))
}

/// Listens on `path`. Replaces a socket that nobody listens on.
pub(super) fn listen(path: &Path) -> Result<UnixListener, JobError> {
    check_length(path)?;
    let refuse = |reason: String| JobError::Socket { path: path.to_owned(), reason };
    match UnixListener::bind(path) {
        Ok(listener) => return Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        Err(error) => return Err(refuse(format!("cannot listen there: {error}"))),
    }
    let is_socket = path.symlink_metadata().is_ok_and(|m| m.file_type().is_socket());
    if !is_socket {
        return Err(refuse("exists and is not a socket; name another path".into()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => return Err(refuse("another server listens there; name another path or stop it".into())),
    }
    std::fs::remove_file(path).map_err(|error| refuse(format!("cannot remove the stale socket: {error}")))?;
    UnixListener::bind(path).map_err(|error| refuse(format!("cannot listen there: {error}")))
}
