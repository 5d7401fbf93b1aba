//! A session with a guest's agent: one command, its streams, its signals and its end.
//!
//! 1. [`Session::greet`] waits for the agent's HELLO: the guest lives.
//! 2. [`Session::run`] sends the request, then relays until the command's end:
//!    - standard input is read only when the guest has room for it, so that signals never queue behind it;
//!    - each output is written by a thread of its own, and the guest may send only what that thread has room for, so
//!      that a slow reader stops the command and nothing grows;
//!    - a reader that closes an output is passed on: the command gets SIGPIPE, as it would here.
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

use crate::protocol::{Decoder, GuestFrame, PROTOCOL_VERSION, ProtocolError, RequestError, SessionRequest};

pub use signals::{CatchSignals, SignalSource};
pub use streams::Streams;

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this status.
    Exited(u8),
    /// This signal ended it; also SIGINT or SIGTERM when the third one came and the session was given up, and the signal that
    /// ended the session before the command was started.
    Signaled(u8),
    /// It did not end in time, and was ended.
    TimedOut,
    /// It was never started.
    Failed {
        /// The status that a shell would give: 127 not found, 126 cannot be run, 125 anything else.
        status: u8,
        /// Why, in one line.
        message: String,
    },
    /// The connection ended before the command did: the guest's kernel died, or somebody switched the guest off.
    GuestDied,
}

/// What a session was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How the command ended.
    pub outcome: Outcome,
    /// When it was started, if it was.
    pub started: Option<Started>,
}

/// When things happened before the command's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// From the guest's boot to the agent's first instruction, by the guest's clock.
    pub agent: Duration,
    /// From the guest's boot to the command's start, by the guest's clock.
    pub command: Duration,
}

/// A session that could not be held.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The guest did not speak in time.
    #[error("the guest's agent did not answer within {} seconds", waited.as_secs_f32())]
    NoHello {
        /// How long was waited.
        waited: Duration,
    },
    /// The guest ended before it spoke.
    #[error("the guest ended before its agent answered")]
    Closed,
    /// The agent is of another version of Inarch.
    #[error("the guest's agent speaks version {version} of the protocol, this program version {PROTOCOL_VERSION}")]
    Version {
        /// The agent's version.
        version: u32,
    },
    /// The guest spoke, but the command did not start in time.
    #[error("the guest did not start the command within {} seconds", waited.as_secs_f32())]
    NotStarted {
        /// How long was waited.
        waited: Duration,
    },
    /// The guest had all it needs, but the command did not start in time.
    #[error(
        "the guest was ready, but did not start the command within {} seconds; look at /etc/passwd, /etc/group and the \
         working directory of its root, and with --console FILE at what its kernel says",
        waited.as_secs_f32()
    )]
    NotStartedThoughReady {
        /// How long was waited.
        waited: Duration,
    },
    /// The guest breaks the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// The guest sent what has no place in the conversation.
    #[error("the guest broke the protocol: {0}")]
    Conversation(&'static str),
    /// The session cannot be described to the agent.
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
        /// What was done.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl SessionError {
    fn io(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { action, source }
    }
}

/// How a session is held.
#[derive(Clone, Copy)]
pub struct SessionOptions<'a> {
    /// Ends the session if the guest takes longer than this to start the command.
    pub start: Option<Duration>,
    /// Ends the session if a guest that has all it needs takes longer than this to start the command.
    pub start_when_ready: Duration,
    /// Ends the command when it has run for so long: SIGTERM, then, after `kill_grace`, SIGKILL.
    pub timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub kill_grace: Duration,
    /// Where the signals come from that are passed on to the command: caught from the session's start to its end. SIGWINCH
    /// passes the terminal's new size on. The third SIGINT or SIGTERM gives the session up; before the command's start the
    /// first one does, or the first SIGHUP or SIGQUIT.
    pub signals: Option<&'a CatchSignals<'a>>,
    /// Told, in one line, what the guest lacks though the command could start.
    pub warn: &'a dyn Fn(&str),
}

impl Default for SessionOptions<'_> {
    fn default() -> Self {
        Self {
            start: None,
            // Looks for a user and a program: a second or two in the slowest guest.
            start_when_ready: Duration::from_secs(300),
            timeout: None,
            kill_grace: Duration::from_secs(5),
            signals: None,
            warn: &|_| {},
        }
    }
}

/// A connection on which the agent has said HELLO.
#[derive(Debug)]
pub struct Session {
    socket: UnixStream,
    decoder: Decoder,
}

impl Session {
    /// Waits for HELLO on the socket behind the guest's port, for at most `deadline`.
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
                    GuestFrame::Hello { version: PROTOCOL_VERSION } => Ok(Self { socket, decoder }),
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

    /// Runs the command that `request` describes, with `streams` as its standard streams.
    ///
    /// Where the request has a terminal and standard input is one, that is in raw mode while the command runs. Returns
    /// when the command has ended and its output is written (and, for a clean shutdown, its file systems are
    /// unmounted); the machine is still there, and may be ended at once.
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
