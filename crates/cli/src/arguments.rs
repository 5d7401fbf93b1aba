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
    /// Run a command in a virtual machine over this machine's own files; every write is thrown away
    Run(Box<crate::run::RunArguments>),
    /// Say what a device of a tree would be, and how long it takes until it answers
    Plan(crate::plan::PlanArguments),
    /// Write a tree out as a file system or an archive
    Image(Box<crate::image::ImageArguments>),
    /// Serve a tree to a virtual machine that you start yourself
    Serve(crate::serve::ServeArguments),
    /// Mount a tree on this machine
    Mount(crate::mount::MountArguments),
    /// Say what the guest of a kept run changed
    Diff(crate::diff::DiffArguments),
    /// Bring what the guest of a kept run changed into this machine's trees
    Apply(crate::apply::ApplyArguments),
    /// Take a kept run away, with all that its guest wrote
    Discard(crate::discard::DiscardArguments),
    /// List the kept runs
    Runs(crate::runs::RunsArguments),
    /// Say what this machine can do, and why not
    Doctor(crate::doctor::DoctorArguments),
}
