//! What a server leaves in the file system is cleared away when it ends, however it ends: a child of ours waits for our
//! end of a pipe to close, which even SIGKILL cannot prevent.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use inarch_fuse::mount::{self, Mount};

use crate::JobError;

/// The first word of the child's command line; what follows is [`guard`]'s.
pub const GUARD_ARGUMENT: &str = "clear-away-at-end-of-input";

/// What the second word can be.
const SOCKET: &str = "socket";
const MOUNT: &str = "mount";
const MOUNT_ON_OWN_FILE: &str = "mount-on-own-file";
const DIRECTORY: &str = "directory";

/// The child, seen from the server.
pub(crate) struct Guard {
    child: Child,
}

impl Guard {
    /// For the socket at `path`.
    pub fn of_socket(path: &Path) -> Result<Guard, JobError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let inode =
            path.symlink_metadata().map_err(|error| JobError::path(&path, "cannot see the socket", error))?.ino();
        Guard::start(&path, &[SOCKET.as_ref(), path.as_os_str(), inode.to_string().as_ref()])
    }

    /// For a mount; `own_file` if its mount point is a file that was made for it, and goes with it.
    pub fn of_mount(mount: &Mount, own_file: bool) -> Result<Guard, JobError> {
        let kind = if own_file { MOUNT_ON_OWN_FILE } else { MOUNT };
        let device = mount.device().to_string();
        Guard::start(mount.point(), &[kind.as_ref(), mount.point().as_os_str(), device.as_ref()])
    }

    /// For a directory at `path`, an absolute path, that is about to be made, and all that will be in it.
    pub fn of_directory(path: &Path) -> Result<Guard, JobError> {
        Guard::start(path, &[DIRECTORY.as_ref(), path.as_os_str()])
    }

    fn start(path: &Path, words: &[&OsStr]) -> Result<Guard, JobError> {
        let child = Command::new("/proc/self/exe")
            .arg(GUARD_ARGUMENT)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| JobError::path(path, "cannot start the process that clears it away", error))?;
        Ok(Guard { child })
    }

    /// There is nothing to clear away.
    pub fn dismiss(mut self) {
        let _ = self.child.kill();
    }

    /// Has it done now what it is there for.
    pub fn release(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.release();
    }
}

/// The child's whole life: waits until standard input ends, then clears away what `words` say.
pub fn guard(words: &[OsString]) {
    // However the input ends, it has ended.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    match words {
        [kind, path, inode] if kind == SOCKET => remove_socket(path.as_ref(), &inode.to_string_lossy()),
        [kind, path] if kind == DIRECTORY => drop(std::fs::remove_dir_all(path)),
        [kind, point, device] if kind == MOUNT || kind == MOUNT_ON_OWN_FILE => {
            if let Ok(device) = device.to_string_lossy().parse() {
                let _ = mount::unmount_device(point.as_ref(), device);
            }
            if kind == MOUNT_ON_OWN_FILE {
                remove_empty_file(point.as_ref());
            }
        }
        // Nobody is left to be told.
        _ => {}
    }
}

/// Removes the file at `path`, if there is nothing in it.
pub(super) fn remove_empty_file(path: &Path) {
    if path.symlink_metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0) {
        let _ = std::fs::remove_file(path);
    }
}

/// Removes the socket at `path`, if it is still the one with this inode number.
fn remove_socket(path: &Path, inode: &str) {
    let is_ours = |metadata: Metadata| metadata.file_type().is_socket() && metadata.ino().to_string() == inode;
    if path.symlink_metadata().is_ok_and(is_ours) {
        let _ = std::fs::remove_file(path);
    }
}
