//! Standard output and standard error of the commands.

use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::process::ExitCode;

use inarch_jobs::JobError;

/// Prints an answer. A reader that has gone (`| head`) has what it wanted.
pub fn answer(text: impl Display) -> anyhow::Result<()> {
    answer_with(|out| write!(out, "{text}"))
}

/// As [`answer`], of what is written piece by piece.
pub fn answer_with(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
        Ok(()) => Ok(()),
    }
}

/// Tells a failure in one line. If nobody can hear it, the status still says so.
pub fn complain(text: impl Display) {
    inarch_jobs::say(text);
}

/// Says on standard error how to use what is served. If nobody can hear it, that is no failure.
pub fn introduce(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Does all of it, whatever becomes of the others. The last failure is main's to tell.
pub fn try_all(results: impl Iterator<Item = Result<(), JobError>>) -> anyhow::Result<ExitCode> {
    let mut failures = results.filter_map(Result::err);
    let Some(first) = failures.next() else { return Ok(ExitCode::SUCCESS) };
    let last = failures.fold(first, |failure, next| {
        complain(&failure);
        next
    });
    Err(last.into())
}
