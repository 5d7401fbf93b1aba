//! `inarch discard`: takes a kept run away.

use std::process::ExitCode;

use clap::Args;
use inarch_jobs::kept;

/// Options of `inarch discard`.
#[derive(Args, Debug)]
pub struct DiscardArguments {
    /// The kept run
    pub name: String,

    /// Discard it even if an apply has begun and not ended
    #[arg(long)]
    pub force: bool,
}

/// Takes the run away.
pub fn run(arguments: DiscardArguments) -> anyhow::Result<ExitCode> {
    kept::discard(&arguments.name, arguments.force)?;
    Ok(ExitCode::SUCCESS)
}
