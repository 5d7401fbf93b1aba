//! A started trace, in threads of its own; its starter waits for it or stops it.

use std::path::Path;
use std::sync::Arc;

use inarch_lifecycle::Events;
use inarch_lifecycle::confinement::{Access, Confinement, Grants, Work};
use inarch_lifecycle::descriptors::take_limit;
use inarch_lifecycle::running::Running;
use inarch_lifecycle::scratch::Scratch;
use inarch_server::StopHandle;
use inarch_source::spool_directory;
use rustix::process::Signal;

use super::capture::Streams;
use super::duty::{Current, Duty, TraceEvent};
use super::serve::{Given, host, run_in_view, was_interrupted};
use super::touched::listed;
use super::verify::{InputFile, Trial, Verification};
use super::{TraceError, TraceReport, TraceRequest};

/// A command under way.
#[derive(Debug)]
pub struct TraceHandle {
    command: Current,
    running: Running<TraceReport, TraceError>,
}

/// Starts the command with this process's streams, environment and working directory. The program's `main` must first
/// look whether it is started again as the command's process: [`become_command`](super::become_command) then takes over.
///
/// # Errors
/// The command cannot be given a view of its own. If it cannot be executed, [`TraceHandle::wait`] reports that.
pub fn start(request: TraceRequest, events: Events<TraceEvent>) -> Result<TraceHandle, TraceError> {
    start_with(request, Streams::default(), events)
}

/// The same with streams of the command's own.
///
/// # Errors
/// As [`start`].
pub fn start_with(
    request: TraceRequest,
    streams: Streams,
    events: Events<TraceEvent>,
) -> Result<TraceHandle, TraceError> {
    let command = Current::default();
    let current = command.clone();
    // Each file that the command has open takes one here. While this process has one thread, that costs no time.
    let limit = take_limit().map(|(soft, _)| soft);
    let work = move |duty: &Duty| trace(&request, streams, limit, &current, duty);
    let ((), running) = Running::start("trace", events, work)?;
    Ok(TraceHandle { command, running })
}

impl TraceHandle {
    /// Sends a signal to the command; none if it has ended.
    pub fn signal(&self, signal: Signal) {
        self.command.signal(signal);
    }

    /// The same from any thread.
    pub fn signaller(&self) -> impl Fn(Signal) + Send + Sync + Clone + 'static {
        let command = self.command.clone();
        move |signal| command.signal(signal)
    }

    /// Asks the command to end, by SIGTERM, and waits for no processes that it leaves behind.
    pub fn stop(&self) {
        self.signal(Signal::TERM);
        self.stopper().stop();
    }

    /// Ends the wait for processes that the command left behind, from any thread. They are served until this process ends.
    pub fn stopper(&self) -> StopHandle {
        self.running.stopper()
    }

    /// Waits for the command, and for all processes that it started; then for the runs that [verify](TraceRequest::verify) it.
    ///
    /// # Errors
    /// The command was not executed, or the record has gaps.
    pub fn wait(self) -> Result<TraceReport, TraceError> {
        self.running.wait()
    }
}

/// The main function of a trace's thread. The command dies with this thread. `limit` is the soft limit of descriptors that it gets.
fn trace(
    request: &TraceRequest,
    streams: Streams,
    limit: Option<u64>,
    current: &Current,
    duty: &Duty,
) -> Result<TraceReport, TraceError> {
    if request.verify {
        // Found out after a long build, it would be late.
        Scratch::within(&spool_directory())?;
    }
    let root = Path::new("/");
    let host = host(false)?;
    let confinement = Confinement::new(Work::Mount).granted(root, Access::Change)?;
    let Streams { input, output, errors } = streams;
    let has_input = input.is_some();
    let given = Given { input, output, errors, limit };
    let started = |command| {
        current.is(command);
        duty.is_ready(());
    };
    let input = if has_input { None } else { InputFile::of_this_process() };
    let mut report = run_in_view(request, (Arc::clone(&host) as _, &host), confinement, given, duty, started)?;
    report.touched.find_renamed(&mut listed);
    if request.verify {
        let trial = Trial { request, first: &report, input, limit, current, duty };
        report.verification =
            Some(if was_interrupted(report.status) { Ok(Verification::Stopped) } else { trial.verify() });
    }
    report.touched = report.touched.without(|path| request.ignored.is_ignored(path));
    Ok(report)
}
