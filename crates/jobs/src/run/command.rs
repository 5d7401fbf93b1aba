//! Derives command, environment, user and directory from the request, and describes the session to the agent.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use inarch_source::Source;
use inarch_vm::protocol::{Mount, MountSource, Network, SessionRequest, User};
use inarch_vm::session::Streams;

use super::shares::{SharedTree, Wire};
use super::trees::{Disk, Trees};
use super::unpacked::UnpackedTree;
use super::{Root, RunError, RunRequest};

/// Variables that refer to this host's session, which the guest does not have.
const OF_THE_HOST: [&str; 8] = [
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "SSH_AUTH_SOCK",
    "SSH_CONNECTION",
    "SSH_CLIENT",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
];

/// Variables that depend on the user.
const OF_THE_USER: [&str; 5] = ["HOME", "USER", "LOGNAME", "SHELL", "MAIL"];

/// Variables that make sense for any root, and those of them that concern the terminal only.
const OF_ANY_ROOT: [&str; 5] = ["TERM", "COLORTERM", "LANG", "LC_ALL", "TZ"];
const OF_THE_TERMINAL: [&str; 2] = ["TERM", "COLORTERM"];

/// The guest's working directory: the requested one, or the current one if the root is this machine's.
pub(super) fn directory(request: &RunRequest) -> Result<Option<PathBuf>, RunError> {
    match (&request.working_directory, &request.root) {
        (Some(directory), Root::Host) => {
            let directory =
                if directory.is_relative() { current_directory()?.join(directory) } else { directory.clone() };
            // A symlink may lead to a tree that the name does not show.
            Ok(Some(directory.canonicalize().unwrap_or(directory)))
        }
        (Some(directory), _) if directory.is_relative() => {
            Err(RunError::RelativeDirectory { directory: directory.clone() })
        }
        (Some(directory), _) => Ok(Some(directory.clone())),
        (None, Root::Host) => current_directory().map(Some),
        (None, _) => Ok(None),
    }
}

fn current_directory() -> Result<PathBuf, RunError> {
    std::env::current_dir().map_err(RunError::NoDirectory)
}

/// The agent's session, without what [`Launch`](super::launch::Launch) adds.
pub(super) fn session(
    request: &RunRequest,
    trees: &Trees,
    streams: &Streams,
    open_files: Option<(u64, u64)>,
) -> SessionRequest {
    // The guest's own /tmp is mounted before the trees, which may be below it.
    let mut of_trees: Vec<Mount> = trees.disks.iter().filter_map(mount).collect();
    of_trees.extend(trees.shares.iter().map(SharedTree::mount));
    of_trees.extend(trees.unpacked.iter().map(UnpackedTree::mount));
    of_trees.sort_by_key(|mount| mount.target.components().count());
    let (mut mounts, below): (Vec<_>, Vec<_>) = of_trees.into_iter().partition(|mount| mount.target == Path::new("/"));
    mounts.push(Mount::tmpfs("/tmp"));
    mounts.extend(below);
    let scratch = trees.disks.iter().find(|disk| disk.destination.is_none()).map(|disk| disk.serial.clone());
    let usual_size = inarch_vm::protocol::WindowSize { rows: 24, columns: 80 };
    SessionRequest {
        hostname: Some("inarch".to_owned()),
        set_clock: true,
        network: match request.net {
            true => Some(Network::QEMU_USER),
            false => trees.need(Wire::NinepOverTcp).then_some(Network::QEMU_RESTRICTED),
        },
        mounts,
        scratch,
        terminal: request.terminal.then(|| streams.window_size().unwrap_or(usual_size)),
        open_files,
        umask: Some(umask().unwrap_or(0o022)),
        // A kept disk, an image, and a share with writes are unmounted as at a proper shutdown.
        clean_shutdown: request.keep.is_some()
            || !request.caches.is_empty()
            || trees.shares.iter().any(|shared| !shared.share.refuses_writes())
            || request.disks.iter().any(|disk| !disk.read_only),
        disks: (1..=request.disks.len()).map(|number| format!("disk{number}")).collect(),
        ..SessionRequest::default()
    }
}

