//! Runs the session of a run: sets its time limits, and passes on its warnings and the events of the guest's processes.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use inarch_lifecycle::Events;
use inarch_vm::protocol::{ProcessEvent, SessionRequest};
use inarch_vm::session::{CatchSignals, Report, Session, SessionError, SessionOptions, Streams};

use super::RunEvent;
use super::launch::Launch;
use super::request::CatchSignalsOfRun;

/// A session's time limits.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// From HELLO to the command's start.
    pub start: Option<Duration>,
    /// From the command's start to its end.
    pub command: Option<Duration>,
}

impl Limits {
    /// After HELLO, waits until the root defines what to run; returns that and the remaining limits.
    pub fn wait_for(self, launch: &Receiver<Launch>) -> Result<(Launch, Limits), SessionError> {
        let began = Instant::now();
        let launch = match self.start {
            Some(start) => launch.recv_timeout(start),
            None => launch.recv().map_err(RecvTimeoutError::from),
        };
        let launch = launch.map_err(|error| match error {
            RecvTimeoutError::Timeout => SessionError::NotStarted { waited: self.start.unwrap_or_default() },
            // There will be none; the reason has been reported.
            RecvTimeoutError::Disconnected => SessionError::Closed,
        })?;
        Ok((launch, Limits { start: self.start.map(|start| start.saturating_sub(began.elapsed())), ..self }))
    }
}

/// Runs the session of `request` with these streams, and signals from `catch`. Tells of warnings, and of the guest's processes.
pub(super) fn hold(
    session: Session,
    request: &SessionRequest,
    streams: Streams,
    limits: Limits,
    catch: Option<CatchSignalsOfRun>,
    events: &Events<RunEvent>,
    processes: &dyn Fn(Vec<ProcessEvent>),
) -> Result<Report, SessionError> {
    /// Further warnings are dropped.
    const MOST_WARNINGS: usize = 20;
    let told = Cell::new(0);
    let warn = |line: &str| {
        if told.replace(told.get() + 1) < MOST_WARNINGS {
            events.emit(RunEvent::Guest(line.to_owned()));
        }
    };
    let Limits { start, command: timeout } = limits;
    let signals = catch.as_ref().map(|catch| catch as &CatchSignals<'_>);
    let options = SessionOptions { start, timeout, signals, warn: &warn, processes, ..SessionOptions::default() };
    session.run(request, streams, &options)
}
