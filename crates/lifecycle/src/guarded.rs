//! Finds the server of a mount from another process: it is the parent of the mount's guard.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use inarch_mount::{Entry, MountId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::guard::{GUARD_ARGUMENT, Guarded};

/// The first word of a background server's command line; the starter's command line follows.
pub const BACKGROUND_ARGUMENT: &str = "in-the-background";

/// A server that has a guard.
pub struct ServerProcess {
    /// Its number.
    pub process: u32,
    /// A pidfd, to see the process end.
    pub handle: OwnedFd,
    /// What kind of mount it serves.
    pub kind: Guarded,
}

impl ServerProcess {
    /// A child of this process, in the place of a mount's server. Tests measure its work.
    ///
    /// # Errors
    /// It has ended, or there can be no more descriptors.
    pub fn of_child(child: &std::process::Child) -> Result<ServerProcess, Errno> {
        let handle = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        Ok(ServerProcess { process: child.id(), handle, kind: Guarded::Mount })
    }

    /// Measures progress: CPU time, and whether a thread waits for a disk. `None` for a process that has ended.
    pub fn work(&self) -> Option<Work> {
        let after_name = |path: String| std::fs::read(path).ok().and_then(|stat| fields_after_name(&stat));
        let fields = after_name(format!("/proc/{}/stat", self.process))?;
        // Fields 14 and 15 of proc(5); the name is the second.
        let ticks = fields.iter().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process)).into_iter().flatten().flatten();
        let mut states = tasks.filter_map(|task| after_name(task.path().join("stat").to_str()?.to_owned()));
        let waits_for_disk = states.any(|fields| fields.first().is_some_and(|state| state == "D"));
        Some(Work { ticks, waits_for_disk })
    }
}

/// The server of this mount at `point`. `None` if this user cannot see it or its guard, or if it has ended.
///
/// Any process can choose its command line, so only processes of `owner`, who mounted it, and of root count.
pub fn server_of(point: &Path, mount: &Entry, owner: u32) -> Option<ServerProcess> {
    let is_same = |_, _: &OsString, id: MountId| id.is(mount);
    // A copy at the same place in another mount namespace has another number. What is bound has its device's number anywhere.
    let is_copy = |kind, place: &OsString, id: MountId| {
        matches!(kind, Guarded::Mount | Guarded::OnOwnFile) && id.device() == mount.device && point == Path::new(place)
    };
    // The guard of an earlier mount looks like that of a copy for a moment: a device number is soon used again.
    server_that(is_same, owner).or_else(|| server_that(is_copy, owner))
}

/// The server with a guard that is meant, by what its command line says: the kind of its mount, the mount point and the mount's number.
fn server_that(is_meant: impl Fn(Guarded, &OsString, MountId) -> bool, owner: u32) -> Option<ServerProcess> {
    let guarded = |words: &[OsString]| match words {
        [_, word, kind, place, id, ..] if word == GUARD_ARGUMENT => {
            let (kind, id) = (Guarded::from_word(kind)?, id.to_str()?.parse().ok()?);
            is_meant(kind, place, id).then_some(kind)
        }
        _ => None,
    };
    let serves = [OsStr::new("mount"), OsStr::new("serve"), OsStr::new(BACKGROUND_ARGUMENT)];
    let is_server = |words: &[OsString]| words.get(1).is_some_and(|word| serves.contains(&&**word));
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.find_map(|number| {
        // Most are ruled out by their words alone.
        guarded(&words_of(number)?)?;
        let guard = Process::of(number).filter(|guard| guard.is_of(owner))?;
        let kind = guarded(&guard.words)?;
        let server = Process::of(guard.parent).filter(|server| is_server(&server.words) && server.is_of(owner))?;
        // As long as it has this child, its process number is its own. After a kill, the number may be reused for a
        // moment.
        let is_parent = status_of(number)?.0 == guard.parent && is_there(&guard.handle) && is_there(&server.handle);
        is_parent.then_some(ServerProcess { process: guard.parent, handle: server.handle, kind })
    })
}

/// The server, of the user `owner` or root, that mounted something on `point` according to its guard's command line;
/// possibly in another mount namespace.
pub fn guard_at(point: &Path, owner: u32) -> Option<u32> {
    let is_meant = |words: &[OsString]| match words {
        [_, word, kind, place, _, ..] => {
            word == GUARD_ARGUMENT && Guarded::from_word(kind).is_some() && point == Path::new(place)
        }
        _ => false,
    };
    let own = std::fs::read_link("/proc/self/ns/mnt").ok()?;
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.find(|number| {
        let is_guard = || words_of(*number).is_some_and(|words| is_meant(&words));
        let is_elsewhere = || std::fs::read_link(format!("/proc/{number}/ns/mnt")).is_ok_and(|there| there != own);
        is_guard() && is_elsewhere() && Process::of(*number).is_some_and(|guard| guard.is_of(owner))
    })
}

