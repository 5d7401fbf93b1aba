//! `inarch plan`: plans the disk of a tree, and measures how soon it can be read.

use std::time::{Duration, Instant};

use inarch_block::BLOCK_SIZE;
use inarch_format::disk::DiskFormat;
use inarch_source::{FileKind, Source, parse, spool_directory};
use inarch_tree::FileType;
use inarch_tree::scan::Report;
use inarch_tree::select::Selection;
use serde::Serialize;
use vm_memory::VolatileSlice;

use crate::JobError;
use crate::device::{Recipe, Writes};

/// What the disk of a tree would be.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// The source.
    pub source: String,
    /// The file system on the disk.
    pub format: &'static str,
    /// Names below the root.
    pub entries: u64,
    /// Regular files; a file with several names counts once.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Symlinks.
    pub symlinks: u64,
    /// Device nodes, sockets and fifos.
    pub other: u64,
    /// Additional names of files with several names: hard links.
    pub more_names: u64,
    /// Bytes of the files, holes included.
    pub file_bytes: u64,
    /// How the content reaches the disk, in words.
    pub content: &'static str,
    /// Bytes of the file system on the device.
    pub device_bytes: u64,
    /// Bytes of it that are computed metadata.
    pub metadata_bytes: u64,
    /// Bytes of it that are free for the guest.
    pub free_bytes: u64,
    /// Milliseconds of the scan.
    pub scan_ms: f64,
    /// Milliseconds of the plan.
    pub plan_ms: f64,
    /// Milliseconds from the start of the process until the first block was read.
    pub ready_ms: f64,
    /// The process's peak of resident memory, in bytes.
    pub peak_memory_bytes: u64,
    /// What was left out, and why: a line each.
    pub left_out: Vec<String>,
    /// What else the user should know of the source, one line each.
    pub notes: Vec<String>,
}

/// Opens and plans `source`, reads the disk's first block, and reports.
pub fn plan(source: &Source, selection: &Selection, format: DiskFormat) -> Result<PlanReport, JobError> {
    let started = Instant::now();
    let recipe = Recipe {
        kept: None,
        mount_points: Vec::new(),
        trace: None,
        source: source.clone(),
        selection: selection.clone(),
        patience: Duration::ZERO,
        format,
        writes: Writes::ThrownAway(spool_directory()),
        ordinal: 0,
        disks: 1,
    };
    let prepared = recipe.prepare()?;
    let read = || prepared.device.read_at(0, &[VolatileSlice::from(&mut [0; BLOCK_SIZE][..])]);
    // It may be a compressed one of the source.
    let read = if source.is_foreign() { parse(|_| read())? } else { read() };
    read.map_err(|error| JobError::path(source.path(), "cannot read the device", error))?;
    let ready = started.elapsed();

    let tree = &prepared.tree;
    let count = |wanted: &[FileType]| tree.inodes().filter(|(_, i)| wanted.contains(&i.file_type())).count() as u64;
    let summary = &prepared.summary;
    let milliseconds = |d: std::time::Duration| d.as_secs_f64() * 1e3;
    let entries = u64::from(tree.entry_count());
    Ok(PlanReport {
        source: source.to_string(),
        format: format.name(),
        entries,
        // The root is an inode without a name.
        more_names: (entries + 1).saturating_sub(u64::from(tree.inode_count())),
        content: content(source, prepared.image.is_some()),
        files: count(&[FileType::Regular]),
        directories: count(&[FileType::Directory]),
        symlinks: count(&[FileType::Symlink]),
        other: count(&[FileType::Fifo, FileType::Socket, FileType::CharDevice, FileType::BlockDevice]),
        file_bytes: tree.inodes().map(|(_, inode)| inode.size()).sum(),
        device_bytes: summary.blocks * BLOCK_SIZE as u64,
        metadata_bytes: summary.metadata_blocks * BLOCK_SIZE as u64,
        free_bytes: summary.free_blocks * BLOCK_SIZE as u64,
        scan_ms: milliseconds(prepared.scan_time),
        plan_ms: milliseconds(prepared.plan_time),
        ready_ms: milliseconds(ready),
        peak_memory_bytes: peak_memory(),
        left_out: left_out(&prepared.report),
        notes: prepared.notes.clone(),
    })
}

/// How the content of a container image reaches a disk.
const OF_LAYERS: &str = "none of it copied; compressed layers are unpacked into a temporary file";

/// How the content of a source reaches a disk.
fn content(source: &Source, is_container: bool) -> &'static str {
    match source {
        Source::Oci { .. } | Source::Registry(_) => OF_LAYERS,
        Source::File { .. } if is_container => OF_LAYERS,
        Source::File { kind: FileKind::CompressedTar, .. } => "unpacked into a temporary file",
        Source::Pipe(_) | Source::StandardInput => "copied into a temporary file",
        Source::File { kind: FileKind::Volume(reader), .. } if reader.packs => {
            "none of it copied; what the image has compressed is unpacked when it is read"
        }
        Source::Disk { .. } => "none of it copied; what the disk has compressed is unpacked when it is read",
        Source::Directory(_)
        | Source::Cache(_)
        | Source::Empty
        | Source::File { kind: FileKind::Tar | FileKind::Volume(_), .. } => "none of it copied",
    }
}

fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// One line for each path that was left out, and one for names that were only counted.
pub(crate) fn left_out(report: &Report) -> Vec<String> {
    let mut lines: Vec<String> = report.left_out.iter().map(ToString::to_string).collect();
    let unnamed = report.total() - report.left_out.len() as u64;
    if unnamed > 0 {
        lines.push(format!("{unnamed} more"));
    }
    if report.filtered > 0 {
        let names = if report.filtered == 1 { "name" } else { "names" };
        lines.push(format!("{} {names} left out by filters, not counting what is below", report.filtered));
    }
    lines
}
