//! `inarch disk df`: how full the file systems of a guest's disk are.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::guest::{Usage, usage};
use inarch_jobs::shown;
use serde_json::{Value, json};

use super::files::IMAGE_HELP;
use crate::columns::columns;
use crate::disk_options::{DiskOptions, FormatOption};
use crate::output::answer;
use crate::size;

/// Options of `inarch disk df`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk df guest.qcow2
  inarch disk df --json guest.img | jq '.[].free'")]
pub struct DfArguments {
    /// The image
    #[arg(value_name = "IMAGE[:VOLUME]", help = IMAGE_HELP)]
    image: OsString,

    #[command(flatten)]
    format: FormatOption,

    /// What a disk image needs beside itself.
    #[command(flatten)]
    disk: DiskOptions,

    /// Print JSON: numbers in bytes
    #[arg(long)]
    json: bool,
}

/// `inarch disk df`.
pub fn df(arguments: &DfArguments) -> anyhow::Result<ExitCode> {
    let all = usage(&arguments.disk.source_in(&arguments.image, arguments.format)?)?;
    answer(if arguments.json {
        serde_json::to_string_pretty(&all.iter().map(usage_json).collect::<Vec<_>>())? + "\n"
    } else {
        let heads = ["VOLUME", "FORMAT", "LABEL", "SIZE", "USED", "FREE", "USE%", "INODES", "IUSED"].map(str::to_owned);
        let rows: Vec<_> = [heads.to_vec()].into_iter().chain(all.iter().map(usage_row)).collect();
        columns(&rows, &[3, 4, 5, 6, 7, 8])
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Bytes of the file system, and free ones.
fn bytes(usage: &Usage) -> Option<(u64, u64)> {
    let numbers = usage.numbers.as_ref()?.as_ref().ok()?;
    let of = |blocks: u64| blocks.saturating_mul(numbers.block_size.into());
    Some((of(numbers.blocks), of(numbers.free_blocks)))
}

fn usage_row(usage: &Usage) -> Vec<String> {
    let none = || "-".to_owned();
    let label = usage.label.as_ref().map_or_else(none, |label| shown(label.as_ref()));
    let mut row = vec![usage.name.clone(), usage.format.map_or_else(none, str::to_owned), label];
    match (&usage.numbers, bytes(usage)) {
        (Some(Ok(numbers)), Some((size, free))) => {
            let used = size.saturating_sub(free);
            let percent = used.saturating_mul(100).div_ceil(size.max(1));
            row.extend([size::show(size), size::show(used), size::show(free), format!("{percent}%")]);
            let inodes = numbers.inodes.saturating_sub(numbers.free_inodes);
            row.extend(if numbers.inodes == 0 {
                [none(), none()]
            } else {
                [numbers.inodes, inodes].map(|n| n.to_string())
            });
        }
        (Some(Err(error)), _) => row.extend([size::show(usage.size), error.clone()]),
        _ => row.push(size::show(usage.size)),
    }
    row
}

fn usage_json(usage: &Usage) -> Value {
    let numbers = usage.numbers.as_ref().and_then(|numbers| numbers.as_ref().ok());
    json!({
        "volume": usage.name,
        "format": usage.format,
        "label": usage.label,
        "volume_size": usage.size,
        "size": bytes(usage).map(|(size, _)| size),
        "free": bytes(usage).map(|(_, free)| free),
        "inodes": numbers.map(|numbers| numbers.inodes),
        "free_inodes": numbers.map(|numbers| numbers.free_inodes),
        "error": usage.numbers.as_ref().and_then(|numbers| numbers.as_ref().err()),
    })
}
