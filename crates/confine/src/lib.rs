//! What a server gives up before it serves anybody: all that a mistake in it could otherwise be used for.
//!
//! A server's own checks come first: one checked name at a time, beneath a descriptor. What is done here holds where
//! those fail, and is the kernel's to enforce. Each layer stops what the one before lets through:
//!
//! 1. [`root`]: the tree is all there is of the host's names. Only for root, see there.
//! 2. [`capabilities`]: those that the work takes are kept, the others given up for good.
//! 3. [`files`]: Landlock: no file is opened, made, removed or renamed outside of what was granted, even one that is reached
//!    through a file handle, and nothing is written where the work is to read.
//! 4. [`calls`]: a seccomp filter: only the system calls that the work takes exist. What Landlock does not know, attributes
//!    above all, cannot be changed by a server that has no reason to.
//!
//! All of it concerns the calling thread and those that it starts from then on, so that a server which is part of a larger
//! process is confined by itself. That stops what a client may ask for; code that a client had got to run would share its memory
//! with the other threads. Where a process is nothing but a server, all its threads are confined.
//!
//! What a kernel lacks is done without; [`Confined`] says so.

#![deny(unsafe_code)]

mod calls;
mod capabilities;
mod files;
mod inherited;
mod root;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

pub use inherited::{close_inherited, heed_children};
use rustix::fs::{CWD, Mode, OFlags, openat};

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Shares a directory that is not changed.
    ReadOnlyShare,
    /// Shares a directory whose files come and go.
    Share,
    /// Shares a directory that is not changed, and what is written over it.
    CoveredShare,
    /// Answers the kernel's requests for a mount that nothing is written in.
    ReadOnlyMount,
    /// Answers the kernel's requests for a mount.
    Mount,
    /// Makes a disk: scans or reads its source, opens an overlay.
    Plan,
    /// Serves a disk that is made.
    Disk,
}

/// What can be done beneath a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Files are read, directories listed.
    Read,
    /// Everything but to run programs.
    Change,
    /// A device is read, written and controlled.
    Device,
}

/// A path that a server keeps.
#[derive(Debug)]
struct Grant {
    place: OwnedFd,
    access: Access,
}

/// What a server keeps. Made while everything can still be reached; entered afterwards, by any number of threads.
#[derive(Debug)]
pub struct Confinement {
    work: Work,
    grants: Vec<Grant>,
    only: Option<Vec<PathBuf>>,
    ends_processes: bool,
    uses_rings: bool,
    makes_devices: bool,
}

/// What holds from now on; shown as half a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confined {
    holds: Vec<String>,
    missing: Vec<String>,
}

impl Confinement {
    /// For a server that does this.
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

    /// What is now at `path`, and beneath it, stays within reach.
    ///
    /// # Errors
    /// There is nothing, or it cannot be reached.
    pub fn grant(mut self, path: &Path, access: Access) -> io::Result<Confinement> {
        let place = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        self.grants.push(Grant { place, access });
        Ok(self)
    }

    /// Of the host's names only those at and beneath `places`, absolute paths without symbolic links, are left, where root
    /// confines itself. Devices in them cannot be opened; one that is named itself can.
    pub fn only(mut self, places: impl IntoIterator<Item = PathBuf>) -> Confinement {
        self.only = Some(places.into_iter().collect());
        self
    }

    /// The server ends a process that it holds a pidfd of.
    pub fn ends_processes(mut self) -> Confinement {
        self.ends_processes = true;
        self
    }

    /// The server makes rings of io_uring. What is asked for by a ring passes no filter: Landlock and capabilities bound it.
    pub fn uses_rings(mut self) -> Confinement {
        self.uses_rings = true;
        self
    }

    /// The server makes no device nodes, whatever its work is: it gives up the capability that this takes.
    pub fn without_devices(mut self) -> Confinement {
        self.makes_devices = false;
        self
    }

    /// Confines the calling thread and those that it starts from now on, for good.
    pub fn enter(&self) -> Confined {
        let mut confined = Confined { holds: Vec::new(), missing: Vec::new() };
        let mut handles = true;
        if let Some(places) = &self.only
            && capabilities::may_mount()
        {
            let entered = root::enter(places, self.work.writes());
            // A handle leads out of it, and to Landlock what is outside of a mount lies in the mount's root
            // (`is_access_to_paths_allowed` of Linux's security/landlock/fs.c, from 6.18 on).
            handles = entered.is_err();
            confined.add("a mount namespace of its own", entered);
        }
        confined.add_described(capabilities::keep(self.work.capabilities(self.makes_devices)));
        let programs = matches!(self.work, Work::Mount | Work::ReadOnlyMount);
        let allowed = files::Besides { signals: self.ends_processes, programs };
        confined.add_described(files::restrict(&self.grants, allowed));
        let besides = calls::Besides { signals: self.ends_processes, rings: self.uses_rings, handles };
        confined.add("a system call filter", calls::filter(self.work, besides));
        confined
    }
}

impl Work {
    fn writes(self) -> bool {
        matches!(self, Work::Share | Work::CoveredShare | Work::Mount)
    }
}

impl Confined {
    /// Of a server that was told not to confine itself.
    pub fn not_at_all() -> Confined {
        Confined { holds: Vec::new(), missing: Vec::new() }
    }

    /// What holds, a few words each.
    pub fn holds(&self) -> &[String] {
        &self.holds
    }

    /// What does not, and why.
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
            ([], []) => f.write_str("by nothing but its own checks"),
            ([], missing) => write!(f, "by nothing but its own checks; without {}", missing.join(", ")),
            (holds, []) => write!(f, "by {}", holds.join(", ")),
            (holds, missing) => write!(f, "by {}; without {}", holds.join(", "), missing.join(", ")),
        }
    }
}
