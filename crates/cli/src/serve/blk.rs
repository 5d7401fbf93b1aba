//! `inarch serve blk`: serves a tree as a vhost-user-blk disk.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::serve::blk::{self, BlkRequest};

use super::{QemuMemory, TreeArguments, disk_until_stopped};
use crate::output::answer;

/// Options of `inarch serve blk`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  inarch serve blk ~/src --socket /tmp/src.sock &
  qemu-system-x86_64 ... \\
    $(inarch serve blk ~/src --socket /tmp/src.sock --print-qemu-args)

The server runs until SIGTERM or SIGINT; another machine may connect when the first has disconnected.")]
pub struct BlkArguments {
    /// The socket to listen on
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,

    #[command(flatten)]
    pub qemu: QemuMemory,

    /// Number of request queues
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: Option<u16>,

    /// End when the first machine disconnects
    #[arg(long)]
    pub once: bool,

    /// What to serve.
    #[command(flatten)]
    pub tree: TreeArguments,
}

/// Serves until it is stopped.
pub fn run(arguments: BlkArguments) -> anyhow::Result<ExitCode> {
    let measured = arguments.tree.measured.clone();
    let request = BlkRequest {
        tree: arguments.tree.served()?,
        socket: arguments.socket,
        queues: arguments.queues,
        once: arguments.once,
    };
    if arguments.qemu.print_qemu_args {
        answer(arguments.qemu.arguments(blk::qemu_arguments(&request)?))?;
    } else {
        disk_until_stopped(measured, |events| blk::start(request, events))?;
    }
    Ok(ExitCode::SUCCESS)
}
