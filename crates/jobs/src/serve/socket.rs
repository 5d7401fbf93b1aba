//! Listens on Unix sockets.

use std::fs::Permissions;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use inarch_confine::inherited;
use nix::unistd::Group;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{socket_acceptconn, socket_domain};

use crate::JobError;
use crate::lifecycle::guard::Guard;

/// Where a server listens.
#[derive(Clone, Debug)]
pub enum ListenAt {
    /// At a path, where it makes a socket.
    Path {
        /// The path.
        path: PathBuf,
        /// The group that may connect, too; else only this user.
        group: Option<u32>,
    },
    /// On a listening socket that this process was started with: the descriptor's number.
    Inherited(RawFd),
}

impl ListenAt {
    /// The path; a name for messages if there is none.
    pub(super) fn name(&self) -> PathBuf {
        match self {
            ListenAt::Path { path, .. } => path.clone(),
            ListenAt::Inherited(number) => PathBuf::from(format!("descriptor {number}")),
        }
    }

    /// Listens there. A socket that was made has a guard, which removes it however this process ends.
    pub(super) fn listen(&self) -> Result<(UnixListener, Option<Guard>), JobError> {
        let refuse = |reason: String| JobError::Socket { path: self.name(), reason };
        match self {
            ListenAt::Path { path, group } => {
                let listener = listen(path)?;
                let guard = Guard::of_socket(path)?;
                if let Some(group) = group {
                    std::os::unix::fs::chown(path, None, Some(*group))
                        .and_then(|()| std::fs::set_permissions(path, Permissions::from_mode(0o660)))
                        .map_err(|error| refuse(format!("cannot give it to group {group}: {error}")))?;
                }
                Ok((listener, Some(guard)))
            }
            ListenAt::Inherited(number) => {
                let socket = inherited(*number).map_err(|error| refuse(format!("it is not open: {error}")))?;
                let listens = socket_domain(&socket).is_ok_and(|family| family == AddressFamily::UNIX)
                    && socket_acceptconn(&socket).unwrap_or(false);
                if !listens {
                    return Err(refuse("it is no Unix socket that listens".to_owned()));
                }
                Ok((socket.into(), None))
            }
        }
    }
}

/// The number of a group of this machine, by its name or number.
///
/// # Errors
/// There is no such group.
pub fn group_of(name: &str) -> Result<u32, JobError> {
    let refuse = |reason: String| JobError::Socket { path: PathBuf::from(name), reason };
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => name.parse().map_err(|_| refuse("there is no such group".to_owned())),
        Err(errno) => Err(refuse(format!("groups cannot be looked up: {errno}"))),
    }
}

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
