//! The user's directory of state, and the log of servers in the background in it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;

use crate::lifecycle::trust::{self, Missing, Owner};
use crate::text::shown;

/// The log, and what it is called when a new one is begun.
const LOG: &str = "mount.log";
const OLDER_LOG: &str = "mount.log.old";

/// Above this many bytes a new log is begun, so that it does not grow for ever.
const LONG: u64 = 1 << 20;

/// `$XDG_STATE_HOME/inarch`, or `~/.local/state/inarch`, or for root without a home `/var/lib/inarch`. None for others without a
/// home.
pub(crate) fn home() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.or_else(|| rustix::process::geteuid().is_root().then(|| PathBuf::from("/var/lib")));
    state.map(|state| state.join("inarch"))
}

/// Opens the log of mounts in `home`, made if it is not there.
///
/// # Errors
/// What cannot be made, written to or trusted ([`trust`]), by its name.
pub(crate) fn mount_log(home: &Path) -> Result<(PathBuf, File), String> {
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

/// Opens the log that the user names, whatever that is, whose lines are added to what is there. A FIFO that nobody reads is not
/// waited for.
///
/// # Errors
/// It cannot be made or written to.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)
}

/// A time as ISO 8601 has it, in UTC and whole seconds: `2026-11-23T14:30:05Z`. Before 1970 it is 1970.
pub(crate) fn time(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, in eras of 400 of them: a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::{chown, symlink};
    use std::time::Duration;

    use rustix::fs::{CWD, FileType, Mode, mknodat, openat};
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn times_are_those_of_date() {
        // date -u -d @SECONDS +%FT%TZ
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_078_099_200, "2004-03-01T00:00:00Z"),
            (1_795_444_205, "2026-11-23T14:30:05Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
        ] {
            assert_eq!(time(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

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
