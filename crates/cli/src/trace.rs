//! `inarch trace`: runs a command, and records which files it needed and which it made.

mod signals;
mod skip;
mod statistics;
pub mod stored;
mod verified;
mod written;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use clap::Args;
use inarch_jobs::trace::{
    self, Captured, Compared, Expectations, Ignored, NewCapture, RecordLevel, TraceError, TraceEvent, TraceReport,
    TraceRequest,
};
use inarch_jobs::{Events, shown};
use rustix::process::{Signal, getpid, kill_process};

use crate::output::complain;
use crate::profile::ProfileArgument;
use crate::sandbox::SandboxArgument;
use skip::Skipping;
use stored::StoredCommand;
use written::Files;
pub use written::write_lines;

/// Options of `inarch trace`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  inarch trace make                        what did it read and make?
  inarch trace -o hello.d -- cc -o hello hello.c
  inarch trace --json trace.json -- ./configure
  inarch trace --expect sources.txt make   does it read anything else?
  inarch trace --verify make               is the record all that it needs?
  inarch trace --skip-if-unchanged .state -- ./configure

The command sees this machine's files through a private mount and works on the files themselves. Its status is the \
command's; 1 if that is 0 and --expect or --verify finds fault, 125 if it was not traced, 126 or 127 if it could not be executed. \
'inarch trace -- diff A B' runs diff(1).")]
pub struct TraceArguments {
    /// What to do with traces, instead.
    #[command(subcommand)]
    pub stored: Option<StoredCommand>,

    /// Write dependencies for make and ninja to FILE, unless the command fails: a rule for what it made, or for --target
    #[arg(short = 'o', long = "depfile", value_name = "FILE")]
    pub depfile: Option<PathBuf>,

    /// The target in the dependency file
    #[arg(long, value_name = "PATH", requires = "depfile")]
    pub target: Option<PathBuf>,

    /// Write all that was touched to FILE, one line of JSON each
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Do not record what is in DIR, such as a cache; may be repeated
    #[arg(long, value_name = "DIR")]
    pub outside: Vec<PathBuf>,

    /// Record each access's process: slower, as the kernel asks each time
    #[arg(long, requires = "json")]
    pub by_process: bool,

    /// Leave out what GLOB matches: names, or with a slash whole paths; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub ignore: Vec<String>,

    /// Add SHA-256 digests of the files that were read and made to the JSON
    #[arg(long, requires = "json")]
    pub hash: bool,

    /// Fail if files are read that FILE does not list: paths and globs, one on each line
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,

    /// Fail too if what FILE lists is not used
    #[arg(long, requires = "expect")]
    pub strict: bool,

    /// Report what the command asked for, and what the trace cost
    #[arg(long)]
    pub stats: bool,

    #[command(flatten)]
    pub profile: ProfileArgument,

    /// Run the command again with nothing but the recorded files, and fail if it makes something else
    #[arg(long)]
    pub verify: bool,

    /// After that, look for files without which it makes the same, in at most RUNS runs
    #[arg(long, value_name = "RUNS", requires = "verify", num_args = 0..=1, require_equals = true, default_missing_value = "500")]
    pub minimise: Option<u32>,

    /// Do not run the command if nothing changed that its last run depended on, as STATE remembers it: print what it printed,
    /// and make missing outputs again. STATE is a directory; it is made if it is missing
    #[arg(long, value_name = "STATE")]
    pub skip_if_unchanged: Option<PathBuf>,

    #[command(flatten)]
    pub sandbox: SandboxArgument,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,

    /// The command and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, required = true, add = crate::completions::command_words())]
    pub command: Vec<OsString>,
}

/// Traces a command.
pub fn run(arguments: TraceArguments) -> anyhow::Result<ExitCode> {
    let TraceArguments {
        stored,
        depfile,
        target,
        json,
        outside,
        by_process,
        ignore,
        hash,
        expect,
        strict,
        stats,
        profile,
        verify,
        minimise,
        skip_if_unchanged,
        sandbox,
        quiet,
        command,
    } = arguments;
    if let Some(stored) = stored {
        return stored::run(stored);
    }
    let base = std::env::current_dir().map_err(|error| anyhow!("the working directory: {error}"))?;
    let ignored = Ignored::new(&ignore, &base).map_err(|error| anyhow!("--ignore: {error}"))?;
    let expected = expect.as_ref().map(|list| Expectations::read(list, &base)).transpose()?;
    let parts = [
        (
            "the options of the trace",
            format!("{:?}", (&depfile, &target, &json, by_process, hash, &ignore, strict, verify, minimise)).into(),
        ),
        ("what is expected", expect.as_ref().map(std::fs::read).transpose()?.unwrap_or_default()),
    ];
    let files = Files::create(depfile, target, json, hash, &base)?;
    let outside = outside.iter().map(|path| {
        let place = path.canonicalize().map_err(|error| anyhow!("--outside {}: {error}", shown(path)))?;
        let is_all = place == Path::new("/");
        if is_all { Err(anyhow!("--outside {}: nothing would be recorded", shown(path))) } else { Ok(place) }
    });
    let mut request = TraceRequest {
        command,
        level: if by_process { RecordLevel::Process } else { RecordLevel::Command },
        outside: outside.collect::<Result<_, _>>()?,
        ignored,
        verify,
        minimise,
        sandbox: sandbox.into(),
    };
    let skipping = skip_if_unchanged.map(|state| skip::open(&state, &mut request, &parts, files.paths(), quiet));
    let mut running = None;
    let mut streams = trace::Streams::default();
    if let Some(mut skipping) = skipping.transpose()? {
        if let Some(earlier) = skipping.skip()? {
            if stats {
                complain("no requests: the command did not run");
            }
            files.write_again(&earlier)?;
            return Ok(ExitCode::SUCCESS);
        }
        let capture;
        (capture, streams) = skipping.capture()?;
        running = Some((skipping, capture));
    }
    let profile = profile.begin()?;
    let Traced { report, said } = match traced(request, streams, running, quiet)? {
        Ended::Traced(traced) => *traced,
        Ended::Untraced(status) => return Ok(status),
    };
    let cost = statistics::lines(&report.statistics);
    if stats {
        cost.iter().for_each(complain);
    }
    // If it cannot be drawn, the trace is written all the same.
    let profiled = profile.map_or(Ok(()), |profile| profile.end(cost.join("\n")));
    let is_told = !files.paths().is_empty() || expected.is_some() || verify || said.is_some();
    if !is_told && !quiet {
        write_summary(&report, &base);
    }
    let contents = files.write(&report, &base, said.is_some())?;
    let is_as_expected = expected.is_none_or(|expected| told(&expected.compare(&report.touched), strict, quiet));
    let is_verified = report.verification.as_ref().is_none_or(|verification| verified::told(verification, quiet));
    let is_good = is_as_expected && is_verified;
    if let Some((skipping, said)) = said.filter(|_| is_good) {
        skipping.remember(&report, &said, &contents);
    }
    profiled?;
    Ok(if report.status.success() && !is_good { ExitCode::FAILURE } else { code(report.status) })
}

