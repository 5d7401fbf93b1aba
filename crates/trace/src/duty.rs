//! [`TraceEvent`]: what a trace reports while it runs. [`Current`]: the process that gets the signals of a trace.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_lifecycle::running;
use rustix::process::{Signal, pidfd_send_signal};

/// Something that happened meanwhile. Its text is one line.
#[derive(Clone, Debug)]
pub enum TraceEvent {
    /// The command has ended. The trace may go on.
    CommandEnded,
    /// The command has ended, but processes that it started have not: the trace goes on until they have, or until it is
    /// [stopped](super::TraceHandle::stopper).
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

    pub fn signal(&self, signal: Signal) {
        if let Some(command) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // It fails only if the command has ended.
            let _ = pidfd_send_signal(command, signal);
        }
    }
}