/// How the guest mounts a disk; `None` for a disk without a place of its own.
fn mount(disk: &Disk) -> Option<Mount> {
    Some(Mount {
        source: MountSource::DiskSerial(disk.serial.clone()),
        fstype: disk.recipe.format.name().to_owned(),
        target: disk.destination.clone()?,
        options: String::new(),
        read_only: disk.read_only && !disk.overlaid,
        no_suid_no_dev: matches!(&disk.recipe.source, Source::Cache(cache) if !cache.is_tree()),
        // Access times would be writes, which are pure cost on a disk that is thrown away.
        no_atime: true,
        overlaid: disk.overlaid,
    })
}

/// The command; a shell if none is given.
pub(super) fn command(request: &RunRequest) -> Result<Vec<OsString>, RunError> {
    if !request.command.is_empty() {
        return Ok(request.command.clone());
    }
    if !request.terminal && !request.shell {
        return Err(RunError::NoCommand);
    }
    let shell = (request.root == Root::Host).then(|| std::env::var_os("SHELL")).flatten();
    Ok(vec![shell.filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())])
}

/// For this machine's root the command gets this process's variables, as any command would; for another root only those
/// that mean the same there. Variables given by name take precedence.
pub(super) fn environment(request: &RunRequest) -> Vec<(OsString, OsString)> {
    let passes = |name: &OsStr| {
        if !request.own_environment {
            return false;
        }
        let is_one_of = |names: &[&str]| names.iter().any(|other| name == *other);
        match request.root {
            Root::Host => !is_one_of(&OF_THE_HOST) && (request.user.is_none() || !is_one_of(&OF_THE_USER)),
            _ => is_one_of(&OF_ANY_ROOT),
        }
    };
    let asked = |name: &OsStr| request.environment.iter().any(|(key, _)| key == name);
    let mut all: Vec<_> = std::env::vars_os().filter(|(name, _)| passes(name) && !asked(name)).collect();
    all.extend(request.environment.iter().cloned());
    all
}

/// This process's variables about its terminal.
pub(super) fn terminal_variables() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| OF_THE_TERMINAL.iter().any(|other| name == *other))
}

/// The requested user, or this process's user if the root is this machine's; `None` for root.
pub(super) fn requested_user(request: &RunRequest) -> Result<Option<User>, RunError> {
    match (&request.user, &request.root) {
        (Some(text), _) => user(text).map(Some),
        (None, Root::Host | Root::None) => caller().map(Some),
        (None, Root::Source(_)) => Ok(None),
    }
}

/// This process's user, with all groups.
fn caller() -> Result<User, RunError> {
    let groups = rustix::process::getgroups().map_err(|errno| RunError::Groups(errno.into()))?;
    Ok(User::Ids {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        groups: groups.into_iter().map(|group| group.as_raw()).collect(),
    })
}

/// Parses `USER[:GROUP]`, each a name or a number.
pub(super) fn user(text: &str) -> Result<User, RunError> {
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    match user.is_empty() || group.is_some_and(|group| group.is_empty() || group.contains(':')) {
        true => Err(RunError::User(text.to_owned())),
        false => Ok(User::Name(text.to_owned())),
    }
}

/// This process's file mode creation mask. umask(2) would change it; the kernel shows it in /proc.
fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_names_or_numbers() {
        for right in ["0", "1000:100", "nobody", "nobody:users", "1000:users", "nobody:100"] {
            assert_eq!(user(right).unwrap(), User::Name(right.to_owned()));
        }
        for wrong in ["", ":", ":0", "1:", "nobody:", "a:b:c"] {
            assert!(user(wrong).is_err(), "{wrong}");
        }
    }
}
