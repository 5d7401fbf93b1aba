//! The event loop of a session: waits for the guest, the streams, signals and time limits, and decides when all is
//! done.
//!
//! [`said`] handles the guest's frames, [`told`] sends frames to it, and [`limits`] handles time limits.

mod limits;
mod said;
mod told;

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use libc::{SIGINT, SIGTERM};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::output::{OUTPUT_WINDOW, Output, wake_descriptor};
use super::signals::SignalSource;
use super::streams::{RawTerminal, Streams};
use super::{Ended, Outcome, Report, Session, SessionError, SessionOptions, Started};
use crate::protocol::{Decoder, HostFrame, OutputStream, SessionRequest};
use limits::Deadline;

/// A session ends after this many SIGINTs, or SIGTERMs.
const INSISTENCE: u32 = 3;
/// Standard input is not read while this much waits to be sent.
const OUTGOING_MAX: usize = 256 * 1024;

/// A session while its command runs.
pub(super) struct Relay<'a> {
    socket: UnixStream,
    decoder: Decoder,
    outgoing: Vec<u8>,
    input: Option<OwnedFd>,
    input_credit: u64,
    /// Standard output and standard error.
    outputs: [Output; 2],
    wake: OwnedFd,
    /// The terminal whose size the command's terminal follows.
    window: Option<OwnedFd>,
    raw: Option<RawTerminal>,
    signals: Option<Box<dyn SignalSource>>,
    interrupts: [u32; 2],
    /// The signal that came before the command existed.
    ended_by: Option<i32>,
    /// The guest has sent READY.
    ready: bool,
    deadline: Option<(Instant, Deadline)>,
    /// If the readers of our outputs stall: when the session ends after the file systems were unmounted.
    drain_until: Option<Instant>,
    /// How long to wait for the guest to read BYE.
    bye_until: Option<Instant>,
    /// The guest did not read BYE in time.
    deaf: bool,
    given_up: bool,
    options: SessionOptions<'a>,
    clean_shutdown: bool,
    sets_clock: bool,
    timed_out: bool,
    unmounted: bool,
    connected: bool,
    started: Option<Started>,
    ended: Option<Ended>,
    outcome: Option<Outcome>,
    output_failure: Option<SessionError>,
    /// The agent's warnings, until earlier output is written.
    warnings: Vec<String>,
}

