//! The standard streams of a session, and their terminal.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{self, OptionalActions, Termios};

use crate::protocol::WindowSize;

/// What the command's standard streams are connected to.
#[derive(Debug)]
pub struct Streams {
    /// Read until its end; `None` is empty input.
    pub input: Option<OwnedFd>,
    /// Standard output; with a terminal, error output too.
    pub output: OwnedFd,
    /// Standard error.
    pub error: OwnedFd,
}

impl Streams {
    /// This process's own streams.
    pub fn of_process() -> io::Result<Self> {
        Ok(Self {
            input: Some(io::stdin().as_fd().try_clone_to_owned()?),
            output: io::stdout().as_fd().try_clone_to_owned()?,
            error: io::stderr().as_fd().try_clone_to_owned()?,
        })
    }

    /// The same streams by other descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            input: self.input.as_ref().map(OwnedFd::try_clone).transpose()?,
            output: self.output.try_clone()?,
            error: self.error.try_clone()?,
        })
    }

    /// Size of the terminal that one of the streams is, if one is.
    pub fn window_size(&self) -> Option<WindowSize> {
        [self.input.as_ref(), Some(&self.output), Some(&self.error)].into_iter().flatten().find_map(window_size)
    }
}

/// The size of a terminal; `None` if it is not a terminal or has no size.
pub(super) fn window_size(terminal: impl AsFd) -> Option<WindowSize> {
    let size = termios::tcgetwinsize(terminal).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(WindowSize { rows: size.ws_row, columns: size.ws_col })
}

/// A terminal in raw mode; dropping it restores the previous mode.
#[derive(Debug)]
pub(super) struct RawTerminal {
    terminal: OwnedFd,
    before: Termios,
}

impl RawTerminal {
    /// Makes `terminal` raw; `None` if it is not a terminal.
    pub(super) fn enter(terminal: impl AsFd) -> Option<Self> {
        let terminal = terminal.as_fd().try_clone_to_owned().ok()?;
        let before = termios::tcgetattr(&terminal).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        // Input is not flushed: what was typed while the guest booted is for the command.
        termios::tcsetattr(&terminal, OptionalActions::Now, &raw).ok()?;
        Some(Self { terminal, before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing can be done about a lost terminal.
        let _ = termios::tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}
