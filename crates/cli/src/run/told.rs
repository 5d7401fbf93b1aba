//! Decides which events of a run are shown to the user, and when.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use inarch_jobs::run::{self, Outcome, RunEvent, RunNote, RunReport};
use inarch_jobs::{DiskNote, JobError, create_named, shown};
use serde_json::json;

use super::project_file::Taken;
use crate::output::complain;
use crate::say::limited;

/// Lines that a guest can cause without an end, and that are shown at once, at most. A guest that lacks something has up to a dozen to say.
const FAULTS: u32 = 40;

/// How much of a run is shown.
#[derive(Clone)]
pub struct Telling {
    /// Shows an event, unless there were many.
    show_few: Arc<dyn Fn(RunEvent) + Send + Sync>,
    quiet: bool,
    verbose: bool,
    /// Whether a person watches: in a log, a program's output should stand alone.
    is_watched: bool,
    /// What went wrong in the trees and for the guest's agent, and was not shown yet.
    untold: Arc<Mutex<Vec<String>>>,
}

impl Telling {
    /// `quiet`: only what went wrong. `verbose`: also what is as usual.
    pub fn new(quiet: bool, verbose: bool) -> Telling {
        let is_watched = verbose || std::io::stderr().is_terminal();
        Telling { show_few: Arc::new(limited(FAULTS)), quiet, verbose, is_watched, untold: Arc::default() }
    }

    /// Tells what a project's file gives the guest, and with `verbose` that it was read.
    pub fn tell_project(&self, taken: &Taken) {
        let path = shown(&taken.path);
        match &taken.gives[..] {
            [] if self.verbose => complain(format_args!("{path}: read")),
            [] => {}
            _ if self.quiet => {}
            gives => complain(format_args!("{path}: gives the guest {}", gives.join(", "))),
        }
    }

    /// Tells an event, or not.
    pub fn tell(&self, event: RunEvent) {
        let is_told = match &event {
            RunEvent::Fault(_) | RunEvent::Kept(_) => true,
            _ if self.quiet => false,
            RunEvent::Way { is_usual, .. } => self.is_watched || !is_usual,
            RunEvent::Image { .. } => self.verbose,
            RunEvent::Cache(usage) => self.is_watched || (usage.lost > 0 && usage.generation.is_none()),
            RunEvent::Disk { .. } => self.is_watched,
            RunEvent::Uml => self.verbose,
            RunEvent::Acceleration { fall_back, .. } => {
                if fall_back.is_some() && !self.verbose && run::fall_back_is_news() {
                    complain(
                        "the guest runs under TCG, which is slower than KVM (inarch doctor says why, and what helps; this is said once)",
                    );
                }
                self.verbose
            }
            RunEvent::Waits { .. } => true,
            RunEvent::Tree(_) | RunEvent::Unreadable { .. } | RunEvent::StartedAgain(_) | RunEvent::Guest(_) => true,
        };
        match event {
            RunEvent::Fault(_) | RunEvent::Guest(_) if is_told => (self.show_few)(event),
            _ if is_told => complain(event),
            RunEvent::Tree(_) | RunEvent::Unreadable { .. } | RunEvent::Guest(_) => {
                let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
                if untold.len() < FAULTS as usize {
                    untold.push(event.to_string());
                }
            }
            _ => {}
        }
    }

    /// Shows what the user should know at the end. The reason for a failure is always shown.
    pub fn tell_end(&self, report: &RunReport) {
        let is_success = report.status() == Some(0);
        if !is_success {
            std::mem::take(&mut *self.untold.lock().unwrap_or_else(PoisonError::into_inner)).iter().for_each(complain);
        }
        if !self.quiet || !is_success {
            report.notes.iter().for_each(complain);
        }
        if !self.quiet {
            report.hints.iter().for_each(complain);
        }
    }
}

/// The file that gets the report of a run as JSON.
pub struct ReportFile {
    path: PathBuf,
    file: File,
}

impl ReportFile {
    /// Makes the file: where that fails, nothing is run.
    pub fn create(path: &Path) -> anyhow::Result<ReportFile> {
        let file = create_named(path).map_err(|error| cannot_write(path, &error))?;
        Ok(ReportFile { path: path.to_owned(), file })
    }

    /// Writes the report.
    pub fn write(mut self, report: &RunReport) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(&as_json(report))? + "\n";
        self.file.write_all(text.as_bytes()).map_err(|error| cannot_write(&self.path, &error))
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> anyhow::Error {
    anyhow::anyhow!("--report {}: cannot write it: {error}", shown(path))
}

/// The files of this machine that changed, and that the guest could not read any more.
fn changed(report: &RunReport) -> Vec<serde_json::Value> {
    let changed = report.notes.iter().filter_map(|note| match note {
        RunNote::Disk(DiskNote::Changed { path, reason }) => {
            Some(json!({ "path": shown(path), "reason": reason.to_string() }))
        }
        _ => None,
    });
    changed.collect()
}

fn as_json(report: &RunReport) -> serde_json::Value {
    let (ended, error) = match &report.result {
        Ok(Outcome::Exited(_)) => ("exited", None),
        Ok(Outcome::Signaled(_)) => ("signaled", None),
        Ok(Outcome::TimedOut) => ("timed out", None),
        Err(error @ JobError::Command { .. }) => ("not started", Some(error.to_string())),
        Ok(Outcome::Failed { message, .. }) => ("not started", Some(message.clone())),
        Ok(Outcome::GuestDied) => ("failed", Some(JobError::GuestDied.to_string())),
        Err(error) => ("failed", Some(error.to_string())),
    };
    json!({
        "ended": ended,
        "status": report.status(),
        "error": error,
        "seconds": report.phases,
        "moments": report.moments,
        "cpu": report.cpu,
        "rest": report.rest,
        "machine_cpu": report.machine_cpu,
        "trees": report.trees,
        "caches": report.caches,
        "changed": changed(report),
        "notes": report.notes.iter().map(RunNote::to_string).collect::<Vec<_>>(),
    })
}
