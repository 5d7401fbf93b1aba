//! fusermount3: mounts for users. It opens `/dev/fuse`, mounts, and sends the descriptor over a socket that it inherits
//! (libfuse's lib/mount.c, `fuse_mount_fusermount`).

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::MountError;
use super::fuse::{FuseAccess, SUBTYPE};

const PROGRAM: &str = "fusermount3";

/// Its message for a mount in use: the text of `EBUSY`, which it does not translate.
const BUSY: &str = "Device or resource busy";

/// The variable with the number of the socket's descriptor.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// Mounts on `point`; returns the descriptor to serve.
pub fn mount(point: &Path, source: &Path, access: FuseAccess) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::Device)?;
    let read_only = if access.is_read_only() { ",ro" } else { "" };
    // Without `allow_other`, this user alone gets in.
    let checks = if access.checks_permissions() { ",default_permissions" } else { "" };
    let mut options = OsString::from(format!("subtype={SUBTYPE},nosuid,nodev{checks}{read_only},fsname="));
    options.push(escaped(source));
    let mut command = Command::new(PROGRAM);
    // The socket is its standard input, so that no descriptor needs to survive the exec by another way.
    command.arg("-o").arg(&options).arg("--").arg(point).env(SOCKET_VARIABLE, "0").stdin(OwnedFd::from(theirs));
    check(point, command.stdout(Stdio::null()).output())?;
    // Or it would keep the other end open.
    drop(command);
    receive(&ours).map_err(|error| MountError::Refused { path: point.to_owned(), error })
}

/// The path as an option's value: an unescaped comma would end it.
fn escaped(source: &Path) -> OsString {
    let mut escaped = Vec::new();
    for byte in source.as_os_str().as_bytes() {
        if matches!(byte, b',' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    OsString::from_vec(escaped)
}

/// Unmounts what a user has mounted; with `detach` even if it is in use.
pub fn unmount(point: &Path, detach: bool) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u").args(detach.then_some("-z")).arg("--").arg(point).stdin(Stdio::null());
    check(point, command.output()).map_err(|error| match error {
        MountError::Helper { path, reason } if reason.ends_with(BUSY) => MountError::Busy { path },
        MountError::Helper { path, reason } => MountError::Unmount { path, reason: format!("{PROGRAM}: {reason}") },
        error => error,
    })
}

fn check(point: &Path, result: io::Result<Output>) -> Result<(), MountError> {
    let path = || point.to_owned();
    match result {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let line = text.lines().next().unwrap_or("it does not say why");
            let reason = line.trim_start_matches(PROGRAM).trim_start_matches(": ").to_owned();
            Err(MountError::Helper { path: path(), reason })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(MountError::NoHelper { path: path() }),
        Err(error) => Err(MountError::Refused { path: path(), error }),
    }
}

/// Takes the descriptor that comes with one byte.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let missing = || io::Error::other(format!("{} sent no descriptor", OsStr::new(PROGRAM).display()));
    descriptors.flatten().next().ok_or_else(missing)
}
