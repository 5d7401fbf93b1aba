//! `umount`: unmounts what this program mounted, and waits until its server has ended. Then all writes are in place, and another mount can
//! use the same upper layer.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use inarch_lifecycle::Events;
use inarch_lifecycle::guard::Guarded;
use inarch_lifecycle::guarded::{ServerProcess, guard_at, server_of};
use inarch_lifecycle::shown;
use inarch_mount::{self as mount, Copy, Entry, Held, MountError, Place, User};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::event::{Users, word};
use super::{MountEvent, NotUnmounted};
use crate::JobError;

/// How long to wait for the end of a server.
struct Patience {
    /// The time between two looks at the server. After the first, a line says which process is waited for.
    look: Timespec,
    /// The most looks at a server that does nothing.
    idle: u32,
    /// The most looks at a server that works.
    longest: u32,
}

/// Half a minute, and ten minutes.
const PATIENCE: Patience = Patience { look: Timespec { tv_sec: 3, tv_nsec: 0 }, idle: 10, longest: 200 };

/// How long a server may take to end until a copy of its mount counts as the reason why it does not.
const GRACE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What to unmount.
#[derive(Clone, Debug)]
pub struct UnmountRequest {
    /// Mount points. Of several mounts at one point, the uppermost is unmounted.
    pub points: Vec<PathBuf>,
    /// Whether to detach a mount in use. Its users can go on until they close their files.
    pub lazy: bool,
}

/// Unmounts one point after the other, also if another one fails. Each result comes when the server has ended. It is an error if the
/// server has not, unless `lazy` left the mount to its users. A mount is also in use if this process has its working directory or an open
/// file there; it may leave them after this call, before it takes the first result.
pub fn unmount(request: &UnmountRequest, events: &Events<MountEvent>) -> impl Iterator<Item = Result<(), JobError>> {
    let points: Vec<_> = request.points.iter().map(|point| (point, std::path::absolute(point))).collect();
    let work = Work { lazy: request.lazy, events };
    points.into_iter().map(move |(point, absolute)| {
        let absolute = absolute.map_err(|error| JobError::path(point, "cannot be unmounted", error))?;
        take_away(point, &absolute, &work)
    })
}

/// The points of this mount namespace at which a mount of Inarch's is the uppermost.
pub fn mounted() -> Vec<PathBuf> {
    let all = mount::topmost_beneath(Path::new("/"));
    all.into_iter().filter(|(point, entry)| is_ours(point, entry)).map(|(point, _)| point).collect()
}

/// How to unmount, and who receives events.
#[derive(Clone, Copy)]
struct Work<'a> {
    lazy: bool,
    events: &'a Events<MountEvent>,
}

fn take_away(point: &Path, absolute: &Path, work: &Work<'_>) -> Result<(), JobError> {
    let (point, entry) = find(point, absolute)?;
    let (own, owner) = (rustix::process::geteuid(), entry.user.unwrap_or(0));
    if !own.is_root() && owner != own.as_raw() {
        let owner = if owner == 0 { "root".to_owned() } else { format!("user {owner}") };
        return refuse(&point, format!("{owner} mounted it, and no other user can unmount it"));
    }
    let held = Held::new(&point, &entry)?;
    // The server is found by its guard, which is there as long as the mount.
    let server = server_of(&point, &entry, owner);
    let kind = server.as_ref().map_or(Guarded::Mount, |server| server.kind);
    if kind == Guarded::BindOfMounts {
        // A mount in it that is in use keeps the whole in use. The line below names its users.
        let _ = held.unmount_within();
    }
    let is_bound = matches!(kind, Guarded::Bind | Guarded::BindOfMounts);
    // The file system of a bind mount is always mounted elsewhere, too.
    let copies = if is_bound { Vec::new() } else { mount::copies(&entry) };
    let users = match unmount_unused(&held, &entry, work.lazy) {
        Ok(None) => {
            note_what_is_left(&point, work);
            server.map_or(Ok(()), |server| wait(&server, &PATIENCE, &point, &entry, &copies, work))?;
            return Ok(());
        }
        Ok(Some(mut users)) => {
            // The mounts that were bound with it do not count as users, but the users of those mounts do.
            if kind == Guarded::BindOfMounts {
                users.extend(held.mounts_within().iter().flat_map(|(_, entry)| mount::users(entry)));
            }
            used_by(&point, users)
        }
        Err(error) => return Err(error.into()),
    };
    if !work.lazy {
        return refuse(&point, format!("{users}; --lazy takes it out of the file tree all the same"));
    }
    mount::detach(&held)?;
    work.events.emit(MountEvent::Detached { point: point.clone(), users, is_bound });
    note_what_is_left(&point, work);
    Ok(())
}

