//! `inarch apply`: brings a kept run's changes into the host's trees.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use inarch_jobs::kept::{self, ApplyReport, ApplyRequest, Done};

use crate::output::{answer, complain};

/// Options of `inarch apply`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch apply try --dry-run    what would be done, after inarch run --keep try
  inarch apply try /usr/local   only what is there
  inarch apply try              all of it; then inarch discard try

Exit status: 0 everything was applied; 1 something was left alone or failed, and is named; 125 nothing was done.")]
pub struct ApplyArguments {
    /// The kept run
    #[arg(add = crate::completions::kept_runs())]
    pub name: String,

    /// Only these paths of the guest and what is below them; everything if none is given
    pub paths: Vec<PathBuf>,

    /// Apply even if the host's file changed since the run began; its changes are lost
    #[arg(long)]
    pub force: bool,

    /// Change nothing; list what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print only what was left alone or failed
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

/// Applies the changes and reports what was done.
pub fn run(arguments: ApplyArguments) -> anyhow::Result<ExitCode> {
    let here = std::env::current_dir().context("there is no current directory; go to another")?;
    let request = ApplyRequest {
        paths: arguments.paths.iter().map(|path| cleaned(&here.join(path))).collect(),
        name: arguments.name.clone(),
        force: arguments.force,
        dry_run: arguments.dry_run,
    };
    let (report, name) = (kept::apply(&request)?, arguments.name);
    if arguments.json {
        answer(serde_json::to_string_pretty(&report)? + "\n")?;
    } else if !arguments.quiet {
        answer(text(&report, arguments.dry_run))?;
    }
    if !arguments.json {
        report.notes.iter().for_each(complain);
        for (path, reason) in &report.conflicts {
            complain(format_args!("{path}: left alone: {reason}"));
        }
        // Neither command helps with what --force leaves alone, or what is lost.
        if report.conflicts.len() as u64 > report.beyond_force && !arguments.quiet && !arguments.force {
            complain(format_args!(
                "what was left alone is as this machine has it: inarch diff {name} --show PATH shows the guest's version, inarch apply \
                 --force {name} PATH brings it here"
            ));
        }
        for (path, reason) in &report.failures {
            complain(format_args!("{path}: {reason}"));
        }
        report.lost.iter().for_each(complain);
    }
    Ok(ExitCode::from(u8::from(!report.is_whole())))
}

fn text(report: &ApplyReport, dry_run: bool) -> String {
    let mut text = String::new();
    if dry_run {
        let from = |done: &Done| done.from.as_ref().map_or(String::new(), |from| format!("{from} -> "));
        text.extend(report.done.iter().map(|done| format!("{:<10}  {}{}\n", done.what, from(done), done.path)));
        return text;
    }
    let count = |what: &str| report.done.iter().filter(|done| done.what == what).count();
    let words = [
        ("added", "add"),
        ("changed", "change"),
        ("removed", "remove"),
        ("renamed", "rename"),
        ("with other attributes", "attributes"),
    ];
    let counts: Vec<String> = words
        .into_iter()
        .map(|(word, what)| (count(what), word))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    text += &match counts.is_empty() {
        true if report.is_whole() => "nothing to do\n".to_owned(),
        true => "nothing applied\n".to_owned(),
        false => counts.join(", ") + "\n",
    };
    text
}

/// A path without `.`, `..` and double slashes, without looking at files.
pub fn cleaned(path: &std::path::Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            std::path::Component::ParentDir => drop(clean.pop()),
            std::path::Component::CurDir => {}
            other => clean.push(other),
        }
    }
    clean
}
