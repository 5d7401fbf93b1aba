//! `inarch disk fsck` and `resize`: check the file systems of an image, and make volumes longer or shorter.

use std::process::ExitCode;

use clap::Args;
use inarch_jobs::Events;
use inarch_jobs::appliance::{self, Access, Checked, NewSize, Resized};

use super::machine::{WrittenArguments, tell};
use crate::output::answer;
use crate::size;
use crate::timings;

/// The statuses of fsck(8).
const CORRECTED: u8 = 1;
const ERRORS_LEFT: u8 = 4;

/// Options of `inarch disk fsck`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk fsck guest.img
  inarch disk fsck --repair guest.qcow2:2

This machine's own tools (e2fsck, xfs_repair, ...) check the file systems, in a guest: all of the image, or that of the volume that is named. Without \
--repair nothing is written to the image.

Exit status: 0 no errors; 1 errors were corrected; 4 there are errors; 125 it could not be checked.")]
pub struct FsckArguments {
    #[command(flatten)]
    image: WrittenArguments,

    /// Correct what is wrong
    #[arg(long)]
    repair: bool,
}

/// `inarch disk fsck`.
pub fn fsck(arguments: &FsckArguments) -> anyhow::Result<ExitCode> {
    let FsckArguments { image, repair } = arguments;
    let (target, paths) = image.target(&[])?;
    anyhow::ensure!(paths.is_empty(), "a file system is checked whole; name a volume without :/PATH");
    let mut appliance = image.machine.open(&target, if *repair { Access::Repair } else { Access::Check })?;
    let Checked { had_errors, has_errors } = appliance.check(*repair)?;
    image.machine.close(appliance)?;
    Ok(match (has_errors, had_errors) {
        (true, _) => ExitCode::from(ERRORS_LEFT),
        (false, true) => ExitCode::from(CORRECTED),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// Options of `inarch disk resize`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk resize guest.img:2 20G
  inarch disk resize guest.qcow2 +10G
  inarch disk resize guest.img:LABEL=root max

Partition and file system become that long, and the image as well if it is too short. ext2, ext3, ext4, Btrfs and NTFS grow and shrink, XFS grows.")]
pub struct ResizeArguments {
    #[command(flatten)]
    image: WrittenArguments,

    /// The new size (20G), the difference (+5G, -5G), or max for all of the room that there is
    #[arg(allow_hyphen_values = true, value_parser = new_size)]
    size: NewSize,
}

fn new_size(text: &str) -> Result<NewSize, String> {
    if text == "max" {
        return Ok(NewSize::Most);
    }
    if let Some(more) = text.strip_prefix('+') {
        return size::parse(more).map(NewSize::More);
    }
    if let Some(fewer) = text.strip_prefix('-') {
        return size::parse(fewer).map(NewSize::Fewer);
    }
    size::parse(text).map(NewSize::Bytes)
}

/// `inarch disk resize`.
pub fn resize(arguments: &ResizeArguments) -> anyhow::Result<ExitCode> {
    let ResizeArguments { image, size } = arguments;
    let (target, paths) = image.target(&[])?;
    anyhow::ensure!(paths.is_empty(), "a volume is resized whole; name it without :/PATH");
    timings::check(&image.machine.timings)?;
    let request = image.machine.request(&target, Access::Resize);
    let Resized { volume, before, now, report } = appliance::resize(&request, *size, Events::new(tell))?;
    match report {
        None => answer(format!("{volume} has {} already\n", size::show(now)))?,
        Some(report) => {
            timings::tell(&image.machine.timings, report.timeline.steps())?;
            answer(format!("{volume}: {} -> {}\n", size::show(before), size::show(now)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
