//! [`RegistryError`]: why an image could not be pulled or pushed.

use std::io;
use std::time::Duration;

use crate::WrongLength;

/// Why an image could not be pulled or pushed. Each is one line, which does not name the image: the caller does.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The registry has no such image or blob.
    #[error("the registry does not have it ({0})")]
    Missing(String),
    /// It asks for credentials, or refuses those that there are.
    #[error("the registry refuses: {said}; {advice}")]
    Denied {
        /// What it says.
        said: String,
        /// What to do.
        advice: String,
    },
    /// It cannot be reached, or a connection breaks.
    #[error("the connection with the registry fails: {0}")]
    Unreachable(String),
    /// It is in trouble, or asks to come back later.
    #[error("the registry answers {status}: {said}")]
    Trouble {
        /// The status of HTTP.
        status: u16,
        /// What it says.
        said: String,
    },
    /// A certificate authority of this machine cannot be used.
    #[error("{0}")]
    Authority(String),
    /// It answers what the protocol does not have.
    #[error("invalid registry answer: {0}")]
    Nonsense(String),
    /// The answer is too long or too short.
    #[error(transparent)]
    Length(#[from] WrongLength),
    /// It took too long.
    #[error("no complete answer within {} seconds", .0.as_secs())]
    TimeOut(Duration),
    /// What came cannot be written.
    #[error("{0}")]
    Write(io::Error),
    /// What is sent cannot be read.
    #[error("{0}")]
    Read(io::Error),
    /// The thread that speaks with it cannot be started.
    #[error("no thread can be started to speak with the registry: {0}")]
    NoThread(#[from] io::Error),
    /// That thread has ended.
    #[error("the thread that speaks with the registry has ended")]
    Ended,
}

/// The status with which a registry asks to come back later.
const TOO_MANY_REQUESTS: u16 = 429;

/// The most characters of a message that others made.
const MOST_TEXT: usize = 300;

/// A message that others made, in one line that is safe to show.
pub(super) fn plain(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_TEXT).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl RegistryError {
    /// The error of a request that was not answered, or not to its end.
    pub(super) fn of_http(error: &reqwest::Error) -> RegistryError {
        // Only the causes say that a connection was refused, or what a certificate lacks.
        let mut text = String::new();
        let mut next: Option<&dyn std::error::Error> = std::error::Error::source(error);
        while let Some(cause) = next {
            let line = cause.to_string();
            if !text.contains(&line) {
                text = if text.is_empty() { line } else { format!("{text}: {line}") };
            }
            next = cause.source();
        }
        if text.is_empty() {
            text = error.to_string();
        }
        if error.is_redirect() {
            return RegistryError::Nonsense(plain(&text));
        }
        RegistryError::Unreachable(plain(&text))
    }

    /// Whether the registry does not answer: then a copy that was kept may do.
    pub fn is_out_of_reach(&self) -> bool {
        match self {
            RegistryError::Unreachable(_) | RegistryError::TimeOut(_) => true,
            RegistryError::Trouble { status, .. } => *status >= 500 || *status == TOO_MANY_REQUESTS,
            _ => false,
        }
    }

    /// Whether the same request may succeed a moment later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            RegistryError::Unreachable(_) | RegistryError::Length(WrongLength::TooShort { .. }) => true,
            RegistryError::Trouble { status, .. } => *status >= 500,
            _ => false,
        }
    }
}
