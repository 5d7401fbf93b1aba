//! Listens on Unix sockets.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use inarch_confine::inherited;
use inarch_lifecycle::guard::Guard;
use nix::unistd::Group;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, chownat, fchmod, flock, fstat, openat};
use rustix::net::sockopt::{socket_acceptconn, socket_domain};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;

use crate::JobError;

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
    /// The path, or what messages call an inherited socket.
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
                    let given = give_to_group(path, *group);
                    given.map_err(|error| refuse(format!("cannot give it to group {group}: {error}")))?;
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
        // u32::MAX means "no change" to chown(2).
        Ok(None) => match name.parse() {
            Ok(number) if number < u32::MAX => Ok(number),
            _ => Err(refuse("there is no such group".to_owned())),
        },
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

/// Lets a group connect to the socket that was made at `path`. Others may be able to write to its directory: only the socket itself is
/// changed, not what has its name by then.
fn give_to_group(path: &Path, group: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let socket = openat(CWD, path, flags, Mode::empty())?;
    let stat = fstat(&socket)?;
    let is_own = FileType::from_raw_mode(stat.st_mode) == FileType::Socket && stat.st_uid == geteuid().as_raw();
    if !is_own {
        return Err(io::Error::other("another file took its place"));
    }
    chownat(&socket, c"", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    // A path in /proc leads to the open file.
    std::fs::set_permissions(format!("/proc/self/fd/{}", socket.as_raw_fd()), Permissions::from_mode(0o660))
}

/// Binds a socket to which only this user can connect, from the first moment on, whatever the umask is: the file gets the permissions that
/// the socket has before it is bound (`unix_bind_bsd` in net/unix/af_unix.c).
fn bind(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // As many as the system lets wait.
    net::listen(&socket, i32::MAX)?;
    Ok(UnixListener::from(socket))
}

/// Locks the directory of `path`, so that servers check, remove and bind one at a time: a socket that is bound and does not listen yet looks stale.
/// The lock ends with the value. `None` if the directory cannot be opened, or if another program holds the lock for a second.
fn turn(path: &Path) -> Option<File> {
    const PAUSE: Duration = Duration::from_millis(10);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(directory).ok()?;
    (0..100).find(|_| {
        let is_locked = flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok();
        if !is_locked {
            thread::sleep(PAUSE);
        }
        is_locked
    })?;
    Some(directory)
}

/// Listens on `path`, for this user alone. Replaces a socket without a listener.
pub(super) fn listen(path: &Path) -> Result<UnixListener, JobError> {
    check_length(path)?;
    let refuse = |reason: String| JobError::Socket { path: path.to_owned(), reason };
    let _turn = turn(path);
    match bind(path) {
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
    bind(path).map_err(|error| refuse(format!("cannot listen there: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_lets_its_user_in_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _listener = listen(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn of_servers_that_find_a_stale_socket_one_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        for round in 0..50 {
            let _ = std::fs::remove_file(&path);
            drop(UnixListener::bind(&path).unwrap());
            let listeners: Vec<_> = thread::scope(|scope| {
                let servers: Vec<_> = (0..4).map(|_| scope.spawn(|| listen(&path))).collect();
                servers.into_iter().filter_map(|server| server.join().unwrap().ok()).collect()
            });
            assert_eq!(listeners.len(), 1, "round {round}");
            UnixStream::connect(&path).unwrap();
            listeners[0].accept().unwrap();
        }
    }
}
