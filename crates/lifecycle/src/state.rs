//! The user's state directory, and the log of background servers in it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::named::open_file;
use crate::text::shown;
use crate::trust::{self, Missing, Owner};

/// The log, and what it is called when a new one is begun.
const LOG: &str = "mount.log";
const OLDER_LOG: &str = "mount.log.old";

/// The log is renamed when it exceeds this many bytes.
const LONG: u64 = 1 << 20;

/// `$XDG_STATE_HOME/inarch`, or `~/.local/state/inarch`, or, for root without a home, `/var/lib/inarch`. `None` for
/// other users without a home.
pub fn home() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.or_else(|| rustix::process::geteuid().is_root().then(|| PathBuf::from("/var/lib")));
    state.map(|state| state.join("inarch"))
}

/// The directory of what can be made or fetched again: `$XDG_CACHE_HOME/inarch`, or `~/.cache/inarch`, or, for root without a home,
/// `/var/cache/inarch`. `None` for other users without a home.
pub fn cache() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let base = base.or_else(|| rustix::process::geteuid().is_root().then(|| PathBuf::from("/var/cache")));
    base.map(|base| base.join("inarch"))
}

/// Opens the log of mounts in `home`, creating it if necessary.
///
/// # Errors
/// It cannot be created, written to or trusted ([`trust`]).
pub fn mount_log(home: &Path) -> Result<(PathBuf, File), String> {
    trust::directory(home, &[], Missing::Make, Owner::User).map_err(|obstacle| obstacle.to_string())?;
    let path = home.join(LOG);
    let open = || {
        let log = trust::open(&path, OpenOptions::new().append(true).create(true).mode(0o600));
        log.map_err(|error| format!("{}: {error}", shown(&path)))
    };
    let mut log = open()?;
    if log.metadata().is_ok_and(|metadata| metadata.len() > LONG) {
        // Another server may have done so just now.
        let _ = fs::rename(&path, home.join(OLDER_LOG));
        log = open()?;
    }
    Ok((path, log))
}

/// Opens a log that the user named, whatever it is, for appending. Does not block on a FIFO without a reader.
///
/// # Errors
/// It cannot be created or written to, or a link in its place is another user's ([`named`](crate::named)).
pub fn open_log(path: &Path) -> io::Result<File> {
    open_file(path, OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK, Mode::RUSR | Mode::WUSR)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{chown, symlink};

    use rustix::fs::{CWD, FileType, mknodat, openat};
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_log_is_added_to_and_does_not_grow_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("a/b");
        let write = |text: &str| {
            let (path, mut file) = mount_log(&home).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            fs::read_to_string(path).unwrap()
        };
        assert_eq!(write("one\n") + &write("two\n"), "one\none\ntwo\n");
        write(&"x".repeat(LONG as usize));
        assert_eq!(write("three\n"), "three\n");
        assert!(fs::read_to_string(home.join(OLDER_LOG)).unwrap().starts_with("one\ntwo\nxxx"));
    }

    #[test]
    fn a_log_that_leads_elsewhere_is_not_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("inarch");
        let (log, victim) = (home.join(LOG), directory.path().join("victim"));
        fs::write(&victim, "x".repeat(LONG as usize + 1)).unwrap();
        fs::create_dir(&home).unwrap();
        let refused = |path: &Path, part: &str| {
            let reason = mount_log(&home).map(drop).unwrap_err();
            assert!(reason.starts_with(&path.display().to_string()) && reason.contains(part), "{reason}");
        };
        symlink(&victim, &log).unwrap();
        refused(&log, "symbolic link");
        fs::remove_file(&log).unwrap();
        fs::hard_link(&victim, &log).unwrap();
        refused(&log, "another name");
        fs::remove_file(&log).unwrap();
        mknodat(CWD, &log, FileType::Fifo, Mode::RWXU, 0).unwrap();
        refused(&log, "no regular file");
        // Nor if somebody reads it.
        let reader = openat(CWD, &log, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        refused(&log, "no regular file");
        drop(reader);
        assert_eq!(open_log(&log).unwrap_err().raw_os_error(), Some(Errno::NXIO.raw_os_error()));
        fs::remove_file(&log).unwrap();
        if rustix::process::geteuid().is_root() {
            fs::write(&log, "").unwrap();
            chown(&log, Some(65_534), None).unwrap();
            refused(&log, "belongs to user 65534");
            chown(&home, Some(65_534), None).unwrap();
            refused(&home, "belongs to user 65534");
            fs::remove_file(&log).unwrap();
        }
        fs::remove_dir(&home).unwrap();
        fs::create_dir(directory.path().join("elsewhere")).unwrap();
        symlink("elsewhere", &home).unwrap();
        refused(&home, "symbolic link");
        assert_eq!(fs::read_dir(directory.path().join("elsewhere")).unwrap().count(), 0);
        assert_eq!(fs::metadata(&victim).unwrap().len(), LONG + 1);
    }
}