/// Notes that another mount of ours, which the unmounted one covered, is at `point` now.
fn note_what_is_left(point: &Path, work: &Work<'_>) {
    let left = mount::mounts_at(point).into_iter().find(|place| place.cover.is_none() && is_ours(point, &place.entry));
    if let Some(place) = left {
        work.events.emit(MountEvent::Uncovered { point: point.to_owned(), source: place.entry.source });
    }
}

/// Unmounts, or returns the users of a mount that stays in use for two seconds. That is enough for programs that only look around, such
/// as an indexer or a scan of this machine's files. One that is detached in any case is not waited for.
fn unmount_unused(held: &Held, entry: &Entry, lazy: bool) -> Result<Option<Vec<User>>, MountError> {
    const ATTEMPTS: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..if lazy { 1 } else { ATTEMPTS } {
        match mount::unmount_unused(held) {
            Ok(()) => return Ok(None),
            Err(MountError::Busy { .. }) => {}
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE);
    }
    Ok(Some(mount::users(entry)))
}

fn refuse(point: &Path, reason: String) -> Result<(), JobError> {
    Err(NotUnmounted::Refused { point: point.to_owned(), reason }.into())
}

/// The mount that `path` means (as an absolute path, `absolute`), and its mount point. Reads only the mount table, because the server
/// may not answer.
fn find(path: &Path, absolute: &Path) -> Result<(PathBuf, Entry), JobError> {
    let beside = absolute.parent().zip(absolute.file_name());
    let named = beside.and_then(|(parent, name)| Some(parent.canonicalize().ok()?.join(name)));
    let named = named.unwrap_or_else(|| absolute.to_owned());
    let mut places = mount::mounts_at(&named);
    let target = absolute.canonicalize();
    // `path` may be a symbolic link to it.
    if let (true, Ok(target)) = (places.is_empty(), &target) {
        places = mount::mounts_at(target);
    }
    let ours = places.iter().rfind(|place| is_ours(&place.point, &place.entry));
    let seen = places.iter().find(|place| place.cover.is_none());
    let (point, reason) = match (ours, seen.or(places.last())) {
        (_, Some(Place { point, entry, cover: None })) if is_ours(point, entry) => {
            return Ok((point.clone(), entry.clone()));
        }
        (Some(Place { point, cover: Some(cover), .. }), _) => (&**point, covered_by(cover)),
        (_, Some(Place { point, entry, .. })) => (&**point, not_ours(point, entry)),
        // The guard comes first: a server enters a mount namespace of its own, which is a copy, and empties it.
        (_, None) => match (guard_at(&named, 0).or_else(|| mount::process_that_sees(&named)), target) {
            (Some(process), _) => (path, elsewhere(process, &named)),
            (None, Ok(_)) => (path, format!("nothing is mounted there{}", within(absolute))),
            (None, Err(error)) => return Err(JobError::path(path, "cannot be unmounted", error)),
        },
    };
    Err(NotUnmounted::NotOurs { point: point.to_owned(), reason }.into())
}

/// Whether Inarch mounted what is at `point`. A mount that the kernel serves is recognised by its guard.
fn is_ours(point: &Path, entry: &Entry) -> bool {
    entry.is_fuse() || server_of(point, entry, 0).is_some()
}

/// Says which mount covers a mount of ours.
fn covered_by((point, cover): &(PathBuf, Entry)) -> String {
    let (source, kind) = (shown(&cover.source), &cover.kind);
    let command = if is_ours(point, cover) { "inarch umount" } else { "umount" };
    let point = word(point);
    format!("{source} ({kind}) covers what Inarch mounted there; take that away first: {command} {point}")
}

fn not_ours(point: &Path, entry: &Entry) -> String {
    if point == Path::new("/") {
        return "it is the root of all files, which Inarch did not mount".to_owned();
    }
    let (source, kind) = (shown(&entry.source), &entry.kind);
    format!("{source} is mounted there ({kind}), which Inarch did not mount; umount takes it away")
}

