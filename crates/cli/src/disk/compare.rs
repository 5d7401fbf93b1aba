//! `inarch disk compare-mkfs`: compares the tools that make file systems, over disks of many sizes.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::create_named;
use inarch_jobs::make_disk::compare::{CompareRequest, Measured, Outcome, compare};
use inarch_jobs::make_disk::tools::{GONE, Maker};
use inarch_jobs::shown;
use serde_json::{Value, json};

use super::picture::picture;
use crate::duration;
use crate::output::answer;
use crate::size;

/// Options of `inarch disk compare-mkfs`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk compare-mkfs 100M 10G 1T
  inarch disk compare-mkfs --on /dev/shm --on . --svg mkfs.svg

Each tool makes its file system in a sparse file, which is removed afterwards. FREE is the space for files that the superblock states; OVERHEAD is the rest of the disk. A file system is marked if it covers too little of the disk and its tool gave no warning.")]
pub struct CompareArguments {
    /// Sizes of disks; by default 100M 1G 10G 100G 1T 10T
    #[arg(value_name = "SIZE", value_parser = size::parse)]
    pub sizes: Vec<u64>,

    /// Where the sparse files are made; by default here, and in /dev/shm
    #[arg(long, value_name = "DIR")]
    pub on: Vec<PathBuf>,

    /// These file systems; by default all
    #[arg(long, value_name = "FS", value_delimiter = ',', value_parser = super::format::maker)]
    pub fs: Vec<&'static Maker>,

    /// How long a tool may take
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "10s")]
    pub timeout: std::time::Duration,

    /// How much room a file may really take
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1G")]
    pub most: u64,

    /// Draw the results as an SVG picture
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Print JSON: numbers in bytes
    #[arg(long)]
    pub json: bool,
}

/// The sizes that are compared by default.
const SIZES: [u64; 6] = [100 << 20, 1 << 30, 10 << 30, 100 << 30, 1 << 40, 10 << 40];

/// Compares the tools.
pub fn run(arguments: CompareArguments) -> anyhow::Result<ExitCode> {
    let CompareArguments { mut sizes, mut on, fs, timeout, most, svg, json } = arguments;
    if sizes.is_empty() {
        sizes.extend(SIZES);
    }
    if on.is_empty() {
        on.extend([PathBuf::from("."), PathBuf::from("/dev/shm")]);
    }
    let request = CompareRequest { sizes, on, formats: fs, time: timeout, bytes: most };
    let is_watched = std::io::stderr().is_terminal();
    let measured = compare(&request, |one| {
        if is_watched {
            // A failure to show progress is ignored.
            let _ = write!(std::io::stderr(), "\r\x1b[K{} of {}", one.format, size::show(one.size));
        }
    })?;
    if is_watched {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
    if let Some(path) = svg {
        let write = create_named(&path).and_then(|mut file| file.write_all(picture(&measured).as_bytes()));
        write.map_err(|error| anyhow::anyhow!("{}: cannot write there: {error}", shown(&path)))?;
    }
    answer(if json { serde_json::to_string_pretty(&as_json(&measured))? + "\n" } else { table(&request, &measured) })?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(measured: &[Measured]) -> Value {
    let one = |one: &Measured| {
        let mut told = json!({ "on": shown(&one.on), "format": one.format, "size": one.size });
        let more = match &one.outcome {
            Outcome::Made(made) => json!({
                "seconds": made.seconds, "allocated": made.allocated, "covered": made.covered, "free": made.free,
                "overhead": one.overhead(), "truncated": one.is_truncated(),
            }),
            Outcome::Failed(reason) => json!({ "failed": reason }),
            Outcome::Missing(remedy) => json!({ "missing": remedy }),
        };
        if let (Value::Object(told), Value::Object(more)) = (&mut told, more) {
            told.extend(more);
        }
        told
    };
    let gone: Vec<Value> = GONE.iter().map(|(format, reason)| json!({ "format": format, "reason": reason })).collect();
    json!({ "measured": measured.iter().map(one).collect::<Vec<_>>(), "gone": gone })
}

fn table(request: &CompareRequest, measured: &[Measured]) -> String {
    let mut text = String::new();
    for on in &request.on {
        let heads = ["FS", "SIZE", "SECONDS", "ALLOCATED", "FREE", "OVERHEAD", ""].map(str::to_owned);
        let mut rows = vec![heads];
        let mut notes = Vec::new();
        for one in measured.iter().filter(|one| one.on == *on) {
            match &one.outcome {
                Outcome::Made(made) => {
                    let show = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), size::show);
                    let overhead =
                        one.overhead().map_or_else(|| "?".to_owned(), |part| format!("{:.2}%", part * 100.0));
                    let remark =
                        if one.is_truncated() { format!("covers only {}", show(made.covered)) } else { String::new() };
                    rows.push([
                        one.format.to_owned(),
                        size::show(one.size),
                        format!("{:.3}", made.seconds),
                        size::show(made.allocated),
                        show(made.free),
                        overhead,
                        remark,
                    ]);
                }
                Outcome::Failed(reason) => {
                    let dash = || "-".to_owned();
                    let size = size::show(one.size);
                    rows.push([one.format.to_owned(), size, dash(), dash(), dash(), dash(), reason.clone()]);
                }
                Outcome::Missing(remedy) => notes.push(format!("{}: {remedy}", one.format)),
            }
        }
        notes.dedup();
        notes.extend(GONE.iter().map(|(format, reason)| format!("{format}: {reason}")));
        text += &format!("{}\n", shown(on));
        for row in &rows {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let width = rows.iter().filter_map(|row| Some(row.get(column)?.chars().count())).max().unwrap_or(0);
                match column {
                    0 | 6 => format!("{cell:<width$}  "),
                    _ => format!("{cell:>width$}  "),
                }
            });
            text += cells.collect::<String>().trim_end();
            text.push('\n');
        }
        for note in notes {
            text += &format!("{note}\n");
        }
    }
    text
}
