//! Finds the QEMU binary and checks its version.

use std::env;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arch::Arch;

/// The oldest version supported.
pub const OLDEST: Version = Version { major: 6, minor: 0 };

/// The small firmware: it starts a kernel without a BIOS's device probing.
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
    #[error("{} is not in PATH; install it (apt install {}) or set {} to its path", .0.qemu(), .0.qemu_package(), .0.qemu_variable())]
    Missing(Arch),
    /// The variable names no executable program.
    #[error("{variable} is {path}, which is not a program that can be run")]
    NotAProgram {
        /// The variable.
        variable: &'static str,
        /// The variable's value.
        path: PathBuf,
    },
    /// It is older than [`OLDEST`].
    #[error("{path} is version {}.{}, at least {}.{} is needed; install a newer one (apt install {}) or set {}",
        found.major, found.minor, OLDEST.major, OLDEST.minor, arch.qemu_package(), arch.qemu_variable())]
    TooOld {
        /// The architecture of its guests.
        arch: Arch,
        /// The binary.
        path: PathBuf,
        /// Its version.
        found: Version,
    },
    /// It cannot be run.
    #[error("cannot run {path}: {source}")]
    Run {
        /// The binary.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Its version output is not QEMU's.
    #[error("{path} does not say its version as QEMU does: {output:?}")]
    NotQemu {
        /// The binary.
        path: PathBuf,
        /// The start of its output.
        output: String,
    },
}

/// A QEMU binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    arch: Arch,
    path: PathBuf,
}

impl Qemu {
    /// Finds the binary for guests of `arch`: what [`Arch::qemu_variable`] names, else [`Arch::qemu`] in `PATH`. Does not run
    /// it, so that starting a guest need not wait; [`Qemu::version`] does.
    ///
    /// # Errors
    /// There is no binary.
    pub fn find(arch: Arch) -> Result<Qemu, QemuError> {
        let variable = arch.qemu_variable();
        if let Some(path) = env::var_os(variable).filter(|value| !value.is_empty()) {
            let path = PathBuf::from(path);
            return if is_program(&path) {
                Ok(Qemu { arch, path })
            } else {
                Err(QemuError::NotAProgram { variable, path })
            };
        }
        let directories = env::var_os("PATH").unwrap_or_default();
        let path =
            env::split_paths(&directories).map(|directory| directory.join(arch.qemu())).find(|path| is_program(path));
        path.map(|path| Qemu { arch, path }).ok_or(QemuError::Missing(arch))
    }

    /// The binary `path`, for guests of `arch`.
    pub fn at(path: &Path, arch: Arch) -> Qemu {
        Qemu { arch, path: path.to_owned() }
    }

    /// The binary's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs the binary to get its version.
    ///
    /// # Errors
    /// It cannot be run, is not QEMU, or is older than [`OLDEST`].
    pub fn version(&self) -> Result<Version, QemuError> {
        let path = self.path.clone();
        let output = match Command::new(&path).arg("--version").output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(source) => return Err(QemuError::Run { path, source }),
        };
        match parse_version(&output) {
            Some(found) if found < OLDEST => Err(QemuError::TooOld { arch: self.arch, path, found }),
            Some(found) => Ok(found),
            None => Err(QemuError::NotQemu { path, output: output.lines().next().unwrap_or_default().to_owned() }),
        }
    }

    /// The small firmware, if it is installed with this QEMU or the system's firmware.
    pub fn qboot(&self) -> Option<PathBuf> {
        let own = self.path.canonicalize().ok().and_then(|path| Some(path.parent()?.parent()?.join("share/qemu")));
        let system = ["/usr/share/qemu", "/usr/local/share/qemu", "/usr/share/seabios"].map(PathBuf::from);
        own.into_iter().chain(system).map(|directory| directory.join(QBOOT)).find(|path| path.is_file())
    }
}

pub(crate) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Parses `QEMU emulator version 7.2.22 (Debian ...)`.
fn parse_version(output: &str) -> Option<Version> {
    let mut numbers = output.strip_prefix("QEMU emulator version ")?.split(['.', ' ', '\n']);
    Some(Version { major: numbers.next()?.parse().ok()?, minor: numbers.next()?.parse().ok()? })
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
        let error = Qemu::at(Path::new("/bin/true"), Arch::host()).version().unwrap_err();
        assert!(error.to_string().starts_with("/bin/true does not say its version"), "{error}");
        let error = Qemu::at(Path::new("/nonexistent"), Arch::host()).version().unwrap_err();
        assert!(error.to_string().starts_with("cannot run /nonexistent"), "{error}");
    }
}
