//! `umount`: takes a mount of this program's away, and waits for the end of its server: only then has all that was written
//! its place, and can another mount go on there.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use inarch_mount::{self as mount, Copy, Entry, Held, MountError, Place, User};
use inarch_vm::qemu::shell_word;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{MountEvent, NotUnmounted};
use crate::JobError;
use crate::events::Events;
use crate::lifecycle::guard::Guarded;
use crate::lifecycle::guarded::{ServerProcess, guard_at, server_of};
use crate::text::shown;

/// How long the end of a server is waited for.
struct Patience {
    /// After this long it is said who is waited for, and it is looked again what that does.
    look: Timespec,
    /// So many times a server that does nothing is looked at.
    idle: u32,
    /// So many times one that works is.
    longest: u32,
}

/// Half a minute, and ten minutes.
const PATIENCE: Patience = Patience { look: Timespec { tv_sec: 3, tv_nsec: 0 }, idle: 10, longest: 200 };

/// Processes that are named, at most.
const NAMED: usize = 5;

/// What to take away.
#[derive(Clone, Debug)]
pub struct UnmountRequest {
    /// Where mounts are; of several at one place the uppermost goes.
    pub points: Vec<PathBuf>,
    /// Whether one goes even if somebody uses it, who then does so until they have done.
    pub lazy: bool,
}

/// Takes them away, one after the other, whatever becomes of the others. Each time it returns when the server has ended;
/// that it has not is an error, unless somebody still uses the mount and may. A mount that this process itself uses, as the place
/// of its working directory or of an open file, is in use as well: it may leave that after the call, and before it takes the first
/// result.
pub fn unmount(request: &UnmountRequest, events: &Events<MountEvent>) -> impl Iterator<Item = Result<(), JobError>> {
    let points: Vec<_> = request.points.iter().map(|point| (point, std::path::absolute(point))).collect();
    let work = Work { lazy: request.lazy, events };
    points.into_iter().map(move |(point, absolute)| {
        let absolute = absolute.map_err(|error| JobError::path(point, "cannot be unmounted", error))?;
        take_away(point, &absolute, &work)
    })
}

/// How mounts are taken away, and who is told.
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
    // As long as it is mounted, it is known by its guard.
    let server = server_of(&point, &entry, owner);
    let kind = server.as_ref().map_or(Guarded::Mount, |server| server.kind);
    if kind == Guarded::BindOfMounts {
        // Who uses one of them uses the whole, and is told of below.
        let _ = held.unmount_within();
    }
    let is_bound = matches!(kind, Guarded::Bind | Guarded::BindOfMounts);
    // What is bound is mounted elsewhere in any case.
    let copies = if is_bound { Vec::new() } else { mount::copies(&entry) };
    let users = match unmount_unused(&held, &entry) {
        Ok(None) => {
            note_what_is_left(&point, work);
            server.map_or(Ok(()), |server| wait(&server, &PATIENCE, &point, &entry, &copies, work))?;
            return Ok(());
        }
        Ok(Some(mut users)) => {
            // Of what was bound with it, it is told who uses that, and not that it is there.
            if kind == Guarded::BindOfMounts {
                users.extend(held.mounts_within().iter().flat_map(|(_, entry)| mount::users(entry)));
            }
            described(&point, &users)
        }
        Err(error) => return Err(error.into()),
    };
    if !work.lazy {
        return refuse(&point, format!("{users}; --lazy takes it out of the file tree all the same"));
    }
    mount::detach(&held)?;
    let rest = if is_bound { "they keep the files that they have open" } else { "its server ends after them" };
    work.note(format_args!("{}: {users}; {rest}", shown(&point)));
    note_what_is_left(&point, work);
    Ok(())
}

/// Tells that the mount which was taken away from `point` had covered another one of ours.
fn note_what_is_left(point: &Path, work: &Work<'_>) {
    let left = mount::mounts_at(point).into_iter().find(|place| place.cover.is_none() && is_ours(point, &place.entry));
    if let Some(place) = left {
        let source = shown(&place.entry.source);
        work.note(format_args!(
            "{0}: Inarch had mounted {source} beneath, and it is there still; inarch umount {0} again takes it away",
            word(point)
        ));
    }
}

/// Takes the mount away, or gives those who use it for two seconds: who only looks what is there, an indexer or a scan of this
/// machine's files, is waited for.
fn unmount_unused(held: &Held, entry: &Entry) -> Result<Option<Vec<User>>, MountError> {
    const ATTEMPTS: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..ATTEMPTS {
        match mount::unmount_unused(held) {
            Ok(()) => return Ok(None),
            Err(MountError::Busy { .. }) => {}
            Err(error) => return Err(error),
        }
        thread::sleep(PAUSE);
    }
    Ok(Some(mount::users(entry)))
}

impl Work<'_> {
    /// Tells what is no failure.
    fn note(&self, line: impl Display) {
        self.events.emit(MountEvent::Note(line.to_string()));
    }
}

