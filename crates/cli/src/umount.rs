//! `inarch umount`: unmounts mounts of `inarch mount` and `inarch serve file`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use inarch_jobs::mount::{MountEvent, UnmountRequest, unmount};
use inarch_jobs::{Events, close_inherited};

use crate::output::{complain, try_all};

/// Options of `inarch umount`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch umount /mnt
  inarch umount --lazy /mnt ~/view   even if somebody uses them

Returns when the servers have ended: all data is written, and the next mount can use the same --overlay. Users other \
than root need fusermount3 (Debian's package fuse3).")]
pub struct UmountArguments {
    /// Mount point of 'inarch mount' or 'inarch serve file'
    #[arg(value_name = "DIR", required = true, add = crate::completions::mount_points())]
    pub points: Vec<PathBuf>,

    /// Detach a mount that is in use; programs keep their open files
    #[arg(short, long)]
    pub lazy: bool,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

/// Unmounts the mounts; one that stays does not stop the others.
pub fn run(arguments: UmountArguments) -> anyhow::Result<ExitCode> {
    let UmountArguments { points, lazy, quiet } = arguments;
    let events = Events::new(move |event: MountEvent| {
        if !quiet || event.is_fault() {
            complain(event);
        }
    });
    let request = UnmountRequest { points, lazy };
    let unmounted = unmount(&request, &events);
    // This process itself keeps nothing in use.
    std::env::set_current_dir("/").and_then(|()| close_inherited()).context("cannot leave this directory")?;
    try_all(unmounted)
}
