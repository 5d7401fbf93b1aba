//! Guards: child processes that clean up what a job leaves in the file system, however it ends. A guard waits for the
//! end of a pipe from its parent, which even SIGKILL cannot prevent.

use std::ffi::{OsStr, OsString};
use std::fs::{Metadata, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use inarch_confine::close_inherited;
use inarch_mount::{self as mount, FuseAccess, Loop, LoopId, Mount, MountError, MountId, Unmounted};

use super::LifecycleError;
use crate::path_error::PathError;

/// The first word of the child's command line; what follows is [`guard`]'s.
pub const GUARD_ARGUMENT: &str = "clear-away-at-end-of-input";

/// What the second word can be.
const SOCKET: &str = "socket";
const DIRECTORY: &str = "directory";
const FUSE_TO_COME: &str = "fuse-to-come";

/// What kind of mount a guard takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded {
    /// Of a file system that is mounted nowhere else.
    Mount,
    /// The same, with a mount point that is a file made for it and removed with it.
    OnOwnFile,
    /// Of a directory of another file system.
    Bind,
    /// The same, with other mounts in it that go with it.
    BindOfMounts,
}

impl Guarded {
    const ALL: [Guarded; 4] = [Guarded::Mount, Guarded::OnOwnFile, Guarded::Bind, Guarded::BindOfMounts];

    /// The second word of the child's command line.
    fn word(self) -> &'static str {
        match self {
            Guarded::Mount => "mount",
            Guarded::OnOwnFile => "mount-on-own-file",
            Guarded::Bind => "bind",
            Guarded::BindOfMounts => "bind-of-mounts",
        }
    }

    /// Parses the second word.
    pub fn from_word(word: &OsStr) -> Option<Guarded> {
        Guarded::ALL.into_iter().find(|kind| word == kind.word())
    }
}

/// What a server writes to the guard of its mount before it closes the pipe. A server that was killed writes nothing.
const GONE: &[u8] = b"gone";
/// The server waits for the end of the guard, and reads what it says.
const LISTENS: &[u8] = b"listens";

/// The exit statuses of a mount's guard: not in use; in use; or it stays, and standard output says why.
const CLEAN: u8 = 0;
const IN_USE: u8 = 1;
const FAILED: u8 = 2;

/// The guard process, as the server sees it. It cleans up, as the sandboxed server cannot.
pub struct Guard {
    path: PathBuf,
    child: Child,
}

