//! `inarch run`: runs a command in a virtual machine.

mod arguments;
mod debian;
mod keep;
mod project_file;
mod request;
mod statistics;
mod told;

use std::process::ExitCode;

use inarch_jobs::run::{self, Outcome, RunRequest};
use inarch_jobs::trace::RecordLevel;
use inarch_jobs::{Events, JobError, WholeFile};

pub use arguments::{RunArguments, ViaWord};

use crate::duration::lasting;
use crate::output::{answer, complain};
use crate::say::wait_for_no_reader;
use crate::{timings, trace};
use told::{ReportFile, Telling};

/// The status of a command that ran out of time.
const TIMED_OUT: u8 = 124;

/// Runs the command; the status is the command's own.
pub fn run(mut arguments: RunArguments) -> anyhow::Result<ExitCode> {
    let dry_run = arguments.dry_run;
    let telling = Telling::new(arguments.quiet, arguments.verbose);
    let report_file = arguments.report.take();
    let trace_file = arguments.trace.take();
    let (stats, wanted) = (arguments.stats, arguments.timings.take());
    let profile = std::mem::take(&mut arguments.profile);
    let keep = arguments.keep.clone().map(|name| keep::keep(name, &mut arguments)).transpose()?;
    let level = if arguments.by_process { RecordLevel::Process } else { RecordLevel::Command };
    let trace = trace_file.is_some().then_some(level);
    arguments.stats |= profile.is_given();
    let request = RunRequest { keep, trace, ..request_of(arguments, &[])? };
    if dry_run {
        let events = Events::new(move |event| telling.tell(event));
        answer(run::dry_run(&request, &events)? + "\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let report_file = report_file.as_deref().map(ReportFile::create).transpose()?;
    // What cannot be written is known before the guest starts.
    let trace_file = trace_file.as_deref().map(WholeFile::create).transpose()?;
    timings::check(&wanted)?;
    let profile = profile.begin()?;
    if request.timeout.is_some() {
        wait_for_no_reader();
    }
    let (timeout, teller) = (request.timeout, telling.clone());
    let mut report = run::start(request, Events::new(move |event| teller.tell(event)))?.wait();
    if let (Ok(Outcome::TimedOut), Some(limit)) = (&report.result, timeout) {
        complain(format_args!("the command ran longer than {} and was ended (status {TIMED_OUT})", lasting(limit)));
    }
    telling.tell_end(&report);
    let written = report_file.map_or(Ok(()), |file| file.write(&report));
    let traced =
        report.trace.take().zip(trace_file).map_or(Ok(()), |(trace, file)| trace::write_lines(&trace, false, file));
    if stats {
        statistics::tell(&report);
    }
    let drawn = timings::tell(&wanted, &report.steps());
    let profiled = profile.map_or(Ok(()), |profile| profile.end(statistics::of_trees(&report)));
    let status = report.status();
    report.result?;
    written?;
    traced?;
    drawn?;
    profiled?;
    Ok(ExitCode::from(status.ok_or(JobError::GuestDied)?))
}

/// The request of these options and those of the project, without what happens at the run's end. The project does not set the options
/// with the ids `own`.
pub fn request_of(mut arguments: RunArguments, own: &[&str]) -> anyhow::Result<RunRequest> {
    let given = project_file::given();
    if !arguments.no_project
        && let Some(taken) = project_file::apply(&mut arguments, &|id: &str| own.contains(&id) || given(id))?
    {
        Telling::new(arguments.quiet, arguments.verbose).tell_project(&taken);
    }
    debian::prepare(&mut arguments)?;
    request::request(arguments)
}
