//! `inarch disk df`: how full the file systems of a guest's disk are.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::guest::{Usage, usage};
use inarch_jobs::shown;
use inarch_volume::Statistics;
use serde_json::{Value, json};

use super::files::DISK_HELP;
use crate::columns::columns;
use crate::disk_options::{DiskOptions, FormatOption};
use crate::output::{answer, complain};
use crate::size;

/// Options of `inarch disk df`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk df guest.qcow2
  inarch disk df --json guest.img | jq '.[].available'")]
#[command(disable_help_flag = true)]
pub struct DfArguments {
    /// The image
    #[arg(value_name = "IMAGE[:VOLUME]", help = DISK_HELP)]
    image: OsString,

    #[command(flatten)]
    format: FormatOption,

    /// What a disk image needs beside itself.
    #[command(flatten)]
    disk: DiskOptions,

    /// Print sizes with units; the default, accepted out of habit
    #[arg(short = 'h', conflicts_with = "json")]
    units: bool,

    /// Print JSON: numbers in bytes
    #[arg(long)]
    json: bool,

    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// `inarch disk df`.
pub fn df(arguments: &DfArguments) -> anyhow::Result<ExitCode> {
    let source = arguments.disk.source_in(&arguments.image, arguments.format)?;
    let all = usage(&source)?;
    source.named(&source.notes()).iter().for_each(complain);
    answer(if arguments.json {
        serde_json::to_string_pretty(&all.iter().map(usage_json).collect::<Vec<_>>())? + "\n"
    } else {
        let heads =
            ["VOLUME", "FORMAT", "LABEL", "SIZE", "USED", "AVAIL", "USE%", "INODES", "IUSED"].map(str::to_owned);
        let rows: Vec<_> = [heads.to_vec()].into_iter().chain(all.iter().map(usage_row)).collect();
        columns(&rows, &[3, 4, 5, 6, 7, 8])
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The bytes of so many blocks.
fn bytes(numbers: &Statistics, blocks: u64) -> u64 {
    blocks.saturating_mul(numbers.block_size.into())
}

fn usage_row(usage: &Usage) -> Vec<String> {
    let none = || "-".to_owned();
    let label = usage.label.as_ref().map_or_else(none, |label| shown(label.as_ref()));
    let mut row = vec![usage.name.clone(), usage.format.map_or_else(none, str::to_owned), label];
    match &usage.numbers {
        Some(Ok(numbers)) => {
            let sizes = [numbers.blocks, numbers.used_blocks(), numbers.available_blocks()];
            row.extend(sizes.map(|blocks| size::show(bytes(numbers, blocks))));
            row.push(format!("{}%", numbers.percent_used()));
            let inodes = numbers.inodes.saturating_sub(numbers.free_inodes);
            row.extend(if numbers.inodes == 0 {
                [none(), none()]
            } else {
                [numbers.inodes, inodes].map(|n| n.to_string())
            });
        }
        Some(Err(error)) => row.extend([size::show(usage.size), error.clone()]),
        None => row.push(size::show(usage.size)),
    }
    row
}

fn usage_json(usage: &Usage) -> Value {
    let numbers = usage.numbers.as_ref().and_then(|numbers| numbers.as_ref().ok());
    // Some formats have none, or make them as they are needed.
    let inodes = numbers.filter(|numbers| numbers.inodes > 0);
    json!({
        "volume": usage.name,
        "format": usage.format,
        "label": usage.label,
        "volume_size": usage.size,
        "size": numbers.map(|numbers| bytes(numbers, numbers.blocks)),
        "free": numbers.map(|numbers| bytes(numbers, numbers.free_blocks)),
        "available": numbers.map(|numbers| bytes(numbers, numbers.available_blocks())),
        "inodes": inodes.map(|numbers| numbers.inodes),
        "free_inodes": inodes.map(|numbers| numbers.free_inodes),
        "error": usage.numbers.as_ref().and_then(|numbers| numbers.as_ref().err()),
    })
}
