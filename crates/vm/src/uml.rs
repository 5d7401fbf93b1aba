//! Finds a kernel of User-Mode Linux, and makes the command line of one for a [`Machine`](crate::Machine).
//!
//! Such a kernel is a program of this machine, and its guest's processes are processes that it traces. It needs neither KVM nor an
//! emulated processor. Its devices are vhost-user devices, as QEMU's; it has no firmware, no network of its own and one processor.
//!
//! It isolates less than a virtual machine: whoever takes over the guest's kernel has a process of this machine. It is enclosed
//! ([`inarch_confine::Enclosure`]).

mod line;
mod memory;
mod xsave;

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use inarch_confine::Program;
use rustix::process::{WaitOptions, waitpid};

use crate::arch::Arch;
use crate::kernel::{Entry, Kernel};
use crate::qemu::is_program;

pub use memory::memory_directory;

/// Environment variable that names the program to use.
pub const BINARY_VARIABLE: &str = "INARCH_UML";

/// Debian's name of it.
const BINARY: &str = "linux.uml";

/// Where Debian has the modules of its kernel, by its release.
pub const MODULES: &str = "/usr/lib/uml/modules";

/// Why User-Mode Linux cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UmlError {
    /// It is not installed.
    #[error("{BINARY} is not in PATH; install it (apt install user-mode-linux) or set {BINARY_VARIABLE} to its path")]
    Missing,
    /// No program is at the path.
    #[error("{path} is not a program that can be run, as a kernel of User-Mode Linux is")]
    NotAProgram {
        /// The path.
        path: PathBuf,
    },
    /// It cannot be run.
    #[error("cannot run {path}: {source}")]
    Run {
        /// The program.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Its output for its version is not that of such a kernel.
    #[error("{path} is no kernel of User-Mode Linux: it says {output:?} for its version")]
    NotUml {
        /// The program.
        path: PathBuf,
        /// The start of its output.
        output: String,
    },
    /// Its command line has a limit.
    #[error(
        "the kernel's command line has {bytes} bytes, and User-Mode Linux takes {}; use fewer trees, or shorter words for --append",
        line::LONGEST
    )]
    TooLong {
        /// Bytes.
        bytes: usize,
    },
    /// No place for its memory.
    #[error(
        "no directory for the guest's {mib} MiB of memory: /dev/shm, /tmp and /var/tmp have no room, or permit no programs (noexec)"
    )]
    NoMemory {
        /// Mebibytes.
        mib: u64,
    },
    /// It cannot be enclosed.
    #[error("cannot enclose {path}: {source}")]
    Enclose {
        /// What is to be granted.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Finds the kernel: `named`, else `INARCH_UML`, else `linux.uml` in `PATH`. Runs it for its release, which takes milliseconds.
///
/// # Errors
/// There is none, or the program found is none.
pub fn find(named: Option<&Path>) -> Result<Kernel, UmlError> {
    let variable = env::var_os(BINARY_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = match named.map(Path::to_owned).or(variable) {
        Some(path) => path,
        None => in_path().ok_or(UmlError::Missing)?,
    };
    if !is_program(&path) {
        return Err(UmlError::NotAProgram { path });
    }
    // It is started from another directory.
    let path = std::path::absolute(&path).unwrap_or(path);
    let release = release(&path)?;
    let modules = Some(Path::new(MODULES).join(&release)).filter(|directory| directory.is_dir());
    Ok(Kernel { arch: Arch::X86_64, source: path.clone(), release, image: path, entry: Entry::Program, modules })
}

/// Whether one is installed.
pub fn is_installed() -> bool {
    env::var_os(BINARY_VARIABLE).is_some_and(|value| !value.is_empty()) || in_path().is_some()
}

/// Whether this machine can enclose the kernel: has it say its release, enclosed.
///
/// # Errors
/// What stands in the way.
pub fn probe(kernel: &Kernel) -> Result<(), UmlError> {
    let fail = |source| UmlError::Run { path: kernel.image.clone(), source };
    let enclosure = line::programs(&kernel.image)?;
    let program = Program { path: &kernel.image, arguments: &["--version".into()], environment: &[], inherited: &[] };
    // The thread that starts it is confined, too.
    thread::scope(|scope| {
        let start = || -> io::Result<()> {
            let started = enclosure.start(&program)?;
            waitpid(Some(started.pid), WaitOptions::empty())?;
            Ok(())
        };
        scope.spawn(start).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    })
    .map_err(fail)
}

fn in_path() -> Option<PathBuf> {
    let directories = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&directories).map(|directory| directory.join(BINARY)).find(|path| is_program(path))
}

/// What `uname -r` will say in the guest.
fn release(path: &Path) -> Result<String, UmlError> {
    let output = match Command::new(path).arg("--version").env_clear().output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(source) => return Err(UmlError::Run { path: path.to_owned(), source }),
    };
    let first = output.lines().next().unwrap_or_default();
    let is_release = first.starts_with(|c: char| c.is_ascii_digit())
        && first.len() < 65
        && first.chars().all(|c| c.is_ascii_alphanumeric() || "._+-~".contains(c));
    match is_release {
        true => Ok(first.to_owned()),
        false => {
            let output = first.chars().filter(|c| !c.is_control()).take(80).collect();
            Err(UmlError::NotUml { path: path.to_owned(), output })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_is_told_apart() {
        for (path, words) in [
            ("/bin/true", "/bin/true is no kernel of User-Mode Linux"),
            ("/nonexistent", "/nonexistent is not a program"),
            ("/etc/passwd", "/etc/passwd is not a program"),
        ] {
            let error = find(Some(Path::new(path))).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
