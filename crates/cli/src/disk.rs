//! `inarch disk`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use inarch_jobs::examine::{Disk, Part, Signature, Table, examine};
use inarch_jobs::shown;
use serde_json::{Value, json};

use crate::output::{answer, complain};
use crate::size;

mod registry;
use registry::RegistryArguments;

/// Options of `inarch disk`.
#[derive(Args, Debug)]
pub struct DiskArguments {
    /// What to do
    #[command(subcommand)]
    pub command: DiskCommand,
}

/// What to do with disk images.
#[derive(Subcommand, Debug)]
pub enum DiskCommand {
    /// List the partitions of a disk image, and what they hold
    List(ListArguments),
    /// Read the registry of a Windows machine
    Reg(RegistryArguments),
}

/// Options of `inarch disk list`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk list guest.img
  inarch disk list --json guest.img | jq -r '.partitions[] | select(.format == \"ext4\") | .start'

The image is a raw one. Nothing is written to it, and neither root nor a mount is needed.")]
pub struct ListArguments {
    /// The disk image
    pub image: PathBuf,

    /// Print JSON: numbers in bytes
    #[arg(long)]
    pub json: bool,
}

/// Looks at disk images.
pub fn run(arguments: DiskArguments) -> anyhow::Result<ExitCode> {
    let ListArguments { image, json } = match arguments.command {
        DiskCommand::List(list) => list,
        DiskCommand::Reg(reg) => return registry::run(&reg),
    };
    let disk = examine(&image)?;
    for note in &disk.notes {
        complain(format_args!("{}: {note}", shown(&image)));
    }
    answer(if json { serde_json::to_string_pretty(&as_json(&disk))? + "\n" } else { table(&disk) })?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(disk: &Disk) -> Value {
    let table = disk
        .table
        .as_ref()
        .map(|Table { kind, id, sector }| json!({ "kind": kind.name(), "id": id, "sector": sector }));
    let format = |content: Option<&Signature>| content.map(|content| content.format);
    let partition = |part: &Part| {
        let content = part.content.as_ref();
        json!({
            "number": part.number,
            "start": part.start,
            "size": part.length,
            "type": part.type_id,
            "type_name": part.type_name,
            "name": part.name,
            "id": part.id,
            "boots": part.boots,
            "format": format(content),
            "label": content.and_then(|content| content.label.as_ref()),
            "uuid": content.and_then(|content| content.uuid.as_ref()),
        })
    };
    let content = disk.content.as_ref();
    json!({
        "size": disk.size,
        "table": table,
        "partitions": disk.parts.iter().map(partition).collect::<Vec<_>>(),
        "format": format(content),
        "label": content.and_then(|content| content.label.as_ref()),
        "uuid": content.and_then(|content| content.uuid.as_ref()),
    })
}

const HEADS: [&str; 8] = ["NR", "START", "SIZE", "TYPE", "NAME", "FORMAT", "LABEL", "UUID"];

fn table(disk: &Disk) -> String {
    let size = size::show(disk.size);
    let content = |content: Option<&Signature>| {
        let text = |text: Option<&String>| text.map_or_else(|| "-".to_owned(), |text| shown(Path::new(text)));
        let format = content.map_or("-", |content| content.format).to_owned();
        let of = |field: fn(&Signature) -> Option<&String>| text(content.and_then(field));
        [format, of(|content| content.label.as_ref()), of(|content| content.uuid.as_ref())]
    };
    let Some(Table { kind, id, sector }) = &disk.table else {
        return match content(disk.content.as_ref()) {
            [format, label, uuid] if format != "-" => {
                format!("{size}, no partition table: {format}, label {label}, UUID {uuid}\n")
            }
            _ => format!("{size}, no partition table and no known content\n"),
        };
    };
    let row = |part: &Part| {
        let kind = part.type_name.map_or_else(|| part.type_id.clone(), str::to_owned);
        let name = part.name.as_ref().map_or_else(|| "-".to_owned(), |name| shown(Path::new(name)));
        let [format, label, uuid] = content(part.content.as_ref());
        let boots = if part.boots { "*" } else { "" };
        let number = format!("{}{boots}", part.number);
        [number, size::show(part.start), size::show(part.length), kind, name, format, label, uuid]
    };
    let rows: Vec<[String; 8]> = [HEADS.map(str::to_owned)].into_iter().chain(disk.parts.iter().map(row)).collect();
    let mut text = format!("{size}, {} {id}, sectors of {sector} bytes\n", kind.name());
    for row in &rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
            format!("{cell:<width$}  ")
        });
        text += cells.collect::<String>().trim_end();
        text.push('\n');
    }
    text
}
