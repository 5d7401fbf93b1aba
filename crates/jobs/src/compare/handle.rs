//! A started comparison, in a thread of its own; its starter waits for it or stops it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inarch_lifecycle::Events;
use inarch_lifecycle::running::{self, Running};
use rustix::process::{Signal, pidfd_send_signal};

use super::report::{CompareEvent, CompareReport};
use super::{CompareRequest, measure_all};
use crate::JobError;
use crate::run::RunStopper;

/// A comparison under way.
#[derive(Debug)]
pub struct CompareHandle {
    turn: Arc<Turn>,
    running: Running<CompareReport, JobError>,
}

/// Starts to measure.
///
/// # Errors
/// No thread could be started. All other errors are returned at the end.
pub fn start(request: CompareRequest, events: Events<CompareEvent>) -> Result<CompareHandle, JobError> {
    let turn = Arc::new(Turn::default());
    let ours = Arc::clone(&turn);
    let measure = move |duty: &running::Duty<(), CompareEvent>| {
        duty.is_ready(());
        measure_all(&request, &ours, &duty.events)
    };
    let ((), running) = Running::start("compare", events, measure)?;
    Ok(CompareHandle { turn, running })
}

impl CompareHandle {
    /// Ends what is measured at the moment, and measures nothing more; the result is [`JobError::Stopped`].
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// Ends it from any thread.
    pub fn stopper(&self) -> CompareStopper {
        CompareStopper(Arc::clone(&self.turn))
    }

    /// Waits for the figures.
    ///
    /// # Errors
    /// Nothing could be measured at all, since the page cache cannot be emptied or an output file cannot be made; or it was stopped.
    pub fn wait(self) -> Result<CompareReport, JobError> {
        self.running.wait()
    }
}

/// Ends a comparison.
#[derive(Clone, Debug)]
pub struct CompareStopper(Arc<Turn>);

impl CompareStopper {
    /// As [`CompareHandle::stop`].
    pub fn stop(&self) {
        let mut state = self.0.lock();
        state.is_stopped = true;
        match state.measured.take() {
            Some(Subject::Guest(machine)) => machine.stop(),
            // A process that has ended needs no signal.
            Some(Subject::Command(process)) => drop(pidfd_send_signal(process, Signal::KILL)),
            None => {}
        }
    }
}

/// Whose turn it is, so that another thread can end it.
#[derive(Debug, Default)]
pub(super) struct Turn(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    measured: Option<Subject>,
}

/// What is measured.
#[derive(Debug)]
pub(super) enum Subject {
    /// A run.
    Guest(RunStopper),
    /// A process of this machine, by its pidfd.
    Command(OwnedFd),
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what is measured next.
    ///
    /// # Errors
    /// Those of `start`; or the comparison was stopped.
    pub(super) fn begin<T>(&self, start: impl FnOnce() -> Result<(T, Subject), JobError>) -> Result<T, JobError> {
        // A stop from here on waits until it can end what was started.
        let mut state = self.lock();
        if state.is_stopped {
            return Err(JobError::Stopped);
        }
        let (started, subject) = start()?;
        state.measured = Some(subject);
        Ok(started)
    }

    /// What was measured has ended.
    pub(super) fn end(&self) {
        self.lock().measured = None;
    }

    /// Whether the comparison was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }
}
