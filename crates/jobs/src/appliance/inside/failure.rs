//! Why something failed in the guest: a line for the user.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

use inarch_lifecycle::shown;

/// A failure, as the host is told.
#[derive(Debug)]
pub(super) struct Failure {
    pub text: String,
    pub errno: Option<i32>,
}

impl Failure {
    pub fn new(text: impl Into<String>) -> Failure {
        Failure { text: text.into(), errno: None }
    }

    /// A failed operation.
    pub fn of(what: impl Display, error: impl Into<io::Error>) -> Failure {
        let error = error.into();
        let reason = match error.raw_os_error().map(io::Error::from_raw_os_error) {
            // Without the number.
            Some(error) => error.to_string().split(" (os error").next().unwrap_or_default().to_owned(),
            None => error.to_string(),
        };
        Failure { text: format!("{what}: {reason}"), errno: error.raw_os_error() }
    }

    /// A failed operation on a path of the mounted tree.
    pub fn at(path: &[u8], error: impl Into<io::Error>) -> Failure {
        use std::os::unix::ffi::OsStrExt;
        Failure::of(shown(std::path::Path::new(std::ffi::OsStr::from_bytes(path))), error)
    }

    /// With what the kernel said last, which tells more than the number of an error.
    pub fn with_kernel_log(self, since: usize) -> Failure {
        let lines = kernel_log();
        let said: Vec<_> = lines.into_iter().skip(since).filter(|line| !line.is_empty()).collect();
        let last = said.len().saturating_sub(3);
        match said.get(last..) {
            Some([]) | None => self,
            Some(said) => Failure { text: format!("{} (the kernel: {})", self.text, said.join("; ")), ..self },
        }
    }
}

/// The lines of the kernel's log so far, without levels and times.
pub(super) fn kernel_log() -> Vec<String> {
    let Ok(mut log) = File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg") else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    let mut record = [0; 8192];
    // Each read gives a record: "priority,number,time,flags;text\n".
    while lines.len() < 100_000 {
        match log.read(&mut record) {
            Ok(length @ 1..) => {
                let text = String::from_utf8_lossy(record.get(..length).unwrap_or_default()).into_owned();
                let text = text.split_once(';').map_or("", |(_, text)| text).lines().next().unwrap_or_default();
                lines.push(text.to_owned());
            }
            // Records were overwritten meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            _ => break,
        }
    }
    lines
}