fn refuse(point: &Path, reason: String) -> Result<(), JobError> {
    Err(NotUnmounted::Refused { point: point.to_owned(), reason }.into())
}

/// The mount that `path` means, which is `absolute`, and where it is: by the table, as the server may not answer.
fn find(path: &Path, absolute: &Path) -> Result<(PathBuf, Entry), JobError> {
    let beside = absolute.parent().zip(absolute.file_name());
    let named = beside.and_then(|(parent, name)| Some(parent.canonicalize().ok()?.join(name)));
    let named = named.unwrap_or_else(|| absolute.to_owned());
    let mut places = mount::mounts_at(&named);
    let target = absolute.canonicalize();
    // A symbolic link to it.
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
        (_, None) => match (mount::process_that_sees(&named).or_else(|| guard_at(&named, 0)), target) {
            (Some(process), _) => (path, elsewhere(process, &named)),
            (None, Ok(_)) => (path, format!("nothing is mounted there{}", within(absolute))),
            (None, Err(error)) => return Err(JobError::path(path, "cannot be unmounted", error)),
        },
    };
    Err(NotUnmounted::NotOurs { point: point.to_owned(), reason }.into())
}

/// Whether Inarch mounted what is at `point`: what the kernel serves by itself is known by its guard.
fn is_ours(point: &Path, entry: &Entry) -> bool {
    entry.is_fuse() || server_of(point, entry, 0).is_some()
}

/// What is in the way of a mount of ours.
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

/// What to do where only another mount namespace has it.
fn elsewhere(process: u32, point: &Path) -> String {
    let command = format!("nsenter --target {process} --mount inarch umount {}", word(point));
    format!("nothing is mounted there but in the mount namespace of process {process}; as root: {command}")
}

/// A path as a word of a command.
fn word(path: &Path) -> String {
    shown(Path::new(&shell_word(path.as_os_str())))
}

/// That `path` lies in a mount of ours, as part of a line.
fn within(path: &Path) -> String {
    let above = |point: &&Path| mount::mounted(point).is_some_and(|entry| is_ours(point, &entry));
    let within = path.ancestors().find(above);
    within.map_or(String::new(), |point| format!("; it lies in the mount {}", shown(point)))
}

/// What keeps the mount in use, as part of a line.
fn described(point: &Path, users: &[User]) -> String {
    if users.is_empty()
        && let Some(within) = mount::mount_points_beneath(point).first()
    {
        return format!("{} is mounted in it", shown(within));
    }
    let name = |user: &User| format!("{} ({})", shown(Path::new(&user.name)), user.process);
    let names: Vec<String> = users.iter().take(NAMED).map(name).collect();
    match users.len().saturating_sub(NAMED) {
        _ if users.is_empty() => "it is in use, by processes that this user cannot look at".to_owned(),
        0 => format!("it is in use by {}", names.join(", ")),
        more => format!("it is in use by {} and {more} more", names.join(", ")),
    }
}

/// Waits until the server has ended, as long as it works on what it has to write. What else is mounted of it, some of `before`, keeps
/// it for as long as somebody likes: that is not waited for.
///
/// # Errors
/// It has not ended.
fn wait(
    server: &ServerProcess,
    patience: &Patience,
    point: &Path,
    entry: &Entry,
    before: &[Copy],
    work: &Work<'_>,
) -> Result<(), NotUnmounted> {
    let fail = |errno: Errno| NotUnmounted::Wait(errno.into());
    let has_ended = || {
        let ready = poll(&mut [PollFd::new(&server.handle, PollFlags::IN)], Some(&patience.look));
        ready.map(|count| count > 0).map_err(fail)
    };
    let stays = |why: String| Err(NotUnmounted::ServerStays { point: point.to_owned(), process: server.process, why });
    if has_ended()? {
        return Ok(());
    }
    // Another file system may have its number by now; of those that were there before it is the same.
    if let Some(copy) = mount::copies(entry).iter().find(|copy| before.contains(copy)) {
        let within = copy.process.map_or(String::new(), |process| format!(" for process {process}"));
        return stays(format!("goes on: it is mounted at {}{within}, too", shown(&copy.point)));
    }
    work.note(format_args!("waiting for the end of the server, process {}", server.process));
    let (mut idle, mut last) = (0, server.work());
    for _ in 0..patience.longest {
        if has_ended()? {
            return Ok(());
        }
        let done = server.work();
        let works = done != last || done.is_some_and(|done| done.waits_for_disk);
        (idle, last) = (if works { 0 } else { idle + 1 }, done);
        if idle == patience.idle {
            return stays("does nothing and does not end; it may have something left to write".to_owned());
        }
    }
    stays("is still at work; wait for its end".to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    /// How a server ends whose mount is gone; it is a shell that runs `script`.
    fn waited_for(script: &str, idle: u32, longest: u32) -> Result<(), String> {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let look = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        // Nothing is mounted like this.
        let entry = Entry { device: "0:0".parse().unwrap(), ..mount::mounted(Path::new("/")).unwrap() };
        let server = ServerProcess::of_child(&child);
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