impl Guard {
    /// For the socket at `path`.
    pub fn of_socket(path: &Path) -> Result<Guard, PathError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let inode =
            path.symlink_metadata().map_err(|error| PathError::new(&path, "cannot see the socket", error))?.ino();
        Guard::start(&path, &[SOCKET.as_ref(), path.as_os_str(), inode.to_string().as_ref()])
    }

    /// For a mount that is at `point`, or is about to be attached there. Also for the loop device that the mount reads,
    /// if the device's content may change when nobody watches it any more.
    pub fn of_mount(point: &Path, mount: &MountId, kind: Guarded, device: Option<&LoopId>) -> Result<Guard, PathError> {
        let (id, device) = (mount.to_string(), device.map(LoopId::to_string));
        let words = [kind.word().as_ref(), point.as_os_str(), id.as_ref()];
        let words: Vec<&OsStr> = words.into_iter().chain(device.as_ref().map(OsStr::new)).collect();
        Guard::start(point, &words)
    }

    /// Mounts FUSE on `point`, an absolute path, as [`Mount::fuse`] does, and returns the mount's guard. There is a guard at any time: a
    /// mount has no numbers before it exists, so until then another guard waits for whatever appears at the point.
    pub fn of_fuse(
        point: &Path,
        source: &Path,
        access: FuseAccess,
        kind: Guarded,
    ) -> Result<(Mount, OwnedFd, Guard), LifecycleError> {
        let before = Guard::start(point, &[FUSE_TO_COME.as_ref(), kind.word().as_ref(), point.as_os_str()])?;
        let mounted = Mount::fuse(point, source, access);
        let guarded = mounted.map_err(LifecycleError::from).and_then(|(mount, device)| {
            let guard = Guard::of_mount(mount.point(), &mount.id(), kind, None)?;
            Ok((mount, device, guard))
        });
        // What has failed has taken the mount away.
        before.dismiss();
        guarded
    }

    /// For a directory at `path`, an absolute path, that is about to be made, and all that will be in it.
    pub fn of_directory(path: &Path) -> Result<Guard, PathError> {
        Guard::start(path, &[DIRECTORY.as_ref(), path.as_os_str()])
    }

    fn start(path: &Path, words: &[&OsStr]) -> Result<Guard, PathError> {
        let child = own_child(GUARD_ARGUMENT)
            .args(words)
            .spawn()
            .map_err(|error| PathError::new(path, "cannot start the process that clears it away", error))?;
        Ok(Guard { path: path.to_owned(), child })
    }

    /// Unmounts now; returns whether the mount was in use. If it `is_gone`, somebody else unmounted it, and a mount
    /// with the same number is not ours.
    pub fn unmount(&mut self, mount: Mount, is_gone: bool) -> Result<Unmounted, LifecycleError> {
        if is_gone {
            mount.forget();
        }
        self.end_input(if is_gone { GONE } else { LISTENS });
        let mut reason = String::new();
        if let Some(mut output) = self.child.stdout.take() {
            // Without a reason there is the status.
            let _ = output.read_to_string(&mut reason);
        }
        let failed = |error| PathError::new(&self.path, "cannot be unmounted", error);
        let status = self.child.wait().map_err(failed)?;
        match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(CLEAN) => Ok(Unmounted::Clean),
            Some(IN_USE) => Ok(Unmounted::InUse),
            _ if !reason.is_empty() => Err(LifecycleError::StillMounted { reason }),
            _ => Err(failed(io::Error::other(format!("the process that does it ended with {status}"))).into()),
        }
    }

    /// Ends the guard: there is nothing to clear away.
    pub fn dismiss(mut self) {
        let _ = self.child.kill();
    }

    /// Makes the guard clean up now.
    pub fn release(&mut self) {
        self.end_input(LISTENS);
        let _ = self.child.wait();
    }

    /// Closes the guard's input, after a last word.
    fn end_input(&mut self, word: &[u8]) {
        // If it is not heard, the guard acts as if this process had been killed.
        let _ = self.child.stdin.take().map(|mut input| input.write_all(word));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.release();
    }
}

/// This program as a child that serves its parent: with pipes to and from it, in its own process group, and with the
/// root as its working directory, so that it keeps no directory in use.
pub fn own_child(word: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(word).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.current_dir("/").process_group(0);
    command
}

/// The main function of a guard: waits for the end of standard input, then cleans up what `words` say. Returns the
/// exit status.
pub fn guard(words: &[OsString]) -> u8 {
    // What was left open for the server is not for its child. Without /proc it stays open.
    let _ = close_inherited();
    // While this is open, no other device has its path.
    let device = words.get(3).and_then(|id| id.to_str()?.parse::<LoopId>().ok()).and_then(|id| id.open().ok());
    let mut word = Vec::new();
    // However the input ends, it has ended.
    let _ = io::stdin().read_to_end(&mut word);
    let (is_gone, listens) = (word == GONE, word == LISTENS);
    match words {
        [kind, path, inode] if kind == SOCKET => remove_socket(path.as_ref(), &inode.to_string_lossy()),
        [kind, path] if kind == DIRECTORY => remove_directory(path.as_ref()),
        [word, kind, point] if word == FUSE_TO_COME => {
            remove_orphan(point.as_ref());
            if Guarded::from_word(kind) == Some(Guarded::OnOwnFile) {
                remove_empty_file(point.as_ref());
            }
        }
        [word, point, mount] | [word, point, mount, _] => {
            // From now on, open files of the mount show nothing that is written to the archive. If this fails, the device is gone.
            let _ = device.as_ref().map(Loop::let_go);
            let (Some(kind), Ok(mount)) = (Guarded::from_word(word), mount.to_string_lossy().parse()) else {
                return FAILED;
            };
            // A directory above it may have another name by now.
            let place = if is_gone { None } else { mount::place_of(&mount).map(|place| place.point) };
            if kind == Guarded::BindOfMounts && !is_gone {
                // What is in use there keeps the whole in use.
                let _ = mount::unmount_within(&mount);
            }
            let status = if is_gone { CLEAN } else { unmount(&mount, listens) };
            if kind == Guarded::OnOwnFile {
                remove_empty_file(place.as_deref().unwrap_or(point.as_ref()));
            }
            return status;
        }
        _ => {}
    }
    CLEAN
}

