//! What a run is, besides the files that it uses: the command and its surroundings.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;

use rustix::process::{getegid, geteuid, getgid, getgroups, getuid};
use rustix::system::uname;

use super::hashed::Digest;
use crate::TraceRequest;

/// Variables that a shell, a terminal or a login changes by itself.
const OF_A_SESSION: [&str; 12] = [
    "_",
    "SHLVL",
    "PWD",
    "OLDPWD",
    "COLUMNS",
    "LINES",
    "WINDOWID",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XDG_SESSION_ID",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
];
const OF_A_SESSION_PREFIXES: [&str; 4] = ["TERM_", "SSH_", "DBUS_", "VTE_"];

/// Each part of what a run is, by the name that a reason has for it. Values may be secret, so there are only their digests.
pub type Key = BTreeMap<Vec<u8>, Digest>;

fn is_of_a_session(variable: &OsStr) -> bool {
    let is = |name: &&str| variable == OsStr::new(name);
    OF_A_SESSION.iter().any(is)
        || OF_A_SESSION_PREFIXES.iter().any(|prefix| variable.as_bytes().starts_with(prefix.as_bytes()))
}

/// The digest of a list. No other list has the same.
fn of_all<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> Digest {
    let mut all = Vec::new();
    for part in parts {
        all.extend((part.len() as u64).to_le_bytes());
        all.extend(part);
    }
    Digest::of(&all)
}

/// The key of a run of `request` by this process. `outside` is all that is not recorded. `options` are further parts.
///
/// # Errors
/// Something of this process cannot be found out.
pub fn key(request: &TraceRequest, outside: &[std::path::PathBuf], options: &[(&str, Vec<u8>)]) -> io::Result<Key> {
    let mut key = Key::new();
    let mut add = |name: &str, digest| drop(key.insert(name.as_bytes().to_vec(), digest));
    add("the command", of_all(request.command.iter().map(|word| word.as_bytes())));
    let directory = std::env::current_dir()?;
    add("the working directory", Digest::of(directory.as_os_str().as_bytes()));
    let groups: Vec<u32> = getgroups()?.into_iter().map(|group| group.as_raw()).collect();
    let users = (getuid().as_raw(), geteuid().as_raw(), getgid().as_raw(), getegid().as_raw(), groups);
    add("the user", Digest::of(format!("{users:?}").as_bytes()));
    let status = std::fs::read_to_string("/proc/self/status")?;
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap_or_default();
    add("the umask", Digest::of(umask.trim().as_bytes()));
    let system = uname();
    let names = [system.sysname(), system.nodename(), system.release(), system.version(), system.machine()];
    add("the machine or its kernel", of_all(names.map(|name| name.to_bytes())));
    add("what is not recorded", of_all(outside.iter().map(|path| path.as_os_str().as_bytes())));
    for (name, value) in options {
        add(name, Digest::of(value));
    }
    for (name, value) in std::env::vars_os().filter(|(name, _)| !is_of_a_session(name)) {
        let part = [b"the variable ", name.as_bytes()].concat();
        key.insert(part, Digest::of(value.as_bytes()));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_session_changes_does_not_count() {
        for name in ["_", "PWD", "SSH_TTY", "TERM_PROGRAM"] {
            assert!(is_of_a_session(name.as_ref()), "{name}");
        }
        for name in ["PATH", "TERM", "CC", "__", "LANG"] {
            assert!(!is_of_a_session(name.as_ref()), "{name}");
        }
    }

    #[test]
    fn lists_that_are_alike_when_joined_have_other_digests() {
        assert_ne!(of_all([&b"ab"[..], b"c"]), of_all([&b"a"[..], b"bc"]));
    }
}