/// What a server has done, and does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Processors' time, in clock ticks.
    pub ticks: u64,
    /// Whether it is in the midst of input or output.
    pub waits_for_disk: bool,
}

/// The fields of /proc/PID/stat after the name, which may contain spaces and parentheses.
fn fields_after_name(stat: &[u8]) -> Option<Vec<String>> {
    let text = String::from_utf8_lossy(stat);
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// A process as seen in /proc.
struct Process {
    words: Vec<OsString>,
    parent: u32,
    users: Vec<u32>,
    handle: OwnedFd,
}

impl Process {
    /// `None` for a process that has ended, whose number may have been reused.
    fn of(number: u32) -> Option<Process> {
        let pid = Pid::from_raw(i32::try_from(number).ok()?)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let words = words_of(number)?;
        let (parent, users) = status_of(number)?;
        is_there(&handle).then_some(Process { words, parent, users, handle })
    }

    /// Whether the process acts only for this user or root. A set-user-ID program does not: its real user and its command line are those
    /// of the process that started it.
    fn is_of(&self, owner: u32) -> bool {
        !self.users.is_empty() && self.users.iter().all(|user| *user == owner || *user == 0)
    }
}

/// Whether the process has not ended.
fn is_there(handle: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&at_once)) == Ok(0)
}

/// The command line of a process.
fn words_of(process: u32) -> Option<Vec<OsString>> {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let line = line.strip_suffix(b"\0")?;
    Some(line.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned()).collect())
}

/// The parent of a process, and its real, effective, saved and file system user. The owner of its directory in /proc
/// is not enough: it is root for each process that hides its memory.
fn status_of(process: u32) -> Option<(u32, Vec<u32>)> {
    // A name may be of any bytes, but a line break in it is written as an escape.
    let status = std::fs::read(format!("/proc/{process}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let value = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let users = value("Uid:")?.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    Some((value("PPid:")?.trim().parse().ok()?, users))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Child, Command, Stdio};
    use std::thread;
    use std::time::Duration;

    use inarch_mount::mounted;

    use super::*;

    /// Anybody who can start a process can make it look like a server and its guard.
    #[test]
    fn a_server_is_of_the_user_who_mounted() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        // Of a shell the words are its script's name and what that is given.
        fs::write(directory.path().join("mount"), format!("sh {GUARD_ARGUMENT} mount \"$1\" \"$2\"; :")).unwrap();
        fs::write(directory.path().join(GUARD_ARGUMENT), "read line; :").unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let user = if is_root { 65_534 } else { rustix::process::geteuid().as_raw() };
        let start = |number| {
            let mut words = vec!["sh", "mount", "/a point", number];
            if is_root {
                words.splice(0..0, ["setpriv", "--reuid", "65534", "--clear-groups", "--regid", "65534"]);
            }
            let mut command = Command::new(words[0]);
            command.args(&words[1..]).current_dir(&directory).stdin(Stdio::piped()).spawn().unwrap()
        };
        let end = |mut server: Child| {
            drop(server.stdin.take());
            server.wait().unwrap();
        };
        let server = start("0:7/30");
        let mount =
            |device: &str, id| Entry { device: device.parse().unwrap(), id, ..mounted(Path::new("/")).unwrap() };
        let find_at = |point: &str, mount: &Entry, owner| server_of(Path::new(point), mount, owner);
        let find = |owner| find_at("/a point", &mount("0:7", 30), owner);
        let awaited = |is_meant: &dyn Fn(&ServerProcess) -> bool, number| {
            (0..1000).find_map(|_| {
                thread::sleep(Duration::from_millis(10));
                find_at("/a point", &mount("0:7", number), user).filter(|found| is_meant(found))
            })
        };
        let found = awaited(&|_| true, 30);
        // By its number where a directory above has another name; by its place in another mount namespace.
        let elsewhere = [("/b", "0:7", 30), ("/a point", "0:7", 31), ("/b", "0:7", 31), ("/a point", "0:8", 30)];
        let elsewhere = elsewhere.map(|(point, device, id)| find_at(point, &mount(device, id), user).is_some());
        let (others, of_root) = (find(user + 1).is_some(), find(0).is_some());
        // The next mount has the same device number while the earlier one's server ends. Each server is found, whichever is first.
        let next = start("0:7/32");
        let both = [30, 32].map(|number| {
            awaited(&|found| (found.process == next.id()) == (number == 32), number).map(|found| found.process)
        });
        let expected = (Some(server.id()), [Some(server.id()), Some(next.id())]);
        end(server);
        end(next);
        assert_eq!((found.map(|found| found.process), both), expected);
        assert_eq!(elsewhere, [true, true, false, false]);
        assert_eq!((others, of_root), (false, false));
        assert!(find(user).is_none());
    }
}
