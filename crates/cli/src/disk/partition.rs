//! `inarch disk partition`: writes a partition table into an image.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use inarch_jobs::examine::TableKind;
use inarch_jobs::make_disk::partition::{PartitionRequest, partition};
use inarch_jobs::make_disk::{PartKind, Placed, Wanted};
use inarch_jobs::shown;
use serde_json::{Value, json};

use crate::output::answer;
use crate::size;

/// Options of `inarch disk partition`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk partition guest.img
  inarch disk partition guest.img --table gpt 512M:efi:ESP 20G:linux:root rest:swap

Partitions start at multiples of 1 MiB. What is in them stays as it is: inarch disk format makes file systems.")]
pub struct PartitionArguments {
    /// The disk image
    pub image: PathBuf,

    /// Partitions in their order; by default one of the whole disk. SIZE can be `rest`. TYPE is linux, swap, efi, bios, lvm, raid, windows or
    /// apple
    #[arg(value_name = "SIZE[:TYPE[:NAME]]", value_parser = wanted)]
    pub parts: Vec<Wanted>,

    /// Kind of table; by default gpt for a disk of more than 2 TiB, and mbr for others
    #[arg(long, value_enum)]
    pub table: Option<Kind>,

    /// Bytes of a sector: 512 or 4096
    #[arg(long, value_name = "BYTES", value_parser = size::parse, default_value = "512")]
    pub sector: u64,

    /// Overwrite a partition table or a file system that is there
    #[arg(long)]
    pub force: bool,

    /// Print JSON: numbers in bytes
    #[arg(long)]
    pub json: bool,
}

/// A kind of partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// GUID partition table
    Gpt,
    /// Master boot record
    Mbr,
}

fn wanted(text: &str) -> Result<Wanted, String> {
    let mut words = text.splitn(3, ':');
    let length = match words.next().unwrap_or_default() {
        "rest" => None,
        length => Some(size::parse(length)?),
    };
    let kind = match words.next() {
        None | Some("") => PartKind::default(),
        Some(name) => PartKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<_> = PartKind::ALL.into_iter().map(PartKind::name).collect();
            format!("'{name}' is not a type of partitions; these are: {}", known.join(", "))
        })?,
    };
    Ok(Wanted { length, kind, name: words.next().unwrap_or_default().to_owned() })
}

/// Writes a partition table.
pub fn run(arguments: PartitionArguments) -> anyhow::Result<ExitCode> {
    let PartitionArguments { image, mut parts, table, sector, force, json } = arguments;
    if parts.is_empty() {
        parts.push(Wanted::default());
    }
    let table = table.map(|kind| match kind {
        Kind::Gpt => TableKind::Gpt,
        Kind::Mbr => TableKind::Mbr,
    });
    let made = partition(&PartitionRequest { image: image.clone(), table, sector, parts, force })?;
    if json {
        let part =
            |(number, part): (u32, Placed)| json!({ "number": number, "start": part.start, "size": part.length });
        let parts: Vec<Value> = (1..).zip(made.parts).map(part).collect();
        let told = json!({ "image": shown(&image), "table": made.table.name(), "partitions": parts });
        answer(serde_json::to_string_pretty(&told)? + "\n")?;
    }
    Ok(ExitCode::SUCCESS)
}
