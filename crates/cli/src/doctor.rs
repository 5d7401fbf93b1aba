//! `inarch doctor`: reports what this machine can do, and what it lacks.

use std::io::IsTerminal;
use std::process::ExitCode;

use crate::output::{answer, complain};
use clap::Args;
use inarch_jobs::doctor::{self, Check, State};

/// Options of `inarch doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch doctor
  inarch doctor --json | jq '.[] | select(.state == \"missing\")'

Exit status: 0 if 'inarch run' works here, else 1.")]
pub struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Checks everything; the status is 0 if `inarch run` works here, else 1.
pub fn run(arguments: DoctorArguments) -> anyhow::Result<ExitCode> {
    let checks = doctor::examine(complain);
    let colour = std::io::stdout().is_terminal();
    let lines = || checks.iter().map(|check| line(check, colour)).collect::<String>();
    answer(if arguments.json { serde_json::to_string_pretty(&checks)? + "\n" } else { lines() })?;
    let works = checks.iter().all(|check| check.state != State::Missing);
    Ok(ExitCode::from(u8::from(!works)))
}

fn line(check: &Check, colour: bool) -> String {
    let word = check.state.word();
    let code = match check.state {
        State::Good => "32",
        State::Degraded | State::Absent => "33",
        State::Missing => "31",
    };
    let pad = " ".repeat(8 - word.len());
    let word = if colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() };
    let mut text = format!("{word}{pad}{:<12} {}", check.name, check.finding);
    if let Some(remedy) = &check.remedy {
        text += &format!("\n{:21}-> {remedy}", "");
    }
    text + "\n"
}