impl<'a> Relay<'a> {
    pub(super) fn new(
        session: Session,
        request: &SessionRequest,
        streams: Streams,
        options: &SessionOptions<'a>,
    ) -> Result<Self, SessionError> {
        let failed = SessionError::io("set up the session");
        let mut outgoing = request.encode()?;
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            HostFrame::OutputCredit(stream, OUTPUT_WINDOW).encode(&mut outgoing);
        }
        session.socket.set_read_timeout(None).and_then(|()| session.socket.set_nonblocking(true)).map_err(&failed)?;
        let wake = wake_descriptor().map_err(&failed)?;
        let window = [streams.input.as_ref(), Some(&streams.output), Some(&streams.error)]
            .into_iter()
            .flatten()
            .find(|stream| request.terminal.is_some() && stream.is_terminal())
            .map(OwnedFd::try_clone)
            .transpose()
            .map_err(&failed)?;
        if streams.input.is_none() {
            HostFrame::StdinEnd.encode(&mut outgoing);
        }
        Ok(Self {
            socket: session.socket,
            decoder: session.decoder,
            outgoing,
            input: streams.input,
            input_credit: 0,
            outputs: [
                Output::start(streams.output, &wake).map_err(&failed)?,
                Output::start(streams.error, &wake).map_err(&failed)?,
            ],
            wake,
            window,
            raw: None,
            signals: options.signals.map(|catch| catch()).transpose().map_err(&failed)?,
            interrupts: [0; 2],
            ended_by: None,
            ready: false,
            deadline: options.start.map(|start| (Instant::now() + start, Deadline::Start)),
            drain_until: None,
            bye_until: None,
            deaf: false,
            given_up: false,
            options: *options,
            clean_shutdown: request.clean_shutdown,
            sets_clock: request.set_clock,
            timed_out: false,
            unmounted: false,
            connected: true,
            started: None,
            ended: None,
            outcome: None,
            output_failure: None,
            warnings: Vec::new(),
        })
    }

    /// Relays until everything is done.
    pub(super) fn run(mut self) -> Result<Report, SessionError> {
        let report = self.relay();
        drop(self.raw.take());
        self.say_warnings();
        report
    }

    fn relay(&mut self) -> Result<Report, SessionError> {
        let mut buffer = vec![0; 128 * 1024];
        self.take_frames()?;
        loop {
            self.flush()?;
            self.settle();
            if self.outputs.iter().all(Output::is_settled) {
                self.say_warnings();
            }
            if let Some(outcome) = self.finished()? {
                return match self.output_failure.take() {
                    Some(failure) => Err(failure),
                    None => Ok(Report { outcome, started: self.started, ended: self.ended }),
                };
            }
            self.wait(&mut buffer)?;
        }
    }

    /// The outcome, once nothing remains to be done.
    fn finished(&mut self) -> Result<Option<Outcome>, SessionError> {
        if self.given_up {
            return Ok(Some(Outcome::TimedOut));
        }
        if let Some(signal) = self.ended_by {
            return Ok(Some(Outcome::Signaled(signal as u8)));
        }
        let settled = self.outputs.iter().all(Output::is_settled);
        let insisted = [(SIGINT, self.interrupts[0]), (SIGTERM, self.interrupts[1])];
        if let Some((signal, _)) = insisted.into_iter().find(|(_, count)| *count >= INSISTENCE) {
            return Ok(Some(Outcome::Signaled(signal as u8)));
        }
        let Some(outcome) = &self.outcome else {
            return Ok((!self.connected && settled).then_some(Outcome::GuestDied));
        };
        let unmounting = self.unmounts_after(outcome) && !self.unmounted;
        if unmounting && !self.connected {
            return Err(SessionError::NotUnmounted);
        }
        let said_bye = self.outgoing.is_empty() || !self.connected || self.deaf;
        let outcome = if self.timed_out { Outcome::TimedOut } else { outcome.clone() };
        Ok((settled && said_bye && !unmounting).then_some(outcome))
    }

    /// Waits for the next event, and handles it.
    fn wait(&mut self, buffer: &mut [u8]) -> Result<(), SessionError> {
        let reads_input = self.input_credit > 0 && self.outgoing.len() < OUTGOING_MAX && self.outcome.is_none();
        let mut socket_events = PollFlags::IN;
        socket_events.set(PollFlags::OUT, !self.outgoing.is_empty());
        let nothing = self.wake.as_fd();
        let input = self.input.as_ref().filter(|_| reads_input).map(AsFd::as_fd);
        let signals = self.signals.as_ref().map(AsFd::as_fd);
        // What is not waited for is replaced by the eventfd, without events, so that the indices stay the same.
        let place = |fd: Option<_>, events| match fd {
            Some(fd) => PollFd::from_borrowed_fd(fd, events),
            None => PollFd::from_borrowed_fd(nothing, PollFlags::empty()),
        };
        let socket = self.connected.then(|| self.socket.as_fd());
        let mut places = [
            place(socket, socket_events),
            place(input, PollFlags::IN),
            place(signals, PollFlags::IN),
            place(Some(nothing), PollFlags::IN),
        ];
        let next = self.deadline.map(|(at, _)| at).into_iter().chain(self.bye_until).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut places, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(SessionError::io("wait for the guest")(error.into())),
        }
        let [socket, input, signals, wake] = places.map(|place| !place.revents().is_empty());
        if wake {
            // Only drains it; every round checks what it signals.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        if signals {
            self.take_signals();
        }
        if input {
            self.read_input(buffer);
        }
        if socket && self.connected {
            self.read_socket(buffer)?;
        }
        self.check_deadline()
    }
}

fn is_disconnect(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
