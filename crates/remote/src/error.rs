//! [`RemoteError`]: why an object could not be fetched or stored.

use std::io;
use std::time::Duration;

/// An answer is too long or too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongLength {
    /// The answer is longer than it may be.
    #[error("the answer is longer than {most} bytes")]
    TooLong {
        /// The most that it may have.
        most: u64,
    },
    /// The answer is shorter than what was asked for.
    #[error("the answer ends after {got} of {wanted} bytes")]
    TooShort {
        /// How many bytes came.
        got: u64,
        /// How many were asked for.
        wanted: u64,
    },
}

/// Why an object could not be fetched or stored. Each is one line, which names neither the remote nor the object: the caller does.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// It is not there.
    #[error("there is no such object")]
    Missing,
    /// The answer is too long or too short.
    #[error(transparent)]
    Length(#[from] WrongLength),
    /// It took too long.
    #[error("no answer within {} seconds", .0.as_secs())]
    TimeOut(Duration),
    /// The last requests failed, so this one was not made.
    #[error("it did not answer just now")]
    Down,
    /// This kind of remote is only read.
    #[error("a web server is only read; push to s3://, gs://, az:// or file://")]
    ReadOnly,
    /// The store refuses, cannot be reached, or makes no sense.
    #[error("{0}")]
    Store(String),
    /// The environment has no credentials, so those of a machine in the provider's cloud were tried.
    #[error("no credentials: the environment has none, and no metadata service of a cloud gives any ({0})")]
    Credentials(String),
    /// A file of a directory.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Below a remote's directory there are only directories and files: links of others are not followed.
    #[error("'{0}' there is not a directory")]
    NotADirectory(String),
    /// The thread that speaks with the remote has ended.
    #[error("the thread that fetches has ended")]
    Ended,
}

impl RemoteError {
    /// The error of the `object_store` crate, in one line. It names the URL and the cause, with the body of an answer: cut, and without control
    /// characters.
    pub(crate) fn of_store(error: &object_store::Error) -> RemoteError {
        if matches!(error, object_store::Error::NotFound { .. }) {
            return RemoteError::Missing;
        }
        let mut text = error.to_string();
        // Only the causes say that a connection was refused.
        let mut cause = std::error::Error::source(error);
        while let Some(next) = cause {
            let line = next.to_string();
            if !text.contains(&line) {
                text = format!("{text}: {line}");
            }
            cause = next.source();
        }
        let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MOST_TEXT).collect();
        let line = plain.split_whitespace().collect::<Vec<_>>().join(" ");
        if METADATA_SERVICES.iter().any(|host| text.contains(host)) {
            return RemoteError::Credentials(line);
        }
        RemoteError::Store(line)
    }

    /// Whether the remote itself fails, and not this request alone.
    pub(crate) fn is_of_remote(&self) -> bool {
        matches!(
            self,
            RemoteError::TimeOut(_) | RemoteError::Store(_) | RemoteError::Credentials(_) | RemoteError::Ended
        )
    }
}

/// Hosts that give credentials to machines in a cloud: of AWS and Azure, of AWS's containers, of Google.
const METADATA_SERVICES: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// The most characters of a message that others made.
const MOST_TEXT: usize = 300;