/// Removes the directory at `path` and everything in it, even files that are made meanwhile through a mount that is
/// being unmounted. Removes nothing as long as something is mounted there: that would remove files of the mounted tree,
/// which may be the host's root.
fn remove_directory(path: &Path) {
    const ATTEMPTS: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..ATTEMPTS {
        if !mount::is_free_of_mounts(path) {
            thread::sleep(PAUSE);
            continue;
        }
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                open_up(path);
                thread::sleep(PAUSE);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
            _ => return,
        }
    }
}

/// Makes the directories at `path` and beneath it writable for their owner, because the content of a directory of mode 0555 cannot
/// be removed. For a `path` that no other user can enter.
fn open_up(path: &Path) {
    let mut waiting = vec![path.to_owned()];
    while let Some(directory) = waiting.pop() {
        // A failure here shows when the removal is tried again.
        let _ = std::fs::set_permissions(&directory, Permissions::from_mode(0o700));
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        waiting.extend(directories.map(|entry| entry.path()));
    }
}

/// Unmounts what is mounted at `point` and has no server. fusermount3 may still be about to mount it, and does not
/// report when it has.
fn remove_orphan(point: &Path) {
    const ATTEMPTS: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..ATTEMPTS {
        if let Some(mount) = mount::orphan_at(point) {
            // The server is gone: there is nobody to tell of an error.
            let _ = mount::unmount_wherever(&mount);
            return;
        }
        thread::sleep(PAUSE);
    }
}

/// Unmounts; returns the exit status that says how that went. A server that is being killed does not listen, although
/// its end of the output may be open for another moment.
fn unmount(mount: &MountId, listens: bool) -> u8 {
    match mount::unmount_wherever(mount) {
        Ok(Unmounted::Clean) => CLEAN,
        Ok(Unmounted::InUse) => IN_USE,
        Err(error) => {
            let mut server = io::stdout();
            if listens && write!(server, "{error}").and_then(|()| server.flush()).is_ok() {
                return FAILED;
            }
            // The server was killed, and will take nothing away. What covers its mount may go one day.
            unmount_later(mount)
        }
    }
}

/// Takes a mount without a server away when nothing covers it any more.
fn unmount_later(mount: &MountId) -> u8 {
    const PAUSE: Duration = Duration::from_millis(250);
    /// Other failures may pass as well: a directory above it was renamed just now.
    const ATTEMPTS: u32 = 40;
    let mut failures = 0;
    while failures < ATTEMPTS {
        thread::sleep(PAUSE);
        match mount::unmount_wherever(mount) {
            Ok(_) => return CLEAN,
            Err(MountError::Covered { .. }) => failures = 0,
            Err(_) => failures += 1,
        }
    }
    FAILED
}

/// Removes the file at `path`, if there is nothing in it.
pub fn remove_empty_file(path: &Path) {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn nothing_is_removed_through_a_mount() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: nothing_is_removed_through_a_mount: not root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (tree, point) = (dir.join("tree"), dir.join("scratch/deep/point"));
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), "content").unwrap();
        fs::create_dir_all(&point).unwrap();
        let run =
            |program: &str, words: &[&Path]| assert!(Command::new(program).args(words).status().unwrap().success());
        run("mount", &[Path::new("--bind"), &tree, &point]);
        remove_directory(&dir.join("scratch"));
        assert!(point.join("file").exists() && tree.join("file").exists());
        // One that is taken away meanwhile is waited for.
        let unmount = {
            let point = point.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(100));
                Command::new("umount").arg("--lazy").arg(point).status()
            })
        };
        remove_directory(&dir.join("scratch"));
        assert!(unmount.join().unwrap().unwrap().success());
        assert!(!dir.join("scratch").exists() && tree.join("file").exists());
    }
}
