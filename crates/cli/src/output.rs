//! Prints to standard output and standard error.

use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use crate::say::say;

/// Prints an answer. A reader that has gone (`| head`) is no error.
pub fn answer(text: impl Display) -> anyhow::Result<()> {
    answer_with(|out| write!(out, "{text}"))
}

/// Like [`answer`], for output that is written piece by piece.
pub fn answer_with(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    printed(write(&mut out).and_then(|()| out.flush()))
}

/// What came of printing an answer. A reader that has gone is no error.
pub fn printed(result: io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
        Ok(()) => Ok(()),
    }
}

/// Reports a failure in one line. If that fails, the status still says so.
pub fn complain(text: impl Display) {
    say(text);
}

/// Prints on standard error how to use the server. Ignores errors of writing.
pub fn introduce(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Collects all results, and reports every failure but the last, which main reports.
pub fn try_all<E>(results: impl Iterator<Item = Result<(), E>>) -> anyhow::Result<ExitCode>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let mut failures = results.filter_map(Result::err);
    let Some(first) = failures.next() else { return Ok(ExitCode::SUCCESS) };
    let last = failures.fold(first, |failure, next| {
        complain(&failure);
        next
    });
    Err(last.into())
}
