//! Sandboxes threads: before they serve a client, or parse what somebody else made, they give up everything their work does
//! not need.
//!
//! A server checks every name itself. These mechanisms hold if such a check fails, and the kernel enforces them. Each
//! one stops what the one before lets through:
//!
//! 1. [`root`], for root only: a mount namespace with nothing but the tree in it.
//! 2. [`capabilities`]: the thread keeps those that its work needs.
//! 3. [`files`]: Landlock. No file outside of what was granted is opened, made, removed or renamed, not even one
//!    reached by a file handle; and nothing is written by work that only reads.
//! 4. [`calls`]: a seccomp filter with the system calls that the work needs. It also covers what Landlock does not
//!    restrict, above all attributes.
//!
//! All of it applies to the calling thread and to the threads that it starts later, so a server can be sandboxed within
//! a larger process. That limits what a client can ask for; code that a client managed to run would still share memory
//! with the process's other threads. A process that is nothing but a server sandboxes all its threads.
//!
//! A mechanism that the kernel lacks is left out; [`Confined`] says so.
//!
//! [`Enclosure::start`] starts a program that others made, enclosed by these mechanisms and by namespaces.
//!
//! [`Parse`] does the same for a thread that opens an image or archive: readers take a [`Parsing`], which only such a thread
//! has.
//!
//! ```no_run
//! use std::path::Path;
//! use inarch_confine::{Access, Confinement, Work};
//!
//! let confinement = Confinement::new(Work::ReadOnlyShare).grant(Path::new("/srv"), Access::Read)?;
//! let confined = confinement.enter(); // this thread and those that it starts, for good
//! println!("guard: {confined}");
//! # Ok::<(), std::io::Error>(())
//! ```

#![deny(unsafe_code)]

mod calls;
mod capabilities;
mod door;
mod files;
mod inherited;
mod parse;
mod pidfd;
mod program;
mod root;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

pub use door::{ADDRESS, Door};
pub use inherited::{close_inherited, heed_children, inherited};
pub use parse::{Parse, Parsing};
pub use pidfd::exit_status;
pub use program::{Enclosed, Enclosure, Program};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::CapabilitySet;

/// What a confined thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Shares a directory; nothing is written through it.
    ReadOnlyShare,
    /// Shares a directory; clients make, change and remove files.
    Share,
    /// Shares a directory whose writes go to an overlay.
    CoveredShare,
    /// Serves a FUSE mount in which nothing is written.
    ReadOnlyMount,
    /// Serves a FUSE mount.
    Mount,
    /// Makes a disk: scans or reads its source, opens an overlay.
    Plan,
    /// Serves a disk that is complete.
    Disk,
    /// Parses bytes that others made: an image, an archive, a container image. The files with these bytes are open
    /// already, and it makes no descriptor, except that it may open what is granted.
    Parse,
    /// Writes an image of the content of such bytes: everything that it reads and writes is open already.
    Image,
    /// Fetches what others ask for: makes connections, and reads files that were granted.
    Fetch,
}

/// What a grant permits beneath a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Files are read, directories listed.
    Read,
    /// The same, and programs are run.
    Run,
    /// Everything except running programs.
    Change,
    /// A device is read, written and controlled.
    Device,
}

/// A path that stays accessible.
#[derive(Debug)]
struct Grant {
    place: OwnedFd,
    access: Access,
}

impl Grant {
    fn of(path: &Path, access: Access) -> io::Result<Grant> {
        Ok(Grant { place: openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?, access })
    }
}

/// What a server keeps. Make it while everything is still within reach; then any number of threads can enter it.
#[derive(Debug)]
pub struct Confinement {
    work: Work,
    grants: Vec<Grant>,
    only: Option<Vec<PathBuf>>,
    ends_processes: bool,
    uses_rings: bool,
    makes_devices: bool,
}

/// What holds from now on; displayed as half a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confined {
    holds: Vec<String>,
    missing: Vec<String>,
}

impl Confinement {
    /// A confinement for this work.
    pub fn new(work: Work) -> Confinement {
        Confinement {
            work,
            grants: Vec::new(),
            only: None,
            ends_processes: false,
            uses_rings: false,
            makes_devices: true,
        }
    }

