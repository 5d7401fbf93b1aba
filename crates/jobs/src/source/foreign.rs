//! Bytes that others made are parsed by a thread that can do nothing else.
//!
//! 1. The calling thread opens the file, the directory or the pipe.
//! 2. A thread that is confined to parsing makes sense of it ([`inarch_confine::Parse`]): it opens nothing.
//! 3. Meanwhile the calling thread answers the few questions of an archive's reader ([`Host`]): it makes nameless files for
//!    what is unpacked, and opens regular files beneath an OCI layout's directory.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};

use inarch_confine::{Parse, Parsing};
use inarch_format::{Accounts, Host, ReadError, ThisHost};

use super::OpenError;

/// Has `read` run in a thread that is confined to parsing.
pub(crate) fn parse<T: Send>(read: impl FnOnce(Parsing) -> T + Send) -> Result<T, OpenError> {
    Parse::new().run(read, || {}).map_err(OpenError::NoThread)
}

/// The same for a reader of archives, which asks `host`.
pub(super) fn parse_asking<T: Send>(
    host: &ThisHost,
    read: impl FnOnce(Parsing, &dyn Host) -> T + Send,
) -> Result<T, OpenError> {
    let (questions, asked) = channel();
    let asking = Asking { questions, spool_directory: host.spool_directory().to_owned() };
    // No question comes any more when `asking` is gone, with the thread.
    let answer = || asked.iter().for_each(|question: Question| question.answer(host));
    let parsed = Parse::new().run(move |parsing| read(parsing, &asking), answer);
    parsed.map_err(OpenError::NoThread)
}

/// A question, and where the answer goes.
enum Question {
    Spool(Sender<Result<File, ReadError>>),
    OfLayout(String, Sender<Result<Option<File>, ReadError>>),
    Accounts(Accounts, Sender<String>),
    Threads(Sender<usize>),
}

impl Question {
    /// Whoever asked may be gone: then nobody misses the answer.
    fn answer(self, host: &ThisHost) {
        match self {
            Question::Spool(answer) => drop(answer.send(host.spool())),
            Question::OfLayout(name, answer) => drop(answer.send(host.of_layout(&name))),
            Question::Accounts(of, answer) => drop(answer.send(host.accounts(of))),
            Question::Threads(answer) => drop(answer.send(host.threads())),
        }
    }
}

/// The host, as a confined thread has it.
struct Asking {
    questions: Sender<Question>,
    spool_directory: PathBuf,
}

impl Asking {
    /// The answer; none if nobody answers any more.
    fn ask<T>(&self, question: impl FnOnce(Sender<T>) -> Question) -> Option<T> {
        let (answer, answered) = channel();
        self.questions.send(question(answer)).ok()?;
        answered.recv().ok()
    }
}

impl Host for Asking {
    fn spool(&self) -> Result<File, ReadError> {
        self.ask(Question::Spool).unwrap_or_else(|| Err(self.spool_failed(io::ErrorKind::BrokenPipe.into())))
    }

    fn spool_failed(&self, error: io::Error) -> ReadError {
        ReadError::Spool { directory: self.spool_directory.clone(), error }
    }

    fn of_layout(&self, name: &str) -> Result<Option<File>, ReadError> {
        let answer = self.ask(|answer| Question::OfLayout(name.to_owned(), answer));
        answer.unwrap_or_else(|| Err(ReadError::Io { offset: 0, error: io::ErrorKind::BrokenPipe.into() }))
    }

    fn accounts(&self, of: Accounts) -> String {
        self.ask(|answer| Question::Accounts(of, answer)).unwrap_or_default()
    }

    fn threads(&self) -> usize {
        self.ask(Question::Threads).unwrap_or(1)
    }
}
