//! Passes the signals that `inarch trace` receives on to its command.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use inarch_jobs::trace::TraceHandle;
use rustix::process::Signal;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1, SIGUSR2};

use crate::signals::not_ignored;

/// Signals that a command can be sent.
const PASSED_ON: [i32; 6] = [SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2];

/// This process stops only when the command has stopped: one that stopped by itself could find the command still stopped when both
/// are continued, and stop again.
const JOB_CONTROL: [i32; 4] = [SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT];

/// Catches signals from now on: not those that this process was told to ignore, as by nohup(1), for the command inherits that.
pub fn catch() -> std::io::Result<signal_hook::iterator::Signals> {
    signal_hook::iterator::Signals::new(not_ignored(&[&PASSED_ON[..], &JOB_CONTROL].concat()))
}

/// Passes on the signals that came while the command had no process. A terminal sends a key to the command's process itself, if there is one.
pub fn pass_on_early(signals: &mut signal_hook::iterator::Signals, handle: &TraceHandle) {
    let early: Vec<Signal> = signals.pending().filter_map(Signal::from_named_raw).collect();
    if early.iter().any(|signal| [Signal::TERM, Signal::HUP].contains(signal)) {
        handle.stopper().stop();
    }
    early.into_iter().for_each(handle.signaller());
}

/// Leads signals to the command; when it has ended, to the end of the trace.
pub fn pass_on(mut signals: signal_hook::iterator::Signals, handle: &TraceHandle, has_ended: Arc<AtomicBool>) {
    let (send, stop) = (handle.signaller(), handle.stopper());
    thread::spawn(move || {
        for number in signals.forever() {
            // A terminal sends these to the command as well.
            let is_key = matches!(number, SIGINT | SIGQUIT | SIGTSTP | SIGCONT);
            let is_from_terminal = is_key && is_in_foreground() || matches!(number, SIGTTIN | SIGTTOU);
            if let Some(signal) = Signal::from_named_raw(number).filter(|_| !is_from_terminal) {
                send(signal);
            }
            let ends = match number {
                SIGTERM | SIGHUP => true,
                // Keys: a command that lives on has a use of its own for them.
                SIGINT | SIGQUIT => has_ended.load(Ordering::Relaxed),
                _ => false,
            };
            if ends {
                stop.stop();
            }
        }
    });
}

/// Whether this process may read from its terminal.
fn is_in_foreground() -> bool {
    let terminal = File::open("/dev/tty");
    terminal.is_ok_and(|terminal| {
        rustix::termios::tcgetpgrp(terminal).is_ok_and(|group| group == rustix::process::getpgrp())
    })
}