    /// Grants `access` to what is at `path` now, and to everything beneath it.
    ///
    /// # Errors
    /// Nothing is at `path`, or it is out of reach.
    pub fn grant(mut self, path: &Path, access: Access) -> io::Result<Confinement> {
        self.grants.push(Grant::of(path, access)?);
        Ok(self)
    }

    /// Limits the host's names to those at and beneath `places` where root confines itself. `places` are absolute paths
    /// without symbolic links. Devices beneath a place cannot be opened; a place that is itself a device can.
    pub fn only(mut self, places: impl IntoIterator<Item = PathBuf>) -> Confinement {
        self.only = Some(places.into_iter().collect());
        self
    }

    /// Lets the server end a process of which it has a pidfd.
    pub fn ends_processes(mut self) -> Confinement {
        self.ends_processes = true;
        self
    }

    /// Lets the server make io_uring rings. Requests in a ring pass no system call filter; Landlock and capabilities
    /// still apply.
    pub fn uses_rings(mut self) -> Confinement {
        self.uses_rings = true;
        self
    }

    /// Gives up the capability to make device nodes, whatever the work is.
    pub fn without_devices(mut self) -> Confinement {
        self.makes_devices = false;
        self
    }

    /// Runs `work` in a confined thread of its own. Meanwhile the calling thread runs `meanwhile`, which should end
    /// when `work` does. A panic of `work` continues in the calling thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send, meanwhile: impl FnOnce()) -> io::Result<T> {
        thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, || {
                self.enter();
                work()
            })?;
            meanwhile();
            Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// Confines the calling thread and the threads that it starts from now on, for good.
    pub fn enter(&self) -> Confined {
        let mut confined = Confined { holds: Vec::new(), missing: Vec::new() };
        let mut handles = true;
        if let Some(places) = &self.only
            && capabilities::may_mount()
        {
            let entered = root::enter(places, self.work.writes());
            // A file handle leads out of the mount, and Landlock takes what is outside of a mount for the mount's root
            // (`is_access_to_paths_allowed` of Linux's security/landlock/fs.c, from 6.18 on).
            handles = entered.is_err();
            confined.add("a mount namespace of its own", entered);
        }
        let opens = !self.work.only_computes() || !self.grants.is_empty();
        let wanted = if opens { self.work.capabilities(self.makes_devices) } else { CapabilitySet::empty() };
        confined.add_described(capabilities::keep(wanted));
        let programs = matches!(self.work, Work::Mount | Work::ReadOnlyMount);
        let allowed = files::Besides { signals: self.ends_processes, programs };
        confined.add_described(files::restrict(&self.grants, allowed));
        let besides = calls::Besides { signals: self.ends_processes, rings: self.uses_rings, handles, opens };
        confined.add("a system call filter", calls::filter(self.work, besides));
        tracing::debug!(thread = std::thread::current().name(), work = ?self.work, %confined, "a thread is confined");
        confined
    }
}

impl Work {
    fn writes(self) -> bool {
        matches!(self, Work::Share | Work::CoveredShare | Work::Mount)
    }

    /// Whether what it works on is open already, and it has no client.
    fn only_computes(self) -> bool {
        matches!(self, Work::Parse | Work::Image)
    }
}

impl Confined {
    /// The value for a server without confinement.
    pub fn not_at_all() -> Confined {
        Confined { holds: Vec::new(), missing: Vec::new() }
    }

    /// The mechanisms that hold, a few words each.
    pub fn holds(&self) -> &[String] {
        &self.holds
    }

    /// The mechanisms that do not hold, and why.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    fn add(&mut self, what: &str, done: Result<(), String>) {
        self.add_described(done.map(|()| what.to_owned()).map_err(|reason| format!("{what} ({reason})")));
    }

    fn add_described(&mut self, done: Result<String, String>) {
        match done {
            Ok(what) => self.holds.push(what),
            Err(what) => self.missing.push(what),
        }
    }
}

impl fmt::Display for Confined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.holds[..], &self.missing[..]) {
            ([], []) => f.write_str("nothing but its own checks"),
            ([], missing) => write!(f, "nothing but its own checks; without {}", missing.join(", ")),
            (holds, []) => write!(f, "{}", holds.join(", ")),
            (holds, missing) => write!(f, "{}; without {}", holds.join(", "), missing.join(", ")),
        }
    }
}
