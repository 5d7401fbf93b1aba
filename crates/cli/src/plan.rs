//! `inarch plan`: reports what the disk of a tree would be, and how soon it can be read.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::plan::{self, PlanReport};
use inarch_jobs::{DiskFormat, counted};

use crate::arguments::one_of;
use crate::output::answer;
use crate::size::show;
use crate::source::{SRC_HELP, SourceArguments};

/// Options of `inarch plan`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch plan /usr
  inarch plan app.tar.zst --format erofs
  inarch plan . --exclude target --json")]
pub struct PlanArguments {
    /// The tree: a directory, an archive or an image
    #[arg(value_name = "SRC", help = SRC_HELP)]
    pub source: OsString,

    /// File system of the disk
    #[arg(long, value_name = "ext4|erofs|squashfs", default_value = "ext4", hide_possible_values = true,
        value_parser = one_of::<DiskFormat>(DiskFormat::ALL.map(DiskFormat::name)))]
    pub format: DiskFormat,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// What to take of the source.
    #[command(flatten)]
    pub filters: SourceArguments,
}

/// Plans a disk, reads its first block and reports what it is.
pub fn run(arguments: PlanArguments) -> anyhow::Result<ExitCode> {
    let source = arguments.filters.disk.source(&arguments.source)?;
    let report = plan::plan(&source, &arguments.filters.reproducible_selection()?, arguments.format)?;
    let text = if arguments.json { serde_json::to_string_pretty(&report)? + "\n" } else { table(&report) };
    answer(text)?;
    Ok(ExitCode::SUCCESS)
}

fn table(report: &PlanReport) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    row("source", report.source.clone());
    // The root has no name.
    let mut kinds = vec![
        counted(report.files, "file", "files"),
        counted(report.directories.saturating_sub(1), "directory", "directories"),
        counted(report.symlinks, "symlink", "symlinks"),
        format!("{} other", report.other),
    ];
    if report.more_names > 0 {
        kinds.push(counted(report.more_names, "more name of a file", "more names of files"));
    }
    row("entries", format!("{} ({})", report.entries, kinds.join(", ")));
    row("content", format!("{}, {}", show(report.file_bytes), report.content));
    let writable = match report.free_bytes {
        0 => "read-only".to_owned(),
        bytes => format!("of it {} free for the guest", show(bytes)),
    };
    row("device", format!("{}, {}, {writable}", report.format, show(report.device_bytes)));
    row("metadata", format!("{}, computed when it is read", show(report.metadata_bytes)));
    row(
        "ready after",
        format!(
            "{:.1} ms (scan {:.1}, plan {:.1}), {} resident at most",
            report.ready_ms,
            report.scan_ms,
            report.plan_ms,
            show(report.peak_memory_bytes)
        ),
    );
    for line in &report.left_out {
        row("left out", line.clone());
    }
    for line in &report.notes {
        row("note", line.clone());
    }
    text
}
