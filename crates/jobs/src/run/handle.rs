//! A started run, in a thread of its own.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use inarch_lifecycle::Events;
use inarch_lifecycle::LifecycleError;

use super::failure::DiskFailure;
use super::report::RunReport;
use super::{RunEvent, RunRequest, run};
use crate::JobError;

/// A run that was started.
#[derive(Debug)]
pub struct RunHandle {
    failure: Arc<DiskFailure>,
    thread: JoinHandle<RunReport>,
}

/// Starts the run, and passes what happens to `events`.
///
/// # Errors
/// No thread could be started. All other errors are in the report.
pub fn start(request: RunRequest, events: Events<RunEvent>) -> Result<RunHandle, JobError> {
    let failure = Arc::new(DiskFailure::new(events));
    let ours = Arc::clone(&failure);
    let thread = thread::Builder::new().name("run".to_owned()).spawn(move || run(&request, &ours));
    let thread = thread.map_err(LifecycleError::Thread)?;
    Ok(RunHandle { failure, thread })
}

/// Ends a run's machine.
#[derive(Clone, Debug)]
pub struct RunStopper(Arc<DiskFailure>);

impl RunStopper {
    /// Ends it at once; the report's result is [`JobError::Stopped`].
    pub fn stop(&self) {
        self.0.set(JobError::Stopped);
    }
}

impl RunHandle {
    /// Ends the machine at once; the report's result is [`JobError::Stopped`]. What a kept run's guest has flushed is kept.
    pub fn stop(&self) {
        self.failure.set(JobError::Stopped);
    }

    /// Ends the machine from any thread, as [`RunHandle::stop`].
    pub fn stopper(&self) -> RunStopper {
        RunStopper(Arc::clone(&self.failure))
    }

    /// Waits for the end.
    pub fn wait(self) -> RunReport {
        self.thread.join().unwrap_or_else(|_| RunReport::of_failure(LifecycleError::Panicked.into()))
    }
}
