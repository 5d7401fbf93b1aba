//! `inarch run`: runs a command in a virtual machine.

mod arguments;
mod keep;
mod request;

use std::process::ExitCode;

use inarch_jobs::run::{self, RunRequest};

pub use arguments::RunArguments;

use crate::output::answer;

/// Runs the command; the status is the command's own.
pub fn run(mut arguments: RunArguments) -> anyhow::Result<ExitCode> {
    let dry_run = arguments.dry_run;
    let keep = arguments.keep.clone().map(|name| keep::keep(name, &mut arguments)).transpose()?;
    let request = RunRequest { keep, ..request::request(arguments)? };
    if dry_run {
        answer(run::dry_run(&request)? + "\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(run::run(&request)?))
}
