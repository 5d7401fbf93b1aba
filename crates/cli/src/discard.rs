//! `inarch discard`: deletes kept runs.

use std::process::ExitCode;

use clap::Args;
use inarch_jobs::kept;

use crate::output::{answer, try_all};

/// Options of `inarch discard`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch discard try         delete the kept run 'try'
  inarch rm -f try another   two, even if an apply was interrupted")]
pub struct DiscardArguments {
    /// The kept runs
    #[arg(value_name = "NAME", required = true, add = crate::completions::kept_runs())]
    pub names: Vec<String>,

    /// Discard runs even if an apply was interrupted
    #[arg(short = 'f', long)]
    pub force: bool,

    /// Print errors only
    #[arg(short = 'q', long)]
    pub quiet: bool,
}

/// Deletes the runs; one that cannot be deleted does not stop the others.
pub fn run(arguments: DiscardArguments) -> anyhow::Result<ExitCode> {
    let mut done = String::new();
    let discard = |name: &String| {
        kept::discard(name, arguments.force)?;
        done += &format!("discarded {name}\n");
        Ok::<_, kept::KeptError>(())
    };
    let status = try_all(arguments.names.iter().map(discard));
    if !arguments.quiet {
        answer(done)?;
    }
    status
}
