//! The loop of a session.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGWINCH};

use super::output::{OUTPUT_WINDOW, Output, wake_descriptor};
use super::signals::Signals;
use super::streams::{RawTerminal, Streams, window_size};
use super::{Outcome, Report, Session, SessionError, SessionOptions, Started, is_temporary};
use crate::protocol::{Decoder, GuestFrame, HostFrame, OutputStream, STDIN_FRAME, SessionRequest};

/// A session is given up when so many SIGINTs, or SIGTERMs, came.
const INSISTENCE: u32 = 3;
/// After SIGKILL the guest has so long to report the end.
const KILLED_GRACE: Duration = Duration::from_secs(3);
/// A guest that has said EXIT or ERROR has so long to read what we still send, BYE among it.
const BYE_GRACE: Duration = Duration::from_secs(1);
/// A guest that writes back and unmounts has so long.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(120);
/// Standard input is not read while so much waits to be sent.
const OUTGOING_MAX: usize = 256 * 1024;

/// So many warnings wait for the output before them, at most.
const MOST_WARNINGS: usize = 16;

/// What happens when time is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deadline {
    Start,
    StartWhenReady,
    Terminate,
    Kill,
    GiveUp,
    Unmount,
}

/// A session while its command runs.
pub(super) struct Relay<'a> {
    socket: UnixStream,
    decoder: Decoder,
    outgoing: Vec<u8>,
    input: Option<OwnedFd>,
    input_credit: u64,
    /// Standard output's and standard error's.
    outputs: [Output; 2],
    wake: OwnedFd,
    /// Where the window's size comes from, when the command has a terminal.
    window: Option<OwnedFd>,
    raw: Option<RawTerminal>,
    signals: Option<Signals>,
    interrupts: [u32; 2],
    /// The signal that came when there was no command yet to end by it.
    ended_by: Option<i32>,
    /// It said READY.
    ready: bool,
    deadline: Option<(Instant, Deadline)>,
    /// When the session is given up after the file systems are unmounted, if our outputs' readers stall.
    drain_until: Option<Instant>,
    /// When BYE is not waited for any longer.
    bye_until: Option<Instant>,
    /// It did not read BYE in time.
    deaf: bool,
    given_up: bool,
    options: SessionOptions<'a>,
    clean_shutdown: bool,
    sets_clock: bool,
    timed_out: bool,
    unmounted: bool,
    connected: bool,
    started: Option<Started>,
    outcome: Option<Outcome>,
    output_failure: Option<SessionError>,
    /// What the guest's agent warns of, until the output that came before is written.
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
            .find(|stream| request.terminal.is_some() && window_size(stream).is_some())
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
            signals: options.signals.then(Signals::watch).transpose().map_err(&failed)?,
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
            outcome: None,
            output_failure: None,
            warnings: Vec::new(),
        })
    }

    /// Relays until everything is over.
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
                    None => Ok(Report { outcome, started: self.started }),
                };
            }
            self.wait(&mut buffer)?;
        }
    }

    /// The outcome, once nothing is left to be done.
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

    /// Whether the guest unmounts its file systems after this end.
    fn unmounts_after(&self, outcome: &Outcome) -> bool {
        self.clean_shutdown && !matches!(outcome, Outcome::Failed { .. })
    }

    /// Waits for whatever comes first, and takes it in.
    fn wait(&mut self, buffer: &mut [u8]) -> Result<(), SessionError> {
        let reads_input = self.input_credit > 0 && self.outgoing.len() < OUTGOING_MAX && self.outcome.is_none();
        let mut socket_events = PollFlags::IN;
        socket_events.set(PollFlags::OUT, !self.outgoing.is_empty());
        let nothing = self.wake.as_fd();
        let input = self.input.as_ref().filter(|_| reads_input).map(AsFd::as_fd);
        let signals = self.signals.as_ref().map(AsFd::as_fd);
        // What is not waited for is replaced by the eventfd without events, so that the places stay the same.
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
            // Only empties it; what it announces is looked at in every round.
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

    fn read_socket(&mut self, buffer: &mut [u8]) -> Result<(), SessionError> {
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

    fn take_frames(&mut self) -> Result<(), SessionError> {
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
            // A second raw mode would take the first one for what is to be restored.
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
                self.started = Some(Started { agent, command });
                self.deadline = self.options.timeout.map(|timeout| (Instant::now() + timeout, Deadline::Terminate));
                // What the guest was told before lay about while it loaded modules and mounted.
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
            GuestFrame::StdinCredit(bytes) => self.input_credit = self.input_credit.saturating_add(u64::from(bytes)),
            GuestFrame::StdinClosed => self.input = None,
            GuestFrame::Exit { status, signal: 0 } => self.end(Outcome::Exited(status)),
            GuestFrame::Exit { signal, .. } => self.end(Outcome::Signaled(signal)),
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

    fn say_warnings(&mut self) {
        self.warnings.drain(..).for_each(|text| (self.options.warn)(&text));
    }

    fn end(&mut self, outcome: Outcome) {
        let now = Instant::now();
        self.input = None;
        // What was written is still to reach our readers: the time limit holds for them too.
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

    fn say(&mut self, frame: HostFrame<'_>) {
        frame.encode(&mut self.outgoing);
    }

    /// Sends what the socket takes now.
    fn flush(&mut self) -> Result<(), SessionError> {
        while self.connected && !self.outgoing.is_empty() {
            match self.socket.write(&self.outgoing) {
                Ok(sent) => drop(self.outgoing.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_temporary(&error) => break,
                // What the guest said before it went is still to be read: reading finds the end.
                Err(error) if is_disconnect(&error) => self.outgoing.clear(),
                Err(error) => return Err(SessionError::io("write to the guest")(error)),
            }
        }
        Ok(())
    }

    fn read_input(&mut self, buffer: &mut [u8]) {
        let Some(input) = &self.input else { return };
        let most = STDIN_FRAME.min(usize::try_from(self.input_credit).unwrap_or(usize::MAX)).min(buffer.len());
        let Some(room) = buffer.get_mut(..most) else { return };
        match rustix::io::read(input, &mut *room) {
            Err(error) if is_temporary(&error.into()) => {}
            // An input that cannot be read (a directory, a terminal that is gone) is at its end for the command.
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

    /// Gives back the credit of what was written, and passes on that a reader is gone.
    fn settle(&mut self) {
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

    fn take_signals(&mut self) {
        let pending = self.signals.as_mut().map(Signals::pending).unwrap_or_default();
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

    fn check_deadline(&mut self) -> Result<(), SessionError> {
        let now = Instant::now();
        if self.bye_until.is_some_and(|until| now >= until) {
            self.bye_until = None;
            self.deaf = true;
        }
        let Some((at, deadline)) = self.deadline else { return Ok(()) };
        if now < at {
            return Ok(());
        }
        self.deadline = match deadline {
            Deadline::Start => {
                let waited = self.options.start.unwrap_or_default();
                return Err(SessionError::NotStarted { waited });
            }
            Deadline::StartWhenReady => {
                return Err(SessionError::NotStartedThoughReady { waited: self.options.start_when_ready });
            }
            Deadline::Terminate => {
                self.timed_out = true;
                self.say(HostFrame::Signal(SIGTERM as u32));
                Some((now + self.options.kill_grace, Deadline::Kill))
            }
            Deadline::Kill => {
                self.say(HostFrame::Signal(SIGKILL as u32));
                Some((now + KILLED_GRACE, Deadline::GiveUp))
            }
            Deadline::GiveUp => {
                self.given_up = true;
                None
            }
            Deadline::Unmount => return Err(SessionError::NotUnmounted),
        };
        Ok(())
    }
}

fn is_disconnect(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
