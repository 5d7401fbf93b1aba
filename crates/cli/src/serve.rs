//! `inarch serve`: a tree for a virtual machine that someone else starts.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use inarch_jobs::serve::{self, ServeRequest, Writes};

use crate::output::answer;
use crate::source::SourceArguments;

/// Options of `inarch serve`.
#[derive(Args, Debug)]
pub struct ServeArguments {
    /// How the tree is offered.
    #[command(subcommand)]
    pub offering: Offering,
}

/// The ways to serve.
#[derive(Subcommand, Debug)]
pub enum Offering {
    /// As a vhost-user-blk disk with an ext4 file system
    Blk(BlkArguments),
}

/// Options of `inarch serve blk`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  inarch serve blk ~/src --socket /tmp/src.sock &
  qemu-system-x86_64 ... $(inarch serve blk ~/src --socket /tmp/src.sock --print-qemu-args)

The server goes on until SIGTERM or SIGINT; a second machine may connect when the first has gone.")]
pub struct BlkArguments {
    /// The directory
    pub source: PathBuf,

    /// The socket to listen on
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,

    /// Print the arguments that QEMU needs, and end
    #[arg(long)]
    pub print_qemu_args: bool,

    /// Refuse writes
    #[arg(long, conflicts_with = "overlay")]
    pub read_only: bool,

    /// Keep the guest's writes in this file, for the next time; thrown away where not given
    #[arg(long, value_name = "FILE")]
    pub overlay: Option<PathBuf>,

    /// Where thrown-away writes are kept meanwhile
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub overlay_dir: PathBuf,

    /// Number of request queues
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: Option<u16>,

    /// End when the first machine disconnects
    #[arg(long)]
    pub once: bool,

    /// What is taken.
    #[command(flatten)]
    pub filters: SourceArguments,
}

/// Serves until told to stop.
pub fn run(arguments: ServeArguments) -> anyhow::Result<ExitCode> {
    let Offering::Blk(arguments) = arguments.offering;
    let writes = match (arguments.read_only, arguments.overlay) {
        (true, _) => Writes::Refused,
        (false, Some(file)) => Writes::Kept(file),
        (false, None) => Writes::ThrownAway(arguments.overlay_dir),
    };
    let request = ServeRequest {
        source: arguments.source,
        scan: arguments.filters.scan_options(&[])?,
        socket: arguments.socket,
        writes,
        queues: arguments.queues,
        once: arguments.once,
    };
    if arguments.print_qemu_args {
        answer(serve::qemu_arguments(&request)? + "\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    serve::serve(&request)?;
    Ok(ExitCode::SUCCESS)
}
