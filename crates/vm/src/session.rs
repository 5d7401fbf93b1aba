//! [`Session`]: runs one command in a guest through its agent, with its streams, signals and end.
//!
//! 1. [`Session::greet`] waits for the agent's HELLO: the guest lives.
//! 2. [`Session::run`] sends the request, then relays until the command's end:
//!    - It reads standard input only when the guest has credit left, so that signals never queue behind data.
//!    - A thread of its own writes each output. The guest may send only what that thread has room for: a slow reader
//!      stops the command (back-pressure), and nothing grows.
//!    - A reader that closes an output is passed on: the command gets SIGPIPE, as it would here.
//! 3. EXIT comes after the last byte of output; BYE answers it.

mod output;
mod relay;
mod signals;
mod streams;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::protocol::{
    CpuTime, Decoder, GuestFrame, PROTOCOL_VERSION, ProcessEvent, ProtocolError, RequestError, SessionRequest,
};

pub use output::write_whole;
pub use signals::{CatchSignals, SignalSource};
pub use streams::Streams;

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this status.
    Exited(u8),
    /// This signal ended it. Also SIGINT or SIGTERM if the third one ended the session, and the signal that ended the
    /// session before the command was started.
    Signaled(u8),
    /// It exceeded its time limit, and was ended.
    TimedOut,
    /// It was never started.
    Failed {
        /// The status that a shell would give: 127 not found, 126 cannot be run, 125 anything else.
        status: u8,
        /// Why, in one line.
        message: String,
    },
    /// The connection ended before the command did: the guest's kernel died, or the guest was powered off.
    GuestDied,
}

/// What happened in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How the command ended.
    pub outcome: Outcome,
    /// The times of its start, if it started.
    pub started: Option<Started>,
    /// Its end, if the guest reported it.
    pub ended: Option<Ended>,
}

/// Times before the command's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// From the guest's boot to the agent's first instruction, by the guest's clock.
    pub agent: Duration,
    /// From the guest's boot to the command's start, by the guest's clock.
    pub command: Duration,
    /// When the guest's report of the command's start arrived, by this machine's clock.
    pub at: Instant,
}

/// The command's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// When the guest's report of it arrived.
    pub at: Instant,
    /// The processor's time that the command took in the guest.
    pub cpu: CpuTime,
}

/// Why a session failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The guest did not speak in time.
    #[error("the guest's agent did not answer within {} seconds", waited.as_secs_f32())]
    NoHello {
        /// How long we waited.
        waited: Duration,
    },
    /// The guest ended before it spoke.
    #[error("the guest ended before its agent answered")]
    Closed,
    /// The agent is from another version of Inarch.
    #[error("the guest's agent speaks version {version} of the protocol, this program version {PROTOCOL_VERSION}")]
    Version {
        /// The agent's version.
        version: u32,
    },
    /// The guest spoke, but the command did not start in time.
    #[error("the guest did not start the command within {} seconds", waited.as_secs_f32())]
    NotStarted {
        /// How long we waited.
        waited: Duration,
    },
    /// The guest was ready, but the command did not start in time.
    #[error(
        "the guest was ready, but did not start the command within {} seconds; look at /etc/passwd, /etc/group and the \
         working directory of its root, and with --console FILE at what its kernel says",
        waited.as_secs_f32()
    )]
    NotStartedThoughReady {
        /// How long we waited.
        waited: Duration,
    },
    /// The guest breaks the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The guest sent a frame that is out of order.
    #[error("the guest broke the protocol: {0}")]
    Conversation(&'static str),
    /// The request cannot be encoded.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The command ended, but its file systems were not unmounted: what was written last may be missing.
    #[error("the guest did not unmount its file systems after the command's end")]
    NotUnmounted,
    /// One of our own outputs failed.
    #[error("cannot write to standard {stream}: {source}")]
    Output {
        /// `output` or `error`.
        stream: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The connection to the guest, or our own streams, failed.
    #[error("cannot {action}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl SessionError {
    fn io(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}

/// Options of a session.
#[derive(Clone, Copy)]
pub struct SessionOptions<'a> {
    /// Ends the session if the guest takes longer to start the command.
    pub start: Option<Duration>,
    /// Ends the session if a guest that is ready takes longer to start the command.
    pub start_when_ready: Duration,
    /// Ends the command when it has run this long: SIGTERM, then SIGKILL after `kill_grace`.
    pub timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub kill_grace: Duration,
    /// Catches the signals that are passed on to the command, from the session's start to its end. SIGWINCH passes on the
    /// terminal's new size. The third SIGINT or SIGTERM ends the session; before the command's start the first SIGINT,
    /// SIGTERM, SIGHUP or SIGQUIT does.
    pub signals: Option<&'a CatchSignals<'a>>,
    /// Receives one-line warnings about what the guest lacks, although the command can start.
    pub warn: &'a dyn Fn(&str),
    /// Receives what happens to the guest's processes, if the request [asks for it](SessionRequest::observe).
    pub processes: &'a dyn Fn(Vec<ProcessEvent>),
}

impl Default for SessionOptions<'_> {
    fn default() -> Self {
        Self {
            start: None,
            // Finding user and program takes a second or two in the slowest guest.
            start_when_ready: Duration::from_secs(300),
            timeout: None,
            kill_grace: Duration::from_secs(5),
            signals: None,
            warn: &|_| {},
            processes: &|_| {},
        }
    }
}

/// A connection on which the agent has sent HELLO.
#[derive(Debug)]
pub struct Session {
    socket: UnixStream,
    decoder: Decoder,
}

impl Session {
    /// Waits at most `deadline` for HELLO on the socket of the guest's port.
    ///
    /// # Errors
    /// [`SessionError::NoHello`] if nothing came, [`SessionError::Closed`] if the connection ended.
    pub fn greet(mut socket: UnixStream, deadline: Duration) -> Result<Self, SessionError> {
        let end = Instant::now() + deadline;
        let mut decoder = Decoder::new();
        let mut buffer = [0; 4096];
        socket.set_nonblocking(false).map_err(SessionError::io("wait for the guest"))?;
        loop {
            if let Some(frame) = decoder.next()? {
                return match frame {
                    GuestFrame::Hello { version: PROTOCOL_VERSION } => {
                        tracing::debug!("the guest's agent speaks");
                        Ok(Self { socket, decoder })
                    }
                    GuestFrame::Hello { version } => Err(SessionError::Version { version }),
                    _ => Err(SessionError::Conversation("its first frame is not HELLO")),
                };
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(SessionError::NoHello { waited: deadline });
            }
            socket.set_read_timeout(Some(left)).map_err(SessionError::io("wait for the guest"))?;
            match socket.read(&mut buffer) {
                Ok(0) => return Err(SessionError::Closed),
                Ok(length) => decoder.push(buffer.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(SessionError::Closed),
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(SessionError::io("read from the guest")(error)),
            }
        }
    }

    /// Runs the command of `request` with `streams` as its standard streams.
    ///
    /// If the request has a terminal and standard input is one, it is in raw mode while the command runs. Returns when
    /// the command has ended and its output is written (and, for a clean shutdown, its file systems are unmounted). The
    /// machine still runs then, and may be ended at once.
    pub fn run(
        self,
        request: &SessionRequest,
        streams: Streams,
        options: &SessionOptions<'_>,
    ) -> Result<Report, SessionError> {
        relay::Relay::new(self, request, streams, options)?.run()
    }
}

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::TimedOut)
}
