//! `--skip-if-unchanged`: the command runs only if something changed that its last run depended on.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use inarch_jobs::trace::{
    self, Captured, Earlier, NewCapture, NotRemembered, Run, State, Stream, Streams, TraceReport, TraceRequest, Verdict,
};
use inarch_jobs::{counted, shown};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat, tell};

use crate::output::{complain, printed};
use crate::say::time;

/// A run that may be skipped.
pub struct Skipping {
    state: State,
    run: Run,
    quiet: bool,
}

/// Opens the state at `path`, and leaves it out of what is traced. `options` are parts of the run that count besides `request`,
/// and `own` the files that are written about it.
pub fn open(
    path: &Path,
    request: &mut TraceRequest,
    options: &[(&str, Vec<u8>)],
    own: Vec<PathBuf>,
    quiet: bool,
) -> anyhow::Result<Skipping> {
    // A misspelled path must not become directories.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return Err(anyhow!("--skip-if-unchanged {}: {} is no directory; make it first", shown(path), shown(parent)));
    }
    if !quiet && has_input() {
        complain("the standard input is not read: with --skip-if-unchanged the command gets an empty one");
    }
    let waiting = || {
        if !quiet {
            complain(format_args!("{}: waiting for another run", shown(path)));
        }
    };
    let state = State::open(path, waiting).map_err(|error| anyhow!("--skip-if-unchanged: {error}"))?;
    request.outside.push(state.path().to_owned());
    let is_joint = trace::is_joint(io::stdout(), io::stderr()).map_err(no_streams)?;
    let run = Run::new(request, options, own, is_joint)
        .map_err(|error| anyhow!("the surroundings of the command: {error}"))?;
    Ok(Skipping { state, run, quiet })
}

impl Skipping {
    /// Says whether the command has to run. If not, prints what it printed, and returns its last run.
    pub fn skip(&mut self) -> anyhow::Result<Option<Earlier>> {
        let (line, earlier) = match self.state.check(&self.run) {
            Verdict::Unchanged(earlier) => (skipped(&earlier), Some(earlier)),
            Verdict::Changed(reasons) => (changed(&reasons), None),
        };
        if !self.quiet {
            complain(line);
        }
        match &earlier {
            Some(earlier) => print(&earlier.said)?,
            None => self.state.forget()?,
        }
        Ok(earlier)
    }

    /// Streams for the command, whose output is passed on and kept when the capture is started.
    pub fn capture(&self) -> anyhow::Result<(NewCapture, Streams)> {
        let output = io::stdout().as_fd().try_clone_to_owned();
        let streams = output.and_then(|output| Ok((output, io::stderr().as_fd().try_clone_to_owned()?)));
        let capture = streams.and_then(|(output, errors)| NewCapture::new(output, errors));
        capture.map_err(no_streams)
    }

    /// Remembers a run with status 0 and the files that were written about it.
    pub fn remember(self, report: &TraceReport, said: &Captured, files: &[(&str, Vec<u8>)]) {
        if !report.status.success() {
            return;
        }
        let path = self.state.path().to_owned();
        match self.state.remember(&self.run, report, said, files) {
            Ok(()) => {}
            Err(NotRemembered::Path(error)) => {
                complain(format_args!("{}: nothing is remembered: {error}", shown(&path)));
            }
            Err(reason) if !self.quiet => complain(format_args!("nothing is remembered: {reason}")),
            Err(_) => {}
        }
    }
}

pub fn no_streams(error: io::Error) -> anyhow::Error {
    anyhow!("the standard streams: {error}")
}

fn skipped(earlier: &Earlier) -> String {
    let restored = match earlier.restored {
        0 => String::new(),
        number => format!("; {} made again", counted(number as u64, "output", "outputs")),
    };
    format!("unchanged since {}: skipped{restored}", time(earlier.at))
}

fn changed(reasons: &[String]) -> String {
    let first = reasons.first().map_or("", String::as_str);
    match reasons.len() {
        0 | 1 => format!("changed: {first}"),
        number => format!("changed: {first}, and {} more", number - 1),
    }
}

/// Prints what a command printed. A reader that has gone is no error.
fn print(said: &Captured) -> anyhow::Result<()> {
    let (mut output, mut errors) = (io::stdout().lock(), io::stderr().lock());
    for (stream, piece) in said.pieces() {
        match stream {
            Stream::Output => printed(output.write_all(piece).and_then(|()| output.flush()))?,
            Stream::Errors => printed(errors.write_all(piece))?,
        }
    }
    Ok(())
}

/// Whether something waits in the standard input, which no run would get.
fn has_input() -> bool {
    let input = io::stdin();
    let Ok(kind) = fstat(&input).map(|stat| FileType::from_raw_mode(stat.st_mode)) else { return false };
    let mut polled = [PollFd::new(&input, PollFlags::IN)];
    match kind {
        FileType::Fifo => {
            poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
                && polled[0].revents().contains(PollFlags::IN)
        }
        FileType::RegularFile => fstat(&input).is_ok_and(|stat| tell(&input).is_ok_and(|at| at < stat.st_size as u64)),
        _ => false,
    }
}
