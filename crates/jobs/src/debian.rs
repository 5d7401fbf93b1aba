//! Fetches and makes what a guest needs of Debian, for any architecture: a kernel with its modules, firmware, a root. Each is made once, and
//! then in the cache for all runs.
//!
//! 1. [`fetch`] has this machine's apt download packages into a directory of its own: apt checks the signatures, with the keys of
//!    Debian's archive, and this machine's own packages do not change.
//! 2. A kernel's package is unpacked ([`kernel`]). Its modules are loaded without depmod(8).
//! 3. So is the firmware of RISC-V guests ([`firmware`]), where QEMU's own has a fault.
//! 4. For a [`root`], the packages become one archive ([`stage`]), unpacked but not configured, with dpkg's own files. A guest
//!    boots over it, runs `dpkg --configure`, and sends the result back as an archive, which is the root. So no foreign program
//!    runs on this machine, and nothing of this needs root.
//!
//! What is complete gets its name in the cache in one step. A lock makes a second run wait, so that each thing is made once.

mod fetch;
pub mod firmware;
pub mod kernel;
mod member;
pub mod root;
mod stage;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use inarch_lifecycle::PathError;
use inarch_lifecycle::scratch::Scratch;
use inarch_lifecycle::state;
use inarch_lifecycle::trust::{self, Missing, Obstacle, Owner};
use inarch_vm::Arch;
use rustix::fs::{FlockOperation, flock};

use crate::JobError;

/// The suite of the default kernel: the first one with all architectures.
pub const USUAL_SUITE: &str = "trixie";

/// The directory in the cache.
const DIRECTORY: &str = "debian";

/// A suite of Debian and more packages of it: `SUITE[+PACKAGE]...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debian {
    /// The suite, such as `trixie`.
    pub suite: String,
    /// Packages in addition to those of every system, sorted.
    pub packages: Vec<String>,
}

/// What happens while something of Debian is made. Its text is one line.
#[derive(Clone, Debug)]
pub enum DebianEvent {
    /// It is not there yet, and is fetched.
    Fetching {
        /// What.
        what: String,
        /// From which mirror.
        mirror: String,
    },
    /// A guest configures the packages.
    Configuring {
        /// How many.
        packages: usize,
        /// The guest's architecture.
        arch: Arch,
    },
    /// It has configured some, which it tells now and then.
    Configured {
        /// How many.
        done: usize,
        /// Of how many.
        packages: usize,
    },
}

impl fmt::Display for DebianEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DebianEvent::Fetching { what, mirror } => write!(f, "fetching {what} from {mirror}, once"),
            DebianEvent::Configuring { packages, arch } => {
                write!(f, "a guest configures {packages} packages for {arch}, once; this takes a minute or two")
            }
            DebianEvent::Configured { done, packages } => write!(f, "{done} of {packages} packages are configured"),
        }
    }
}

/// Why something of Debian is not available.
#[derive(Debug, thiserror::Error)]
pub enum DebianError {
    /// The words after `debian:` are none.
    #[error("debian:{text}: {what}; write debian:SUITE, or debian:SUITE+PACKAGE... for a root")]
    Name {
        /// The words.
        text: String,
        /// What is wrong with them.
        what: &'static str,
    },
    /// A program is not there.
    #[error("{program} is not here ({package} of Debian brings it); without it, {by_hand}")]
    NoProgram {
        /// The program.
        program: &'static str,
        /// Its package.
        package: &'static str,
        /// What to give instead.
        by_hand: &'static str,
    },
    /// The keys of Debian's archive are not there.
    #[error("{} is not here, which apt checks Debian's signatures with; install it (apt install debian-archive-keyring), or {by_hand}", path.display())]
    NoKeys {
        /// Where they are looked for.
        path: PathBuf,
        /// What to give instead.
        by_hand: &'static str,
    },
    /// apt cannot fetch it.
    #[error("cannot fetch {what} from {mirror}: {reason}; {by_hand}")]
    Fetch {
        /// What.
        what: String,
        /// The mirror.
        mirror: String,
        /// What apt said.
        reason: String,
        /// What to give instead.
        by_hand: &'static str,
    },
    /// A package cannot be unpacked.
    #[error("{package}: cannot be unpacked: {reason}")]
    Unpack {
        /// Its file's name.
        package: String,
        /// Why.
        reason: String,
    },
    /// The guest could not configure the packages.
    #[error("{what}: the guest could not configure its packages: {reason}")]
    Configure {
        /// The root.
        what: String,
        /// What the guest said.
        reason: String,
    },
    /// It would have to be made.
    #[error("{what} is not in the cache yet; a run without --dry-run makes it")]
    NotMade {
        /// What.
        what: String,
    },
    /// There is no directory for it.
    #[error("there is no cache directory: neither XDG_CACHE_HOME nor HOME is set")]
    NoCache,
    /// The cache's directory.
    #[error("{0}; set XDG_CACHE_HOME to a directory of your own")]
    Place(#[from] Obstacle),
    /// A file.
    #[error(transparent)]
    File(#[from] PathError),
    /// The guest that configures the packages cannot run.
    #[error(transparent)]
    Run(Box<JobError>),
}

impl FromStr for Debian {
    type Err = DebianError;

    /// Parses `SUITE[+PACKAGE]...`. A `+` before a letter separates; any other belongs to a name, as in `g++`. A comma
    /// separates as well.
    fn from_str(text: &str) -> Result<Debian, DebianError> {
        let wrong = |what| DebianError::Name { text: text.to_owned(), what };
        let mut words = vec![String::new()];
        let mut left = text.chars().peekable();
        while let Some(c) = left.next() {
            let separates = c == ',' || (c == '+' && left.peek().is_some_and(char::is_ascii_lowercase));
            match words.last_mut() {
                Some(word) if !separates => word.push(c),
                _ => words.push(String::new()),
            }
        }
        let (suite, packages) = words.split_first().ok_or_else(|| wrong("no suite"))?;
        // Debian's policy, 5.6.1; a suite's name is a part of a URL and of a path.
        let is_name = |word: &str, more: &[u8]| {
            word.len() > 1
                && word.len() < 100
                && word.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || more.contains(&b))
        };
        if !is_name(suite, b"-") {
            return Err(wrong("this is no name of a suite"));
        }
        if !packages.iter().all(|package| is_name(package, b"+-.")) {
            return Err(wrong("this is no name of a package"));
        }
        let mut packages = packages.to_vec();
        packages.sort();
        packages.dedup();
        Ok(Debian { suite: suite.clone(), packages })
    }
}

impl fmt::Display for Debian {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "debian:{}", self.suite)?;
        self.packages.iter().try_for_each(|package| write!(f, "+{package}"))
    }
}

