//! A mount as a value: it goes on in threads of its own, and its starter waits for it or stops it.

use std::fmt;
use std::path::PathBuf;

use inarch_server::StopHandle;

use super::{By, MountRequest, serve};
use crate::JobError;
use crate::events::Events;
use crate::lifecycle::confinement::{Confinement, Sandbox, Work};
use crate::lifecycle::running::{self, Running};

/// Something that happened while something was mounted, or taken away. Its text is one line.
#[derive(Clone, Debug)]
pub enum MountEvent {
    /// All is ready, and what is mounted will be seen in a moment. Until now nothing was left behind if the process ended, and
    /// nobody could know what to stop.
    Mounting,
    /// What the user should know: what a source lacks, who uses the mount.
    Note(String),
    /// Something failed, and the mount is there all the same.
    Fault(String),
}

impl fmt::Display for MountEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountEvent::Mounting => f.write_str("it is mounted now"),
            MountEvent::Note(line) | MountEvent::Fault(line) => f.write_str(line),
        }
    }
}

/// What is mounted, and how.
#[derive(Clone, Debug)]
pub struct MountReport {
    /// The mount point, an absolute path without symbolic links.
    pub point: PathBuf,
    /// Who serves it.
    pub by: By,
    /// Why the kernel does not, in a few words, where that was left open.
    pub because: Option<String>,
    /// A line that says what is mounted, in the words of the request.
    pub line: String,
    /// The same for whoever is in another directory: with absolute paths.
    pub absolute_line: String,
    /// The line that says how the server is confined, with its line break; empty where the kernel serves.
    pub confined: String,
    /// What else the user should know, a line each.
    pub notes: Vec<String>,
}

/// What the thread of a mount is given.
pub(super) type Duty = running::Duty<MountReport, MountEvent>;

impl Duty {
    /// Tells what the user should know.
    pub fn note(&self, line: impl fmt::Display) {
        self.events.emit(MountEvent::Note(line.to_string()));
    }
}

/// A mount that is there.
#[derive(Debug)]
pub struct MountHandle {
    report: MountReport,
    sandbox: Sandbox,
    running: Running<(), JobError>,
}

/// Mounts, and serves until it is stopped or until somebody unmounts it. If this process is killed, a child of it takes the
/// mount away: the program's `main` calls [`as_child`](crate::as_child) for that.
///
/// # Errors
/// It cannot be mounted, and why.
pub fn start(request: MountRequest, events: Events<MountEvent>) -> Result<MountHandle, JobError> {
    let sandbox = request.sandbox;
    let (report, running) = Running::start("mount", events, move |duty| serve(&request, duty))?;
    Ok(MountHandle { report, sandbox, running })
}

impl MountHandle {
    /// What is mounted, and how.
    pub fn report(&self) -> &MountReport {
        &self.report
    }

    /// Waits until the mount answers: until a look at it gives something.
    ///
    /// # Errors
    /// It gives nothing.
    pub fn answers(&self) -> Result<(), JobError> {
        let point = &self.report.point;
        point.metadata().map(drop).map_err(|error| JobError::path(point, "the mount does not answer", error))
    }

    /// Has the mount taken away.
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// Has it taken away from any thread.
    pub fn stopper(&self) -> StopHandle {
        self.running.stopper()
    }

    /// Leaves the calling thread, and those that it starts, nothing but to wait for the mount's end and to stop it, if a server
    /// of this process serves it: for a program that does nothing else.
    pub fn confine_waiter(&self) {
        if self.report.by == By::Fuse {
            self.sandbox.enter(&Confinement::new(Work::Disk).only(Vec::new()));
        }
    }

    /// Waits until the mount is taken away, by who stopped it or by somebody else.
    ///
    /// # Errors
    /// It could not be served any more, or not be taken away.
    pub fn wait(self) -> Result<(), JobError> {
        self.running.wait()
    }
}
