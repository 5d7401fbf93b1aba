//! Sends frames to the guest: standard input, signals, and credit for its output.

use std::io::{self, Write};

use libc::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};

use super::{Relay, is_disconnect};
use crate::protocol::{HostFrame, OutputStream, STDIN_FRAME};
use crate::session::streams::window_size;
use crate::session::{SessionError, is_temporary};

impl Relay<'_> {
    pub(super) fn say(&mut self, frame: HostFrame<'_>) {
        frame.encode(&mut self.outgoing);
    }

    /// Sends what the socket accepts now.
    pub(super) fn flush(&mut self) -> Result<(), SessionError> {
        while self.connected && !self.outgoing.is_empty() {
            match self.socket.write(&self.outgoing) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_temporary(&error) => break,
                // The guest's last frames are still to be read; reading finds the end.
                Err(error) if is_disconnect(&error) => self.outgoing.clear(),
                Err(error) => return Err(SessionError::io("write to the guest")(error)),
            }
        }
        Ok(())
    }

    pub(super) fn read_input(&mut self, buffer: &mut [u8]) {
        let Some(input) = &self.input else { return };
        let most = STDIN_FRAME.min(usize::try_from(self.input_credit).unwrap_or(usize::MAX)).min(buffer.len());
        let Some(room) = buffer.get_mut(..most) else { return };
        match rustix::io::read(input, &mut *room) {
            Err(error) if is_temporary(&error.into()) => {}
            // An input that cannot be read (a directory, a lost terminal) counts as its end.
            Ok(0) | Err(_) => {
                self.input = None;
                self.say(HostFrame::StdinEnd);
            }
            Ok(length) => {
                self.input_credit = self.input_credit.saturating_sub(length as u64);
                HostFrame::Stdin(room.get(..length).unwrap_or_default()).encode(&mut self.outgoing);
            }
        }
    }

    /// Returns the credit of written output, and passes on that a reader is gone.
    pub(super) fn settle(&mut self) {
        const STREAMS: [(OutputStream, &str); 2] = [(OutputStream::Stdout, "output"), (OutputStream::Stderr, "error")];
        for (output, (stream, name)) in self.outputs.iter_mut().zip(STREAMS) {
            let (grant, failure) = output.settle();
            if let Some(grant) = grant {
                HostFrame::OutputCredit(stream, grant).encode(&mut self.outgoing);
            }
            if let Some(source) = failure {
                HostFrame::OutputClosed(stream).encode(&mut self.outgoing);
                if source.kind() != io::ErrorKind::BrokenPipe && self.output_failure.is_none() {
                    self.output_failure = Some(SessionError::Output { stream: name, source });
                }
            }
        }
    }

    pub(super) fn take_signals(&mut self) {
        let pending = self.signals.as_mut().map(|signals| signals.pending()).unwrap_or_default();
        for signal in pending {
            let has_command = self.started.is_some() || self.outcome.is_some();
            match signal {
                SIGINT | SIGTERM | SIGHUP | SIGQUIT if !has_command => {
                    self.ended_by.get_or_insert(signal);
                    continue;
                }
                SIGWINCH => {
                    if let Some(size) = self.window.as_ref().and_then(window_size) {
                        self.say(HostFrame::Window(size));
                    }
                    continue;
                }
                SIGINT => self.interrupts[0] += 1,
                SIGTERM => self.interrupts[1] += 1,
                _ => {}
            }
            self.say(HostFrame::Signal(signal as u32));
        }
    }
}
