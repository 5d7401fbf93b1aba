//! [`DiskFailure`]: ends a run early on a failure, and takes its parts' events.

use std::sync::{Arc, Mutex, PoisonError};

use inarch_lifecycle::Events;
use inarch_vm::process::Process;

use super::{RunEvent, RunFault};
use crate::JobError;

/// The failure of a disk, the machine that must not wait for the disk, and where the events of the run go.
#[derive(Debug)]
pub(super) struct DiskFailure {
    state: Mutex<(Option<JobError>, Option<Arc<Process>>)>,
    /// A ring that the guest's driver broke.
    ring: Mutex<Option<JobError>>,
    events: Events<RunEvent>,
}

impl DiskFailure {
    pub fn new(events: Events<RunEvent>) -> DiskFailure {
        DiskFailure { state: Mutex::default(), ring: Mutex::default(), events }
    }

    /// Receives what happens in the run.
    pub fn events(&self) -> &Events<RunEvent> {
        &self.events
    }

    /// Tells that a part of the run failed which the guest can go on without.
    pub fn tell_fault(&self, fault: RunFault) {
        self.events.emit(RunEvent::Fault(fault));
    }

    pub fn set(&self, error: JobError) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.get_or_insert(error);
        if let Some(process) = &state.1 {
            process.kill();
        }
    }

    /// A device's ring is broken, which ends the run as well. But a kernel of User-Mode Linux that powers off takes its buffers back from the rings
    /// without a reset that the device would see: if the session was complete, this is no failure.
    pub fn set_ring(&self, error: JobError) {
        // Before the process is looked for: one that is not there yet is killed by `watch`.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        if let Some(process) = &self.state.lock().unwrap_or_else(PoisonError::into_inner).1 {
            process.kill();
        }
    }

    /// The broken ring, if there was one.
    pub fn take_ring(&self) -> Option<JobError> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// From now on a failure ends `process`; an earlier failure ends it at once.
    pub fn watch(&self, process: &Arc<Process>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_broken = self.ring.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if state.0.is_some() || is_broken {
            process.kill();
        }
        state.1 = Some(Arc::clone(process));
    }

    /// Whether there was a failure, or the run was stopped.
    pub fn is_set(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.is_some()
    }

    /// The failure, if there was one.
    pub fn take(&self) -> Option<JobError> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0.take()
    }
}
