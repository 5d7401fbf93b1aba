//! Standard output and standard error of the commands.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use inarch_jobs::JobError;

/// Prints an answer. A reader that has gone (`| head`) has what it wanted.
pub fn answer(text: impl Display) -> anyhow::Result<()> {
    answer_bytes(text.to_string().as_bytes())
}

/// As [`answer`], of what may not be UTF-8.
pub fn answer_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
        Ok(()) => Ok(()),
    }
}

/// Tells a failure in one line. If nobody can hear it, the status still says so.
pub fn complain(text: impl Display) {
    inarch_jobs::say(text);
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
