//! `inarch run --stats`: what a guest asked of its trees.

use inarch_jobs::run::{RunReport, TreeReport};

use crate::output::complain;
use crate::stats::{self, tell_operations};

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
        complain(format_args!("{name} by {}: {}", tree.way, stats::of_disk(disk)));
    }
    if let Some(requests) = tree.requests {
        tell_operations(&format!("{name} by {}: ", tree.way), requests, &tree.operations);
    }
}
