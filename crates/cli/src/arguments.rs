//! The command line: the list of commands.

use clap::{Parser, Subcommand};

/// Gives virtual machines file trees without copying them.
#[derive(Parser, Debug)]
#[command(name = "inarch", version, max_term_width = 110, disable_help_subcommand = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, one page each under docs/.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Say what a device of a tree would be, and how long it takes until it answers
    Plan(crate::plan::PlanArguments),
    /// Serve a tree to a virtual machine that you start yourself
    Serve(crate::serve::ServeArguments),
}
