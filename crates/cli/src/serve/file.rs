//! `inarch serve file`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::serve::file::{self, FileRequest};

use super::{TreeArguments, until_stopped};
use crate::output::answer;

/// Options of `inarch serve file`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  inarch serve file ~/src /tmp/src.raw &
  cloud-hypervisor ... --disk path=/tmp/src.raw

The image is there until SIGTERM, SIGINT or umount; as a user it takes fusermount3 (Debian's package fuse3).")]
pub struct FileArguments {
    /// What is offered.
    #[command(flatten)]
    pub tree: TreeArguments,

    /// Where: a new or empty file, which becomes the image, or an empty directory, in which it is disk.raw
    #[arg(value_name = "FILE|DIR", help_heading = None::<&str>)]
    pub target: PathBuf,

    /// Print the arguments that QEMU needs, and end
    #[arg(long, help_heading = None::<&str>)]
    pub print_qemu_args: bool,
}

/// Serves until told to stop.
pub fn run(arguments: FileArguments) -> anyhow::Result<ExitCode> {
    let request = FileRequest { tree: arguments.tree.served()?, target: arguments.target };
    if arguments.print_qemu_args {
        answer(file::qemu_arguments(&request)? + "\n")?;
    } else {
        until_stopped(|events| file::start(request, events))?;
    }
    Ok(ExitCode::SUCCESS)
}
