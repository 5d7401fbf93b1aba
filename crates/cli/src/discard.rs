//! `inarch discard`: takes a kept run away.

use std::process::ExitCode;

use clap::Args;
use inarch_jobs::kept;

use crate::output::try_all;

/// Options of `inarch discard`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch discard try         take away the kept run 'try'
  inarch rm -f try another   two, even if an apply was interrupted")]
pub struct DiscardArguments {
    /// The kept runs
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,

    /// Discard them even if an apply has begun and not ended
    #[arg(short = 'f', long)]
    pub force: bool,
}

/// Takes the runs away; one that cannot be discarded does not keep the others.
pub fn run(arguments: DiscardArguments) -> anyhow::Result<ExitCode> {
    try_all(arguments.names.iter().map(|name| kept::discard(name, arguments.force)))
}
