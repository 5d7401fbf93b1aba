//! A trace as a value.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use inarch_server::StopHandle;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::serve::trace;
use super::{TraceError, TraceReport, TraceRequest};
use crate::events::Events;
use crate::lifecycle::running::{self, Running};

/// Something that happened meanwhile. Its text is one line.
#[derive(Clone, Debug)]
pub enum TraceEvent {
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
            TraceEvent::CommandStopped => f.write_str("the command is stopped"),
        }
    }
}

/// What the thread of a trace is given.
pub(super) type Duty = running::Duty<OwnedFd, TraceEvent>;

/// A command under way.
#[derive(Debug)]
pub struct TraceHandle {
    command: Arc<OwnedFd>,
    running: Running<TraceReport, TraceError>,
}

/// Starts the command with this process's streams, environment and working directory. The program's `main` must call
/// [`as_child`](crate::as_child) first.
///
/// # Errors
/// The command cannot be given a view of its own. That it cannot be executed, [`TraceHandle::wait`] reports.
pub fn start(request: TraceRequest, events: Events<TraceEvent>) -> Result<TraceHandle, TraceError> {
    let (command, running) = Running::start("trace", events, move |duty| trace(&request, duty))?;
    Ok(TraceHandle { command: Arc::new(command), running })
}

impl TraceHandle {
    /// Sends a signal to the command; none if it has ended.
    pub fn signal(&self, signal: Signal) {
        self.signaller()(signal);
    }

    /// The same from any thread.
    pub fn signaller(&self) -> impl Fn(Signal) + Send + Sync + Clone + 'static {
        let command = Arc::clone(&self.command);
        move |signal| {
            // It fails only if the command has ended.
            let _ = pidfd_send_signal(&*command, signal);
        }
    }

    /// Ends the wait for processes that the command left behind, from any thread. They are served until this process ends.
    pub fn stopper(&self) -> StopHandle {
        self.running.stopper()
    }

    /// Waits for the command, and for all processes that it started.
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
