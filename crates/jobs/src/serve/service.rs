//! [`Service`]: a started server; its starter stops it and waits for it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::Device;
use inarch_lifecycle::Events;
use inarch_lifecycle::confinement::{Confinement, Sandbox, Work};
use inarch_lifecycle::running::{self, Running};
use inarch_lifecycle::shown;
use inarch_server::{Pending, StopHandle};

use crate::JobError;
use crate::device::DiskReport;
use crate::notes::DiskNote;
use crate::share::HiddenMountPoints;

/// Something that happened while a server ran. Its text is one line.
#[derive(Clone, Debug)]
pub enum ServiceEvent {
    /// What the source lacks, in its reader's words.
    Source(String),
    /// Mount points in the shared directory are shown empty.
    Hidden(HiddenMountPoints),
    /// The file that showed a disk was in use when its mount ended.
    WasInUse {
        /// The file.
        image: PathBuf,
    },
    /// What the use of a disk showed, at its end: files that changed, writes that found no room.
    Disk(DiskNote),
    /// A request or a connection failed, and the server continues.
    Fault(String),
}

impl fmt::Display for ServiceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceEvent::Source(line) | ServiceEvent::Fault(line) => f.write_str(line),
            ServiceEvent::Hidden(points) => points.fmt(f),
            ServiceEvent::WasInUse { image } => {
                write!(f, "{} was in use: programs that have it open get errors from now on", shown(image))
            }
            ServiceEvent::Disk(note) => note.fmt(f),
        }
    }
}

/// What a server did.
#[derive(Clone, Debug, Default)]
pub struct ServiceReport {
    /// What its clients asked of a disk; `None` for a server of a directory, or if the disk was never made.
    pub disk: Option<DiskReport>,
}

/// A server that was started, and takes requests.
#[derive(Debug)]
pub struct Service {
    introduction: Introduction,
    sandbox: Sandbox,
    running: Running<ServiceReport, JobError>,
}

/// How to use what is served.
pub(super) struct Introduction {
    /// Whole lines, for people.
    pub lines: String,
    /// A device that is still made and may be refused. Then there is nothing to use, and the lines are not shown.
    pub unless_refused: Option<Arc<Pending<Device>>>,
}

impl From<String> for Introduction {
    fn from(lines: String) -> Introduction {
        Introduction { lines, unless_refused: None }
    }
}

impl fmt::Debug for Introduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Introduction").field("lines", &self.lines).finish_non_exhaustive()
    }
}

/// What a server's thread gets. It is ready when it accepts requests; then it reports how to use what is served.
pub(super) type Duty = running::Duty<Introduction, ServiceEvent>;

/// What a server calls with each failure that does not end it.
pub(super) fn on_fault<F: fmt::Display>(events: &Events<ServiceEvent>) -> impl Fn(F) + Send + Sync + 'static + use<F> {
    let events = events.clone();
    move |fault| events.emit(ServiceEvent::Fault(fault.to_string()))
}

impl Service {
    /// Runs `serve` in a thread of its own, and waits until it is ready.
    ///
    /// # Errors
    /// Those of `serve` before it is ready.
    pub(super) fn start(
        sandbox: Sandbox,
        events: Events<ServiceEvent>,
        serve: impl FnOnce(&Duty) -> Result<ServiceReport, JobError> + Send + 'static,
    ) -> Result<Service, JobError> {
        let (introduction, running) = Running::start("server", events, serve)?;
        Ok(Service { introduction, sandbox, running })
    }

    /// How to use what is served, and what confines the server: lines for people. With a kept overlay, waits until the device is made,
    /// because the overlay may belong to another tree. `None` if the device is refused or the server is stopped before; then
    /// [`Service::wait`] returns the error, if there is one.
    pub fn introduction(&self) -> Option<&str> {
        let Introduction { lines, unless_refused } = &self.introduction;
        let stop = self.stopper();
        let is_usable = unless_refused.as_ref().is_none_or(|device| {
            device.wait_unless(|| stop.is_stopped()) && device.get().is_some_and(|outcome| outcome.is_ok())
        });
        is_usable.then_some(lines)
    }

    /// Ends the server. Its clients are disconnected.
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// Ends the server from any thread.
    pub fn stopper(&self) -> StopHandle {
        self.running.stopper()
    }

    /// Confines the calling thread, and those that it starts later, to waiting for the server and stopping it. For a
    /// program that does nothing else, so that a compromised server finds no thread with more rights.
    pub fn confine_waiter(&self) {
        self.sandbox.enter(&Confinement::new(Work::Disk).only(Vec::new()));
    }

    /// Waits for the server's end: it was stopped, or `once` ended it.
    ///
    /// # Errors
    /// The error that ended it otherwise.
    pub fn wait(self) -> Result<ServiceReport, JobError> {
        self.running.wait()
    }
}