/// What is in the cache: its path, and what it is.
#[derive(Clone, Debug)]
pub struct Cached {
    /// Its path: a directory with a kernel, or an archive with a root.
    pub path: PathBuf,
    /// Its bytes on the disk.
    pub bytes: u64,
}

/// The directory of all that is cached, if this user has one.
pub fn directory() -> Option<PathBuf> {
    state::cache().map(|cache| cache.join(DIRECTORY))
}

/// Lists what is cached; unfinished work is left out.
pub fn list() -> Vec<Cached> {
    let entries = directory().and_then(|directory| std::fs::read_dir(directory).ok()).into_iter().flatten().flatten();
    let named = entries.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    let mut all: Vec<Cached> =
        named.map(|entry| Cached { bytes: bytes_below(&entry.path()), path: entry.path() }).collect();
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

/// Bytes on the disk of a file, or of all files in a directory.
fn bytes_below(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = path.symlink_metadata() else { return 0 };
    let below = match metadata.is_dir() {
        true => std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| bytes_below(&entry.path())).sum(),
        false => 0,
    };
    below + metadata.blocks() * 512
}

/// The cache's directory, made if it is missing.
fn place() -> Result<PathBuf, DebianError> {
    place_with(Missing::MakeReadable)
}

/// The cache's directory, which may be missing.
fn place_with(missing: Missing) -> Result<PathBuf, DebianError> {
    let home = state::cache().ok_or(DebianError::NoCache)?;
    trust::directory(&home, &[DIRECTORY], missing, Owner::UserOrRoot)?;
    Ok(home.join(DIRECTORY))
}

/// Makes `name` in the cache by `make`, which gets a directory for unfinished work there, unless it is there already.
fn once(name: &str, make: impl FnOnce(&Path, &Scratch) -> Result<(), DebianError>) -> Result<PathBuf, DebianError> {
    let place = place()?;
    let path = place.join(name);
    if path.exists() {
        return Ok(path);
    }
    let _lock = lock(&place.join(format!(".{name}.lock")))?;
    // Another run may have made it meanwhile.
    if !path.exists() {
        let scratch = Scratch::within(&place)?;
        make(&path, &scratch)?;
    }
    Ok(path)
}

/// Takes the lock, which ends with its process. The file stays: without it, two processes could hold the lock.
fn lock(path: &Path) -> Result<File, DebianError> {
    let fail = |error: io::Error| PathError::new(path, "cannot lock it", error);
    let file = File::options().create(true).truncate(false).write(true).open(path).map_err(fail)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| fail(error.into()))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_and_packages_are_words_between_pluses() {
        let parse = |text: &str| text.parse::<Debian>().map(|debian| debian.to_string()).map_err(|e| e.to_string());
        assert_eq!(parse("trixie").unwrap(), "debian:trixie");
        assert_eq!(parse("sid+make+gcc+make").unwrap(), "debian:sid+gcc+make");
        assert_eq!(parse("sid+g+++libstdc++6").unwrap(), "debian:sid+g+++libstdc++6");
        assert_eq!(parse("sid+g++-12,7zip").unwrap(), "debian:sid+7zip+g++-12");
        for wrong in ["", "+gcc", "../x", "a/b", "Trixie", "trixie+", "trixie+-x", "trixie+a b", "trixie+;rm"] {
            assert!(parse(wrong).unwrap_err().starts_with(&format!("debian:{wrong}: ")), "{wrong}");
        }
    }
}
