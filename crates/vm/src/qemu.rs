//! The QEMU binary: where it is, whether it is new enough, and a command line for it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Environment variable that names the binary to use.
pub const BINARY_VARIABLE: &str = "INARCH_QEMU";
/// Oldest version that is used.
pub const OLDEST: Version = Version { major: 6, minor: 0 };

const BINARY: &str = "qemu-system-x86_64";
/// The small firmware: it starts a kernel without a BIOS's search for devices.
const QBOOT: &str = "qboot.rom";

/// A version of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
}

/// Why QEMU cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
    /// It is not installed.
    #[error("{BINARY} is not in PATH; install it (apt install qemu-system-x86) or set {BINARY_VARIABLE} to its path")]
    Missing,
    /// The variable names no program.
    #[error("{BINARY_VARIABLE} is {path}, which is not a program that can be run")]
    NotAProgram {
        /// The variable's value.
        path: PathBuf,
    },
    /// It is older than [`OLDEST`].
    #[error("{path} is version {}.{}, at least {}.{} is needed; install a newer one (apt install qemu-system-x86) or set {BINARY_VARIABLE}",
        found.major, found.minor, OLDEST.major, OLDEST.minor)]
    TooOld {
        /// The binary.
        path: PathBuf,
        /// Its version.
        found: Version,
    },
    /// It does not run.
    #[error("cannot run {path}: {source}")]
    Run {
        /// The binary.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It does not print a version as QEMU does.
    #[error("{path} does not say its version as QEMU does: {output:?}")]
    NotQemu {
        /// The binary.
        path: PathBuf,
        /// What it printed first.
        output: String,
    },
}

/// A QEMU binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    path: PathBuf,
}

impl Qemu {
    /// Finds the binary: what `INARCH_QEMU` names, else `qemu-system-x86_64` in `PATH`. Does not run it, so that a start
    /// need not wait; [`Qemu::version`] is for those who want to know.
    ///
    /// # Errors
    /// There is none.
    pub fn find() -> Result<Qemu, QemuError> {
        if let Some(path) = env::var_os(BINARY_VARIABLE).filter(|value| !value.is_empty()) {
            let path = PathBuf::from(path);
            return if is_program(&path) { Ok(Qemu { path }) } else { Err(QemuError::NotAProgram { path }) };
        }
        let directories = env::var_os("PATH").unwrap_or_default();
        let path = env::split_paths(&directories).map(|directory| directory.join(BINARY)).find(|path| is_program(path));
        path.map(|path| Qemu { path }).ok_or(QemuError::Missing)
    }

    /// The binary `path`.
    pub fn at(path: &Path) -> Qemu {
        Qemu { path: path.to_owned() }
    }

    /// Where the binary is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the binary for its version.
    ///
    /// # Errors
    /// It cannot be run, is no QEMU, or is older than [`OLDEST`].
    pub fn version(&self) -> Result<Version, QemuError> {
        let path = self.path.clone();
        let output = match Command::new(&path).arg("--version").output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(source) => return Err(QemuError::Run { path, source }),
        };
        match parse_version(&output) {
            Some(found) if found < OLDEST => Err(QemuError::TooOld { path, found }),
            Some(found) => Ok(found),
            None => Err(QemuError::NotQemu { path, output: output.lines().next().unwrap_or_default().to_owned() }),
        }
    }

    /// The small firmware, if it is installed where this QEMU or the system keeps its firmware.
    pub fn qboot(&self) -> Option<PathBuf> {
        let own = self.path.canonicalize().ok().and_then(|path| Some(path.parent()?.parent()?.join("share/qemu")));
        let system = ["/usr/share/qemu", "/usr/local/share/qemu", "/usr/share/seabios"].map(PathBuf::from);
        own.into_iter().chain(system).map(|directory| directory.join(QBOOT)).find(|path| path.is_file())
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Reads `QEMU emulator version 7.2.22 (Debian ...)`.
fn parse_version(output: &str) -> Option<Version> {
    let mut numbers = output.strip_prefix("QEMU emulator version ")?.split(['.', ' ', '\n']);
    Some(Version { major: numbers.next()?.parse().ok()?, minor: numbers.next()?.parse().ok()? })
}

/// A command line and the descriptors that its program inherits, under the numbers they have here.
#[derive(Debug)]
pub struct QemuCommand {
    /// The binary.
    pub program: PathBuf,
    /// Arguments, without the program's name.
    pub arguments: Vec<OsString>,
    /// Descriptors that the arguments name.
    pub descriptors: Vec<OwnedFd>,
}

impl QemuCommand {
    /// The command line as one line that a shell reads back.
    pub fn shell_line(&self) -> String {
        let words = std::iter::once(self.program.as_os_str()).chain(self.arguments.iter().map(OsString::as_os_str));
        words.map(shell_word).collect::<Vec<_>>().join(" ")
    }
}

/// `word` quoted for a shell, if it needs quotes. Bytes that are not UTF-8 are shown as U+FFFD.
pub fn shell_word(word: &OsStr) -> String {
    let text = String::from_utf8_lossy(word.as_bytes());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@%+=:,./_-".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// `value` as part of a QEMU option list, where a comma is written twice.
pub(crate) fn option_value(value: &OsStr) -> OsString {
    let mut escaped = Vec::with_capacity(value.len());
    for &byte in value.as_bytes() {
        escaped.extend(std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 }));
    }
    OsStr::from_bytes(&escaped).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let debian = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright (c) 2003";
        assert_eq!(parse_version(debian), Some(Version { major: 7, minor: 2 }));
        assert_eq!(parse_version("QEMU emulator version 10.0.0\n"), Some(Version { major: 10, minor: 0 }));
        assert_eq!(parse_version("bash 5.2"), None);
    }

    #[test]
    fn other_program_is_told_apart() {
        let error = Qemu::at(Path::new("/bin/true")).version().unwrap_err();
        assert!(error.to_string().starts_with("/bin/true does not say its version"), "{error}");
        let error = Qemu::at(Path::new("/nonexistent")).version().unwrap_err();
        assert!(error.to_string().starts_with("cannot run /nonexistent"), "{error}");
    }

    #[test]
    fn shell_words() {
        assert_eq!(shell_word(OsStr::new("-m")), "-m");
        assert_eq!(shell_word(OsStr::new("a b's")), r"'a b'\''s'");
        assert_eq!(shell_word(OsStr::new("")), "''");
        assert_eq!(shell_word(OsStr::new("~/x")), "'~/x'");
    }

    #[test]
    fn commas_in_option_values_are_doubled() {
        assert_eq!(option_value(OsStr::new("/a,b")), "/a,,b");
    }
}
