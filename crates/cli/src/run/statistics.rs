//! `inarch run --stats`: where the time went, and what a guest asked of its trees.

use inarch_jobs::run::{RunReport, TreeReport};

use crate::output::complain;
use crate::stats::{self, tell_files, tell_operations};

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
    if let Some(rest) = report.rest {
        complain(format_args!(
            "meanwhile the guest's processors waited {:.2} s for disks, and had nothing to do for {:.2} s",
            rest.waiting_for_disks, rest.idle
        ));
    }
    if let Some(cpu) = report.machine_cpu {
        complain(format_args!("the guest's machine took {cpu:.2} s of this machine's processors, its boot included"));
    }
    report.trees.iter().for_each(tell_tree);
}

/// The requests to each tree, as lines of text.
pub fn of_trees(report: &RunReport) -> String {
    let mut text = String::new();
    for tree in &report.trees {
        if let Some(disk) = &tree.disk {
            text += &format!("{} by {}: {}\n", name(tree), tree.way, stats::of_disk(disk));
        }
        if !tree.operations.is_empty() {
            text += &format!("{} by {}:\n{}", name(tree), tree.way, stats::table(&tree.operations));
        }
    }
    text
}

/// Where a tree is in the guest.
fn name(tree: &TreeReport) -> &str {
    tree.destination.as_deref().unwrap_or("what the guest writes")
}

fn tell_tree(tree: &TreeReport) {
    let name = name(tree);
    if let Some(disk) = &tree.disk {
        complain(format_args!("{name} by {}: {}", tree.way, stats::of_disk(disk)));
    }
    if let Some(requests) = tree.requests {
        tell_operations(&format!("{name} by {}: ", tree.way), requests, &tree.operations);
        tell_files(&tree.slowest_files);
    }
}
