//! Where a session's signals come from.

use std::io;
use std::os::fd::AsFd;

/// Signals for the command of a session. The descriptor is readable while some are pending.
///
/// A program that holds a session decides itself which of its own signals these are: this crate installs no handler.
pub trait SignalSource: AsFd {
    /// Takes the numbers of the signals that came since the last call.
    fn pending(&mut self) -> Vec<i32>;
}

/// Begins to catch signals; they are a session's until the source is dropped.
///
/// # Errors
/// Those of the system calls that it takes.
pub type CatchSignals<'a> = dyn Fn() -> io::Result<Box<dyn SignalSource>> + 'a;
