//! `inarch serve file`: serves a tree as a raw image file in a FUSE mount.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::serve::file::{self, FileRequest};

use super::{TreeArguments, disk_until_stopped};
use crate::output::answer;

/// Options of `inarch serve file`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  inarch serve file ~/src /tmp/src.raw &
  cloud-hypervisor ... --disk path=/tmp/src.raw

The image exists until SIGTERM, SIGINT or umount. Users other than root need fusermount3 (Debian's package fuse3).")]
pub struct FileArguments {
    /// What to serve.
    #[command(flatten)]
    pub tree: TreeArguments,

    /// A new or empty file, which becomes the image, or an empty directory, in which the image is disk.raw
    #[arg(value_name = "FILE|DIR", help_heading = None::<&str>)]
    pub target: PathBuf,

    /// Print the arguments for QEMU, and exit
    #[arg(long, help_heading = None::<&str>)]
    pub print_qemu_args: bool,
}

/// Serves until it is stopped.
pub fn run(arguments: FileArguments) -> anyhow::Result<ExitCode> {
    let measured = arguments.tree.measured.clone();
    let request = FileRequest { tree: arguments.tree.served()?, target: arguments.target };
    if arguments.print_qemu_args {
        answer(file::qemu_arguments(&request)? + "\n")?;
    } else {
        disk_until_stopped(measured, |events| file::start(request, events))?;
    }
    Ok(ExitCode::SUCCESS)
}
