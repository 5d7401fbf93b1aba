//! Has foreign bytes parsed by a thread that can do nothing else.
//!
//! 1. The calling thread opens the file, the directory or the pipe.
//! 2. A thread that is confined to parsing reads it ([`inarch_confine::Parse`]). That thread opens nothing.
//! 3. Meanwhile the calling thread does what the reader of an archive asks for ([`Host`]): it makes nameless files to unpack into, and opens
//!    regular files beneath an OCI layout's directory.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};

use inarch_confine::{Parse, Parsing};
use inarch_format::{Accounts, Host, ReadError, ThisHost};

use super::OpenError;

/// Runs `read` in a thread that is confined to parsing.
pub fn parse<T: Send>(read: impl FnOnce(Parsing) -> T + Send) -> Result<T, OpenError> {
    Parse::new().run(read, || {}).map_err(OpenError::NoThread)
}

/// The same for a reader of archives, which may ask `host`.
pub(super) fn parse_asking<T: Send>(
    host: &ThisHost,
    read: impl FnOnce(Parsing, &dyn Host) -> T + Send,
) -> Result<T, OpenError> {
    let (questions, asked) = channel();
    let asking = Asking { questions, spool_directory: host.spool_directory().to_owned() };
    // This ends when the thread drops `asking`.
    let answer = || asked.iter().for_each(|question: Question| question.answer(host));
    let parsed = Parse::new().run(move |parsing| read(parsing, &asking), answer);
    parsed.map_err(OpenError::NoThread)
}

/// A question, with the channel for its answer.
enum Question {
    Spool(Sender<Result<File, ReadError>>),
    OfLayout(String, Sender<Result<Option<File>, ReadError>>),
    Accounts(Accounts, Sender<String>),
    Threads(Sender<usize>),
}

impl Question {
    /// Answers. If the thread that asked has ended, the answer is dropped.
    fn answer(self, host: &ThisHost) {
        match self {
            Question::Spool(answer) => drop(answer.send(host.spool())),
            Question::OfLayout(name, answer) => drop(answer.send(host.of_layout(&name))),
            Question::Accounts(of, answer) => drop(answer.send(host.accounts(of))),
            Question::Threads(answer) => drop(answer.send(host.threads())),
        }
    }
}

/// The host, seen from a confined thread: it sends questions.
struct Asking {
    questions: Sender<Question>,
    spool_directory: PathBuf,
}

impl Asking {
    /// Waits for the answer; `None` if nobody answers any more.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::symlink;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use super::*;

    /// A layout's directory with a secret beside it, and a host that has it.
    fn layout() -> (tempfile::TempDir, ThisHost) {
        let dir = tempfile::tempdir().unwrap();
        let layout = dir.path().join("layout");
        fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
        fs::write(layout.join("index.json"), "{}").unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        symlink("../secret", layout.join("link")).unwrap();
        symlink("..", layout.join("up")).unwrap();
        let host = ThisHost::new(dir.path()).with_layout(File::open(&layout).unwrap().into(), layout);
        (dir, host)
    }

    #[test]
    fn a_parser_gets_what_it_asks_for_and_opens_nothing_itself() {
        let (dir, host) = layout();
        let index = dir.path().join("layout/index.json");
        let parsed = parse_asking(&host, |_, host| {
            assert!(File::open(&index).is_err());
            let mut text = String::new();
            host.of_layout("index.json").unwrap().unwrap().read_to_string(&mut text).unwrap();
            // Several threads ask at once.
            let spools: Vec<File> = thread::scope(|scope| {
                let ask = |_| scope.spawn(|| host.spool().unwrap());
                (0..4).map(ask).collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for mut spool in &spools {
                spool.write_all(b"unpacked").unwrap();
                spool.rewind().unwrap();
            }
            assert!(host.threads() > 0);
            (text, spools.len(), host.accounts(Accounts::Users), host.accounts(Accounts::Groups))
        });
        let (text, spools, users, groups) = parsed.unwrap();
        assert_eq!((&*text, spools), ("{}", 4));
        assert_eq!(users, fs::read_to_string("/etc/passwd").unwrap());
        assert_eq!(groups, fs::read_to_string("/etc/group").unwrap());
        // What is unpacked has no name.
        let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    /// The names come from a document that somebody else wrote.
    #[test]
    fn no_name_leads_out_of_a_layout() {
        let (dir, host) = layout();
        let secret = dir.path().join("secret");
        let hostile = ["../secret", "link", "up/secret", "blobs/../../secret", "/etc/passwd", "blobs", "", ".", "a\0b"];
        let hostile = hostile.into_iter().chain(secret.to_str());
        for name in hostile {
            let answer = parse_asking(&host, |_, host| host.of_layout(name).map(|file| file.is_some())).unwrap();
            assert!(matches!(answer, Err(_) | Ok(false)), "{name:?}");
        }
        let none = parse_asking(&ThisHost::new(dir.path()), |_, host| host.of_layout("index.json").is_err());
        assert!(none.unwrap(), "there is no layout");
    }

    #[test]
    fn a_parser_that_panics_leaves_nobody_waiting() {
        let (_dir, host) = layout();
        let panics = || parse_asking::<()>(&host, |_, host| panic!("{}", host.threads() > 0));
        let caught = catch_unwind(AssertUnwindSafe(panics));
        assert_eq!(caught.unwrap_err().downcast_ref::<String>().map(String::as_str), Some("true"));
    }
}
