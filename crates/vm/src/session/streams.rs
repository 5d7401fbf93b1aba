//! The three standard streams of a session, and the terminal behind them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::termios::{self, OptionalActions, Termios};

use crate::protocol::WindowSize;

/// What the command's standard streams are connected to.
#[derive(Debug)]
pub struct Streams {
    /// Read until its end; `None` is an empty input.
    pub input: Option<OwnedFd>,
    /// Where the command's standard output goes; on a terminal its error output too.
    pub output: OwnedFd,
    /// Where the command's standard error goes.
    pub error: OwnedFd,
}

impl Streams {
    /// This process's own.
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

/// Size of a terminal; `None` if it is none, or does not know.
pub(super) fn window_size(terminal: impl AsFd) -> Option<WindowSize> {
    let size = termios::tcgetwinsize(terminal).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some(WindowSize { rows: size.ws_row, columns: size.ws_col })
}

/// A terminal in raw mode; dropping it restores what was before.
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
        // Not flushed: what was typed while the guest booted is for the command.
        termios::tcsetattr(&terminal, OptionalActions::Now, &raw).ok()?;
        Some(Self { terminal, before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        let _ = termios::tcsetattr(&self.terminal, OptionalActions::Drain, &self.before);
    }
}
