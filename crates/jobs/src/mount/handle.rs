//! A mount as a value: it runs in threads of its own; its starter waits for it or stops it.

use std::fmt;
use std::path::PathBuf;

use inarch_lifecycle::Events;
use inarch_lifecycle::confinement::{Confinement, Sandbox, Work};
use inarch_lifecycle::running::{self, Notes, Running};
use inarch_server::StopHandle;

use super::{By, MountRequest, serve};
use crate::JobError;

/// Something that happened while a tree was mounted or unmounted. Its text is one line.
#[derive(Clone, Debug)]
pub enum MountEvent {
    /// The mount is about to appear. Until now there is nothing to unmount: the process can end at any time.
    Mounting,
    /// The user should know this: what a source lacks, who uses the mount.
    Note(String),
    /// Something failed, and the mount continues.
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

/// What was mounted, and how.
#[derive(Clone, Debug)]
pub struct MountReport {
    /// The mount point, an absolute path without symbolic links.
    pub point: PathBuf,
    /// Who serves it.
    pub by: By,
    /// With [`Via::Auto`](super::Via::Auto): why the kernel does not serve it, in a few words.
    pub because: Option<String>,
    /// One line that says what is mounted, with paths as in the request.
    pub line: String,
    /// The same with absolute paths, for readers in other directories.
    pub absolute_line: String,
    /// The line that says how the server is confined, with its line break; empty if the kernel serves the mount.
    pub confined: String,
    /// Further lines that the user should read.
    pub notes: Vec<String>,
}

/// What a mount's thread gets.
pub(super) type Duty = running::Duty<MountReport, MountEvent>;

impl Notes for MountEvent {
    fn note(line: String) -> MountEvent {
        MountEvent::Note(line)
    }
}

/// A tree that is mounted.
#[derive(Debug)]
pub struct MountHandle {
    report: MountReport,
    sandbox: Sandbox,
    running: Running<(), JobError>,
}

/// Mounts a tree, and serves it until it is stopped or somebody unmounts it. If this process is killed, a child process unmounts it: the
/// program's `main` must call [`as_child`](crate::as_child) for that.
///
/// # Errors
/// The reason why it cannot be mounted.
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

    /// Waits until the mount answers a stat(2) of its root.
    ///
    /// # Errors
    /// That of stat(2).
    pub fn answers(&self) -> Result<(), JobError> {
        let point = &self.report.point;
        point.metadata().map(drop).map_err(|error| JobError::path(point, "the mount does not answer", error))
    }

    /// Begins to unmount.
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// Unmounts from any thread.
    pub fn stopper(&self) -> StopHandle {
        self.running.stopper()
    }

    /// If this process serves the mount, confines the calling thread, and those that it starts later, to waiting for the mount's end and
    /// stopping it. For a program that does nothing else.
    pub fn confine_waiter(&self) {
        if self.report.by == By::Fuse {
            self.sandbox.enter(&Confinement::new(Work::Disk).only(Vec::new()));
        }
    }

    /// Waits until it is unmounted, by this handle or by somebody else.
    ///
    /// # Errors
    /// It could not be served any longer, or not be unmounted.
    pub fn wait(self) -> Result<(), JobError> {
        self.running.wait()
    }
}