/// How a traced run ended.
enum Ended {
    /// With a report.
    Traced(Box<Traced>),
    /// Without: it was interrupted before it began, or could not be executed.
    Untraced(ExitCode),
}

/// What a traced run gave.
struct Traced {
    report: TraceReport,
    /// What the command printed, if it may be skipped the next time.
    said: Option<(Skipping, Captured)>,
}

/// Runs the command, and passes signals on to it.
fn traced(
    request: TraceRequest,
    streams: trace::Streams,
    running: Option<(Skipping, NewCapture)>,
    quiet: bool,
) -> anyhow::Result<Ended> {
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&has_ended);
    let events = Events::new(move |event| match event {
        TraceEvent::CommandEnded => ended.store(true, Ordering::Relaxed),
        // The shell sees this process, and continues both.
        TraceEvent::CommandStopped => drop(kill_process(getpid(), Signal::STOP)),
        TraceEvent::Waiting { .. } if quiet => {}
        event => complain(format_args!("{event}; Ctrl-C ends the trace without them")),
    });
    let mut signals = signals::catch()?;
    let handle = match trace::start_with(request, streams, events) {
        Err(TraceError::Interrupted(status)) => return Ok(Ended::Untraced(code(status))),
        handle => handle.map_err(inarch_jobs::JobError::from)?,
    };
    signals::pass_on_early(&mut signals, &handle);
    // A thread that began before would make the start slow.
    let running = running.map(|(skipping, capture)| capture.start().map(|capture| (skipping, capture)));
    let running = running.transpose().map_err(skip::no_streams)?;
    signals::pass_on(signals, &handle, has_ended);
    let report = match handle.wait() {
        Err(TraceError::NotExecuted { status, reason }) => {
            complain(reason);
            return Ok(Ended::Untraced(status.into()));
        }
        Err(TraceError::Interrupted(status)) => return Ok(Ended::Untraced(code(status))),
        report => report.map_err(inarch_jobs::JobError::from)?,
    };
    // All that the command printed comes before any line about it.
    let said = running.map(|(skipping, capture)| (skipping, capture.finish()));
    Ok(Ended::Traced(Box::new(Traced { report, said })))
}

/// Says what was not as expected. Returns whether nothing of it counts as a failure.
fn told(compared: &Compared, strict: bool, quiet: bool) -> bool {
    let Compared { undeclared, unused, directories } = compared;
    for path in undeclared {
        complain(format_args!("undeclared: {}", shown(path)));
    }
    for path in directories {
        let path = shown(path);
        complain(format_args!(
            "the list has {path}, which stands for the directory itself; {path}/ stands for all beneath it"
        ));
    }
    for path in unused.iter().filter(|_| strict || !quiet) {
        complain(format_args!("unused: {}", shown(path)));
    }
    undeclared.is_empty() && (unused.is_empty() || !strict)
}

/// Says on standard error what was touched.
fn write_summary(report: &TraceReport, base: &Path) {
    use trace::Use;
    let inputs: Vec<_> = report.touched.inputs().collect();
    let count = |one| inputs.iter().filter(|input| input.is(one)).count();
    complain(format_args!(
        "{} read, {} executed, {} listed, {} absent, {} touched in all",
        count(Use::Read),
        count(Use::Executed),
        count(Use::Listed),
        count(Use::Absent),
        inputs.len(),
    ));
    for output in report.touched.outputs() {
        let path = output.path.strip_prefix(base).unwrap_or(output.path);
        complain(format_args!("{} {}", output.change.name(), shown(path)));
    }
}

/// The command's status. If a signal ended it, that ends this process, too.
fn code(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // One core is enough, and it is the command's.
        let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(crate::EXIT_FAILED));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::EXIT_FAILED))
}
