//! A trace as a value.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_lifecycle::Events;
use inarch_lifecycle::descriptors::take_limit;
use inarch_lifecycle::running::{self, Running};
use inarch_server::StopHandle;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::capture::Streams;
use super::serve::trace;
use super::{TraceError, TraceReport, TraceRequest};

/// Something that happened meanwhile. Its text is one line.
#[derive(Clone, Debug)]
pub enum TraceEvent {
    /// The command has ended. The trace may go on.
    CommandEnded,
    /// The command has ended, but processes that it started have not: the trace goes on until they have, or until it is
    /// [stopped](TraceHandle::stopper).
    Waiting {
        /// Their numbers and names, as far as they can be seen.
        processes: Vec<(u32, String)>,
    },
    /// The command was stopped by a signal of job control, such as SIGTSTP. Its starter should stop, too.
    CommandStopped,
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceEvent::Waiting { processes } if processes.is_empty() => {
                f.write_str("the command has ended; waiting for a process that it left behind")
            }
            TraceEvent::Waiting { processes } => {
                let named: Vec<String> = processes.iter().map(|(number, name)| format!("{number} ({name})")).collect();
                let noun = if processes.len() == 1 { "process" } else { "processes" };
                write!(f, "the command has ended; waiting for {noun} {} that it left behind", named.join(", "))
            }
            TraceEvent::CommandEnded => f.write_str("the command has ended"),
            TraceEvent::CommandStopped => f.write_str("the command is stopped"),
        }
    }
}

/// What the thread of a trace is given. It is ready when the command is started.
pub(super) type Duty = running::Duty<(), TraceEvent>;

/// The process that signals go to: the command, or the one that runs it again.
#[derive(Clone, Debug, Default)]
pub(super) struct Current(Arc<Mutex<Option<OwnedFd>>>);

impl Current {
    /// From now on it is the process of this pidfd.
    pub fn is(&self, command: OwnedFd) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(command);
    }

    fn signal(&self, signal: Signal) {
        if let Some(command) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // It fails only if the command has ended.
            let _ = pidfd_send_signal(command, signal);
        }
    }
}

/// A command under way.
#[derive(Debug)]
pub struct TraceHandle {
    command: Current,
    running: Running<TraceReport, TraceError>,
}

/// Starts the command with this process's streams, environment and working directory. The program's `main` must call
/// [`as_child`](crate::as_child) first.
///
/// # Errors
/// The command cannot be given a view of its own. If it cannot be executed, [`TraceHandle::wait`] reports that.
pub fn start(request: TraceRequest, events: Events<TraceEvent>) -> Result<TraceHandle, TraceError> {
    start_with(request, Streams::default(), events)
}

/// The same with streams of the command's own.
///
/// # Errors
/// As [`start`].
pub fn start_with(
    request: TraceRequest,
    streams: Streams,
    events: Events<TraceEvent>,
) -> Result<TraceHandle, TraceError> {
    let command = Current::default();
    let current = command.clone();
    // Each file that the command has open takes one here. While this process has one thread, that costs no time.
    let limit = take_limit().map(|(soft, _)| soft);
    let work = move |duty: &Duty| trace(&request, streams, limit, &current, duty);
    let ((), running) = Running::start("trace", events, work)?;
    Ok(TraceHandle { command, running })
}

impl TraceHandle {
    /// Sends a signal to the command; none if it has ended.
    pub fn signal(&self, signal: Signal) {
        self.command.signal(signal);
    }

    /// The same from any thread.
    pub fn signaller(&self) -> impl Fn(Signal) + Send + Sync + Clone + 'static {
        let command = self.command.clone();
        move |signal| command.signal(signal)
    }

    /// Ends the wait for processes that the command left behind, from any thread. They are served until this process ends.
    pub fn stopper(&self) -> StopHandle {
        self.running.stopper()
    }

    /// Waits for the command, and for all processes that it started; then for the runs that [verify](TraceRequest::verify) it.
    ///
    /// # Errors
    /// The command was not executed, or the record has gaps.
    pub fn wait(self) -> Result<TraceReport, TraceError> {
        self.running.wait()
    }
}

/// A handle of a child.
pub(super) fn handle_of(child: &std::process::Child) -> std::io::Result<OwnedFd> {
    Ok(pidfd_open(Pid::from_child(child), PidfdFlags::empty())?)
}
