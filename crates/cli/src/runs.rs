//! `inarch runs`: lists kept runs.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::kept::{self, RunReport, RunState};

use crate::columns::columns;
use crate::duration::ago;
use crate::output::{answer, complain};
use crate::size::show;
use inarch_jobs::shown;

/// Options of `inarch runs`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch runs
  inarch ps --json | jq '.[].name'")]
pub struct RunsArguments {
    /// No effect: all runs are shown anyway. Users of docker type `ps -a`
    #[arg(short, long, hide = true)]
    pub all: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Lists the runs.
pub fn run(arguments: RunsArguments) -> anyhow::Result<ExitCode> {
    let runs = kept::runs()?;
    if runs.is_empty() && !arguments.json {
        complain("no runs are kept; inarch run --keep NAME keeps one");
    }
    answer(if arguments.json { serde_json::to_string_pretty(&runs)? + "\n" } else { table(&runs) })?;
    Ok(ExitCode::SUCCESS)
}

fn table(runs: &[RunReport]) -> String {
    if runs.is_empty() {
        return String::new();
    }
    let heads = ["NAME", "STATE", "USED", "HOLDS", "SIZE", "STATUS", "COMMAND", "TREES"].map(str::to_owned).to_vec();
    columns(&[heads].into_iter().chain(runs.iter().map(row)).collect::<Vec<_>>(), &[])
}

fn row(run: &RunReport) -> Vec<String> {
    let state = match run.state {
        RunState::Clean => "clean",
        RunState::InUse => "in use",
        RunState::ApplyUnfinished => "apply unfinished",
        RunState::Applied => "applied",
    };
    let status = match (run.status, run.state) {
        (Some(status), _) => status.to_string(),
        (None, RunState::InUse) => "-".to_owned(),
        (None, _) => "killed".to_owned(),
    };
    let trees: Vec<String> = run
        .trees
        .iter()
        .map(|tree| {
            let place = if tree.source == tree.destination { "" } else { &format!(":{}", tree.destination) };
            format!("{}{place}{}", tree.source, if tree.read_only { ",ro" } else { "" })
        })
        .collect();
    let text = |text: &str| shown(Path::new(text));
    vec![
        run.name.clone(),
        state.to_owned(),
        ago(run.used),
        holds(run),
        show(run.overlay_bytes),
        status,
        shortened(&text(&run.command.join(" "))),
        text(&trees.join(" ")),
    ]
}

/// What a run has changed. The changes of a command that was killed, or still runs, are counted by the next use.
fn holds(run: &RunReport) -> String {
    let changed = (run.changed > 0).then(|| format!("{} changed", run.changed));
    let deleted = (run.deleted > 0).then(|| format!("{} deleted", run.deleted));
    let more = run.is_more.then(|| "more not counted yet".to_owned());
    let left = (!run.left.is_empty()).then(|| format!("{} left beside their places", run.left.len()));
    match [changed, deleted, left, more].into_iter().flatten().collect::<Vec<_>>() {
        parts if parts.is_empty() => "nothing".to_owned(),
        parts if parts == ["more not counted yet"] => "not counted yet".to_owned(),
        parts => parts.join(", "),
    }
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 40;
    if text.chars().count() <= LONGEST {
        text.to_owned()
    } else {
        text.chars().take(LONGEST - 3).collect::<String>() + "..."
    }
}
