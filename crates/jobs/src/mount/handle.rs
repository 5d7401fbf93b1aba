//! A mount as a value: it runs in threads of its own; its starter waits for it or stops it.

use std::fmt::Display;
use std::path::PathBuf;

use inarch_lifecycle::Events;
use inarch_lifecycle::confinement::{Confinement, Sandbox, Work};
use inarch_lifecycle::running::{self, Running};
use inarch_lifecycle::shown;
use inarch_server::StopHandle;

use super::{By, Changes, MountEvent, MountRequest, MountWrites, serve};
use crate::JobError;
use crate::share::{HiddenMountPoints, left_out};

/// What was mounted, and how.
#[derive(Clone, Debug)]
pub struct MountReport {
    /// The mount point, an absolute path without symbolic links.
    pub point: PathBuf,
    /// Who serves it.
    pub by: By,
    /// With [`Via::Auto`](super::Via::Auto): why the kernel does not serve it, in a few words.
    pub because: Option<String>,
    /// The request, with defaults filled in.
    pub request: MountRequest,
    /// The source as an absolute path without symbolic links.
    pub source: PathBuf,
    /// What becomes of writes, with absolute paths.
    pub writes: MountWrites,
    /// The line that says how the server is confined, with its line break; empty if the kernel serves the mount.
    pub confined: String,
    /// A mount point in the tree that is shown as an empty directory.
    pub hidden: Option<HiddenMountPoints>,
}

impl MountReport {
    /// One line that says what is mounted, where writes go, and who changes the source; with paths as in the request.
    pub fn line(&self) -> String {
        self.introduction(&self.request.source, &self.request.writes)
    }

    /// The same with absolute paths, for readers in other directories.
    pub fn absolute_line(&self) -> String {
        self.introduction(&shown(&self.source), &self.writes)
    }

    fn introduction(&self, source: &dyn Display, writes: &MountWrites) -> String {
        let MountReport { request, by, .. } = self;
        let access = match writes {
            MountWrites::Through => format!("writes change it{}", left_out(request.refused)),
            MountWrites::Refused => "read-only".to_owned(),
            MountWrites::Over(place) => place.to_string(),
        };
        let is_over = matches!(writes, MountWrites::Over(_));
        let changes = match (request.changes(), by) {
            (Changes::Guest, _) => "nobody else changes it",
            (Changes::Host, By::Fuse | By::Remote) => "changes made elsewhere are seen within a second",
            (Changes::Host, By::Kernel) if is_over => "changes made elsewhere may not be seen",
            (Changes::Host, By::Kernel) => "changes made elsewhere are seen at once",
            (Changes::None, _) => "nobody changes it",
        };
        let locks = if request.locks { "; locks are the host's" } else { "" };
        let way = match (by, &self.because) {
            (By::Kernel, _) => "by the kernel".to_owned(),
            (By::Remote, _) => "by an appliance".to_owned(),
            (By::Fuse, None) => "by FUSE".to_owned(),
            (By::Fuse, Some(reason)) => format!("by FUSE ({reason})"),
        };
        format!("mounted {source} on {}: {access}; {changes}{locks}; {way}", shown(&self.point))
    }
}

/// What a mount's thread gets.
pub(super) type Duty = running::Duty<MountReport, MountEvent>;

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
