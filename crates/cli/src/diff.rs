//! `inarch diff`: shows what the guest of a kept run changed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use inarch_jobs::kept::{self, FileStat, RunDiff};
use inarch_jobs::{ChangeReport, shown};

use crate::apply::cleaned;
use crate::output::{answer, answer_with, complain};

/// Options of `inarch diff`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch diff try                   after inarch run --keep try make install
  inarch diff try /etc --patch      what changed within files there
  inarch diff try -p | git -C / apply
  inarch diff try --show /etc/fstab

A line for each path: A added, M changed, D deleted, R renamed, P only attributes (permissions, owner, time, \
extended attributes). Of a renamed directory only the other changes in it are listed.")]
pub struct DiffArguments {
    /// The kept run
    #[arg(add = crate::completions::kept_runs())]
    pub name: String,

    /// Only these paths of the guest and what is below them; everything if none is given
    #[arg(conflicts_with = "show")]
    pub paths: Vec<PathBuf>,

    /// Print JSON
    #[arg(long, conflicts_with_all = ["stat", "patch"])]
    pub json: bool,

    /// Count the lines changed in each file, and in all
    #[arg(long, conflicts_with = "patch")]
    pub stat: bool,

    /// Print a patch for git apply; patch(1) can apply its text files
    #[arg(short = 'p', long)]
    pub patch: bool,

    /// Write the guest's version of this file to standard output, even if it is a conflict
    #[arg(long, value_name = "PATH", conflicts_with_all = ["json", "stat", "patch"])]
    pub show: Option<PathBuf>,
}

/// Prints the changes; the status is 0 whether or not there are any.
pub fn run(arguments: DiffArguments) -> anyhow::Result<ExitCode> {
    let here = std::env::current_dir().context("there is no current directory; go to another")?;
    if let Some(path) = &arguments.show {
        kept::show(&arguments.name, &cleaned(&here.join(path)), &mut std::io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    }
    let paths: Vec<PathBuf> = arguments.paths.iter().map(|path| cleaned(&here.join(path))).collect();
    let diff = kept::diff(&arguments.name)?.only(paths)?;
    diff.unfinished().iter().chain(&diff.notes()).chain(&diff.conflicts()).for_each(complain);
    diff.left_out().iter().for_each(|(tree, reason)| complain(format_args!("{tree}: {reason}")));
    if arguments.patch {
        answer_with(|out| diff.write_patch(out))?;
    } else if arguments.stat {
        answer(stat(&diff))?;
    } else if arguments.json {
        answer(serde_json::to_string_pretty(&diff.changes())? + "\n")?;
    } else {
        answer(diff.changes().iter().map(line).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One line for each file whose content changed, and the totals.
fn stat(diff: &RunDiff) -> String {
    let files = diff.stat();
    let shown_path = |file: &FileStat| shown(Path::new(&file.path));
    let width = files.iter().map(|file| shown_path(file).chars().count()).max().unwrap_or(0);
    let mut text: String = files
        .iter()
        .map(|file| {
            let how = match (file.added, file.removed) {
                (Some(added), Some(removed)) => format!("+{added} -{removed}"),
                _ => format!("{} -> {} bytes, no text", file.old_size, file.size),
            };
            format!("{:<width$} | {how}\n", shown_path(file))
        })
        .collect();
    let count = |kind: &str| diff.changes().iter().filter(|change| change.kind == kind).count();
    let kinds = ["added", "changed", "deleted", "renamed", "attributes"];
    let counts: Vec<String> = kinds
        .iter()
        .map(|kind| (count(kind), kind))
        .filter(|(n, _)| *n > 0)
        .map(|(n, kind)| format!("{n} {kind}"))
        .collect();
    let lines = |of: fn(&FileStat) -> Option<u64>| files.iter().filter_map(of).sum::<u64>();
    if !counts.is_empty() {
        let (added, removed) = (lines(|file| file.added), lines(|file| file.removed));
        text += &format!("{}; lines: +{added} -{removed}\n", counts.join(", "));
    }
    text
}

/// A change as a line: its letter, its path, and what differs.
pub fn line(change: &ChangeReport) -> String {
    let text = |path: &str| shown(Path::new(path));
    let letter = match change.kind {
        "added" => 'A',
        "deleted" => 'D',
        "renamed" => 'R',
        "attributes" => 'P',
        _ => 'M',
    };
    let slash = if change.file_type == "directory" && !change.path.ends_with('/') { "/" } else { "" };
    let path = format!("{}{slash}", text(&change.path));
    let mut line = match (&change.from, change.kind) {
        (Some(from), "renamed") => format!("{letter}  {}{slash} -> {path}", text(from)),
        _ => format!("{letter}  {path}"),
    };
    if let Some(link) = &change.link_to {
        line += &format!("  (link to {})", text(link));
    }
    let details = details(change);
    if change.kind != "added" && !details.is_empty() {
        line += &format!("  ({})", details.join(", "));
    }
    line + "\n"
}

fn details(change: &ChangeReport) -> Vec<String> {
    let mut details = Vec::new();
    if change.kind == "renamed" && change.content == Some(true) {
        details.push("changed".to_owned());
    }
    if let Some(was) = change.old_type {
        details.push(format!("{was} -> {}", change.file_type));
    }
    if let Some([was, is]) = &change.mode {
        details.push(format!("mode {was} -> {is}"));
    }
    if let Some([was, is]) = &change.owner {
        details.push(format!("owner {was} -> {is}"));
    }
    if change.xattrs {
        details.push("extended attributes".to_owned());
    }
    if change.mtime && change.kind == "attributes" {
        details.push("time".to_owned());
    }
    details
}
