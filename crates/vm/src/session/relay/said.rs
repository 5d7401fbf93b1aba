//! Handles the guest's frames.

use std::io::Read;
use std::time::{Instant, SystemTime};

use super::limits::{BYE_GRACE, Deadline, UNMOUNT_DEADLINE};
use super::{Relay, is_disconnect};
use crate::protocol::{GuestFrame, HostFrame, OutputStream};
use crate::session::streams::RawTerminal;
use crate::session::{Ended, Outcome, SessionError, Started, is_temporary};

/// The most warnings that wait for earlier output.
const MOST_WARNINGS: usize = 16;

impl Relay<'_> {
    pub(super) fn read_socket(&mut self, buffer: &mut [u8]) -> Result<(), SessionError> {
        match self.socket.read(buffer) {
            Ok(0) => self.connected = false,
            Ok(length) => {
                self.decoder.push(buffer.get(..length).unwrap_or_default());
                self.take_frames()?;
            }
            Err(error) if is_temporary(&error) => {}
            Err(error) if is_disconnect(&error) => self.connected = false,
            Err(error) => return Err(SessionError::io("read from the guest")(error)),
        }
        Ok(())
    }

    pub(super) fn take_frames(&mut self) -> Result<(), SessionError> {
        while let Some(frame) = self.decoder.next()? {
            self.take_frame(frame)?;
        }
        Ok(())
    }

    fn take_frame(&mut self, frame: GuestFrame) -> Result<(), SessionError> {
        let unmounts = self.clean_shutdown && !self.unmounted && frame == GuestFrame::Unmounted;
        if self.outcome.is_some() && !unmounts {
            return Err(SessionError::Conversation("it went on after the command's end"));
        }
        match frame {
            GuestFrame::Hello { .. } => return Err(SessionError::Conversation("it said HELLO twice")),
            // Entering raw mode a second time would save the raw mode as the state to restore.
            GuestFrame::Started { .. } if self.started.is_some() => {
                return Err(SessionError::Conversation("it said STARTED twice"));
            }
            GuestFrame::Ready if self.ready || self.started.is_some() => {
                return Err(SessionError::Conversation("it said READY twice, or after STARTED"));
            }
            GuestFrame::Ready => {
                self.ready = true;
                let until = Instant::now() + self.options.start_when_ready;
                if self.deadline.is_none_or(|(at, _)| until < at) {
                    self.deadline = Some((until, Deadline::StartWhenReady));
                }
            }
            GuestFrame::Started { agent, command } => {
                self.started = Some(Started { agent, command, at: Instant::now() });
                self.deadline = self.options.timeout.map(|timeout| (Instant::now() + timeout, Deadline::Terminate));
                // The earlier CLOCK waited in the port while the guest loaded modules and mounted.
                if self.sets_clock {
                    HostFrame::Clock(SystemTime::now()).encode(&mut self.outgoing);
                }
                if self.window.is_some() {
                    self.raw = self.input.as_ref().and_then(RawTerminal::enter);
                }
            }
            GuestFrame::Output(stream, bytes) => {
                let [stdout, stderr] = &mut self.outputs;
                let output = if stream == OutputStream::Stdout { stdout } else { stderr };
                if !output.take(&bytes) {
                    return Err(SessionError::Conversation("it sent more output than it may"));
                }
            }
            GuestFrame::Processes(events) => (self.options.processes)(events),
            GuestFrame::StdinCredit(bytes) => self.input_credit = self.input_credit.saturating_add(u64::from(bytes)),
            GuestFrame::StdinClosed => self.input = None,
            GuestFrame::Exit { status, signal, cpu } => {
                self.ended = Some(Ended { at: Instant::now(), cpu });
                self.end(if signal == 0 { Outcome::Exited(status) } else { Outcome::Signaled(signal) });
            }
            GuestFrame::Error { status, text } => {
                // A command that did not start did not succeed, whatever the guest says.
                let status = if status == 0 { 125 } else { status };
                self.end(Outcome::Failed { status, message: text });
            }
            GuestFrame::Warning(text) => {
                if self.warnings.len() >= MOST_WARNINGS {
                    self.say_warnings();
                }
                self.warnings.push(text);
            }
            GuestFrame::Unmounted if self.outcome.is_none() => {
                return Err(SessionError::Conversation("it said UNMOUNTED before the command's end"));
            }
            GuestFrame::Unmounted => {
                self.unmounted = true;
                self.deadline = self.drain_until.map(|at| (at, Deadline::GiveUp));
            }
        }
        Ok(())
    }

    pub(super) fn say_warnings(&mut self) {
        self.warnings.drain(..).for_each(|text| (self.options.warn)(&text));
    }

    fn end(&mut self, outcome: Outcome) {
        let now = Instant::now();
        self.input = None;
        // Output must still reach our readers: the time limit applies to them too.
        self.drain_until = self.deadline.map(|(at, _)| at);
        self.deadline = if self.unmounts_after(&outcome) {
            Some((now + UNMOUNT_DEADLINE, Deadline::Unmount))
        } else {
            self.drain_until.map(|at| (at, Deadline::GiveUp))
        };
        self.bye_until = Some(now + BYE_GRACE);
        self.outcome = Some(outcome);
        self.raw = None;
        self.say(HostFrame::Bye);
    }

    /// Whether the guest unmounts its file systems after this outcome.
    pub(super) fn unmounts_after(&self, outcome: &Outcome) -> bool {
        self.clean_shutdown && !matches!(outcome, Outcome::Failed { .. })
    }
}
