//! `inarch umount`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::mount::{UnmountRequest, unmount};

use crate::output::try_all;

/// Options of `inarch umount`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch umount /mnt
  inarch umount --lazy /mnt ~/view   even if somebody uses them

It returns when the servers have ended: all is written, and the next mount can have the same --overlay. As a user it takes \
fusermount3 (Debian's package fuse3).")]
pub struct UmountArguments {
    /// Where something is mounted that 'inarch mount' or 'inarch serve file' shows
    #[arg(value_name = "DIR", required = true)]
    pub points: Vec<PathBuf>,

    /// Detach a mount that is in use; programs keep the files that they have open
    #[arg(short, long)]
    pub lazy: bool,

    /// Say nothing but what went wrong
    #[arg(short, long)]
    pub quiet: bool,
}

/// Takes them away; one that stays does not keep the others.
pub fn run(arguments: UmountArguments) -> anyhow::Result<ExitCode> {
    let UmountArguments { points, lazy, quiet } = arguments;
    try_all(unmount(&UnmountRequest { points, lazy, quiet }))
}