/// Says what to do if only another mount namespace has the mount.
fn elsewhere(process: u32, point: &Path) -> String {
    let command = format!("nsenter --target {process} --mount inarch umount {}", word(point));
    format!("nothing is mounted there but in the mount namespace of process {process}; as root: {command}")
}

/// If `path` lies in a mount of ours, says so as the end of a line.
fn within(path: &Path) -> String {
    let above = |point: &&Path| mount::mounted(point).is_some_and(|entry| is_ours(point, &entry));
    let within = path.ancestors().find(above);
    within.map_or(String::new(), |point| format!("; it lies in the mount {}", shown(point)))
}

/// What keeps the mount in use.
fn used_by(point: &Path, users: Vec<User>) -> Users {
    let within = mount::mount_points_beneath(point).into_iter().next().filter(|_| users.is_empty());
    within.map_or(Users::Processes(users), Users::Mount)
}

/// Waits until the server has ended, as long as it makes progress with its writes. If the same file system is still mounted elsewhere (one
/// of the copies in `before`), the server may run for any time, so that is an error.
///
/// # Errors
/// The server has not ended.
fn wait(
    server: &ServerProcess,
    patience: &Patience,
    point: &Path,
    entry: &Entry,
    before: &[Copy],
    work: &Work<'_>,
) -> Result<(), NotUnmounted> {
    let fail = |errno: Errno| NotUnmounted::Wait(errno.into());
    let ends_within = |limit: &Timespec| {
        let ready = poll(&mut [PollFd::new(&server.handle, PollFlags::IN)], Some(limit));
        ready.map(|count| count > 0).map_err(fail)
    };
    let stays = |why: String| Err(NotUnmounted::ServerStays { point: point.to_owned(), process: server.process, why });
    // While a mount is elsewhere the server goes on. It may have entered a mount namespace of its own just now, and empties that.
    let first = if before.is_empty() { &patience.look } else { &GRACE };
    if ends_within(first)? {
        return Ok(());
    }
    // Another file system may have its device number by now. One of the earlier copies is certainly the same.
    let copy = |counts: &dyn Fn(&Copy) -> bool| {
        let copies = mount::copies(entry);
        let copy = copies.iter().find(|copy| before.contains(copy) && counts(copy))?;
        let within = copy.process.map_or(String::new(), |process| format!(" for process {process}"));
        Some(format!("goes on: it is mounted at {}{within}, too", shown(&copy.point)))
    };
    if let Some(why) = copy(&|copy| copy.process != Some(server.process)) {
        return stays(why);
    }
    if !before.is_empty() && ends_within(&patience.look)? {
        return Ok(());
    }
    work.events.emit(MountEvent::WaitsForServer { process: server.process });
    let (mut idle, mut last) = (0, server.work());
    for _ in 0..patience.longest {
        if ends_within(&patience.look)? {
            return Ok(());
        }
        let done = server.work();
        let works = done != last || done.is_some_and(|done| done.waits_for_disk);
        (idle, last) = (if works { 0 } else { idle + 1 }, done);
        if idle == patience.idle {
            let idle = || "does nothing and does not end; it may have something left to write".to_owned();
            return stays(copy(&|_| true).unwrap_or_else(idle));
        }
    }
    stays("is still at work; wait for its end".to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// The result of waiting for a server, which is a shell that runs `script`.
    fn waited_for(script: &str, idle: u32, longest: u32) -> Result<(), String> {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let look = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        // Nothing is mounted like this.
        let entry = Entry { device: "0:0".parse().unwrap(), ..mount::mounted(Path::new("/")).unwrap() };
        let server = ServerProcess::of_child(&child).unwrap();
        let ended = wait(
            &server,
            &Patience { look, idle, longest },
            Path::new("/point"),
            &entry,
            &[],
            &Work { lazy: false, events: &Events::ignored() },
        );
        end(&mut child);
        ended.map_err(|error| error.to_string())
    }

    fn end(child: &mut Child) {
        let _ = child.kill();
        child.wait().unwrap();
    }

    #[test]
    fn a_server_that_does_not_end_is_told_of() {
        assert_eq!(waited_for("exec sleep 0.2", 1000, 1000), Ok(()));
        let idle = waited_for("exec sleep 1000", 3, 1000).unwrap_err();
        assert!(idle.contains("/point is unmounted, but") && idle.contains("does nothing and does not end"), "{idle}");
        let busy = waited_for("while :; do :; done", 1000, 10).unwrap_err();
        assert!(busy.contains("is still at work"), "{busy}");
    }
}
