//! The `inarch` command: parses its arguments, calls a job, prints what came of it.

#![forbid(unsafe_code)]

mod arguments;
mod doctor;
mod plan;
mod run;
mod serve;
mod size;
mod source;
mod tree_option;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command};
use inarch_jobs::JobError;

/// Inarch or the VM failed; the command itself gave no status.
const EXIT_FAILED: u8 = 125;

fn main() -> ExitCode {
    // The child that removes a server's socket; no command of its own.
    let words: Vec<_> = std::env::args_os().collect();
    if let [_, word, socket] = &words[..]
        && word == inarch_jobs::serve::GUARD_ARGUMENT
    {
        inarch_jobs::serve::guard_socket(std::path::Path::new(socket));
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers; anything else is a failure of ours, never a status of the command's.
            let code = if error.use_stderr() { EXIT_FAILED } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let result = match arguments.command {
        Command::Run(arguments) => run::run(*arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("inarch: {error:#}");
        match error.downcast_ref() {
            Some(JobError::Command { status, .. }) => ExitCode::from(*status),
            _ => ExitCode::from(EXIT_FAILED),
        }
    })
}
