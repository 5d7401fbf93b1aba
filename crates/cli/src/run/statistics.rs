//! `inarch run --stats`: what a guest asked of its trees.

use inarch_jobs::counted;
use inarch_jobs::run::{DiskReport, RunReport, TreeReport};

use crate::output::complain;
use crate::size;
use crate::stats::tell_operations;

/// Says on standard error what the guest asked for, and what that took.
pub fn tell(report: &RunReport) {
    if let Some(cpu) = report.cpu {
        complain(format_args!(
            "the command took {:.2} s, and {:.2} s of the guest's processors: {:.2} s in programs, {:.2} s in its kernel",
            report.moments.map_or(report.phases.command, |moments| moments.end - moments.command),
            cpu.user + cpu.system,
            cpu.user,
            cpu.system
        ));
    }
    report.trees.iter().for_each(tell_tree);
}

fn tell_tree(tree: &TreeReport) {
    let name = tree.destination.as_deref().unwrap_or("what the guest writes");
    if let Some(disk) = &tree.disk {
        complain(format_args!("{name} by {}: {}", tree.way, of_disk(disk)));
    }
    if let Some(requests) = tree.requests {
        tell_operations(&format!("{name} by {}: ", tree.way), requests, &tree.operations);
    }
}

/// A disk's requests, in one line.
fn of_disk(disk: &DiskReport) -> String {
    let parts = [
        (disk.file_bytes_read, "of files"),
        (disk.metadata_bytes_read, "of computed metadata"),
        (disk.overlay_bytes_read, "of what the guest wrote"),
    ];
    let parts: Vec<_> = parts
        .iter()
        .filter(|(bytes, _)| *bytes > 0)
        .map(|(bytes, what)| format!("{} {what}", size::show(*bytes)))
        .collect();
    let mut text = format!("{} in {:.3} s", counted(disk.reads, "read", "reads"), disk.read_seconds);
    if !parts.is_empty() {
        text += &format!(" ({})", parts.join(", "));
    }
    if disk.writes > 0 {
        let writes = counted(disk.writes, "write", "writes");
        text += &format!("; {writes} in {:.3} s ({})", disk.write_seconds, size::show(disk.bytes_written));
    }
    if disk.errors > 0 {
        text += &format!("; {} failed", disk.errors);
    }
    text
}
