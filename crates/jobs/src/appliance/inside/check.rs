//! Checks file systems by the host's tools.

use std::path::Path;

use super::Host;
use super::devices::load_driver;
use super::failure::Failure;
use super::mounts::Mounted;
use super::tools::{Ended, Tool, with_name};
use crate::appliance::wire::{AttachedVolume, Found};

/// What a tool says by its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// There are no errors.
    Clean,
    /// There were errors, and all are corrected.
    Corrected,
    /// There are errors.
    Errors,
    /// It could not look.
    Failed,
}

/// How a tool tells what it found.
#[derive(Clone, Copy, Debug)]
enum Statuses {
    /// As fsck(8): 1 and 2 for corrected errors, 4 for others.
    OfFsck,
    /// 1 for errors; `true` if they are corrected by then.
    One(bool),
}

impl Statuses {
    fn verdict(self, status: i32) -> Verdict {
        match (self, status) {
            (_, 0) => Verdict::Clean,
            (Statuses::OfFsck, 1..=3) | (Statuses::One(true), 1) => Verdict::Corrected,
            (Statuses::OfFsck, 4..=7) | (Statuses::One(false), 1) => Verdict::Errors,
            _ => Verdict::Failed,
        }
    }
}

/// A tool that checks a file system.
struct Checker {
    formats: &'static [&'static str],
    tool: Tool,
    check: &'static [&'static str],
    /// The words for repairing, or why that is not done.
    repair: Result<&'static [&'static str], &'static str>,
    /// How it tells what it found when it checks, and when it repairs.
    statuses: [Statuses; 2],
}

const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package }
}

const CHECKERS: [Checker; 10] = [
    Checker {
        formats: &["ext2", "ext3", "ext4"],
        tool: tool("e2fsck", "e2fsprogs"),
        check: &["-f", "-n"],
        repair: Ok(&["-f", "-y"]),
        statuses: [Statuses::OfFsck; 2],
    },
    Checker {
        formats: &["xfs"],
        tool: tool("xfs_repair", "xfsprogs"),
        check: &["-n"],
        repair: Ok(&[]),
        statuses: [Statuses::One(false); 2],
    },
    Checker {
        formats: &["btrfs"],
        tool: tool("btrfs", "btrfs-progs"),
        check: &["check", "--readonly"],
        repair: Err(
            "'btrfs check --repair' may make it worse, as its manual says; copy the files out instead (inarch disk cp)",
        ),
        statuses: [Statuses::One(false); 2],
    },
    Checker {
        formats: &["vfat"],
        tool: tool("fsck.fat", "dosfstools"),
        check: &["-n"],
        repair: Ok(&["-a", "-w"]),
        statuses: [Statuses::One(false), Statuses::One(true)],
    },
    Checker {
        formats: &["exfat"],
        tool: tool("fsck.exfat", "exfatprogs"),
        check: &["-n"],
        repair: Ok(&["-y"]),
        statuses: [Statuses::OfFsck; 2],
    },
    Checker {
        formats: &["ntfs"],
        tool: tool("ntfsfix", "ntfs-3g"),
        check: &["-n"],
        repair: Ok(&[]),
        statuses: [Statuses::One(false); 2],
    },
    Checker {
        formats: &["jfs"],
        tool: tool("fsck.jfs", "jfsutils"),
        check: &["-f", "-n"],
        repair: Ok(&["-f", "-p"]),
        statuses: [Statuses::OfFsck; 2],
    },
    Checker {
        formats: &["reiserfs"],
        tool: tool("reiserfsck", "reiserfsprogs"),
        check: &["--check", "--yes", "--quiet"],
        repair: Ok(&["--fix-fixable", "--yes", "--quiet"]),
        statuses: [Statuses::OfFsck; 2],
    },
    Checker {
        formats: &["f2fs"],
        tool: tool("fsck.f2fs", "f2fs-tools"),
        check: &["--dry-run"],
        repair: Ok(&["-f"]),
        statuses: [Statuses::One(false); 2],
    },
    Checker {
        formats: &["gfs2"],
        tool: tool("fsck.gfs2", "gfs2-utils"),
        check: &["-n"],
        repair: Ok(&["-y"]),
        statuses: [Statuses::OfFsck; 2],
    },
];

/// The status of xfs_repair (xfs_repair(8)) where the log has changes that are not written back: it does not read them.
const DIRTY_LOG: i32 = 2;

/// Checks each attached volume.
pub(super) fn check(
    volumes: &Mounted,
    attached: &[AttachedVolume],
    repair: bool,
    host: &mut Host,
) -> Result<Found, Failure> {
    let mut found = Found::default();
    // One that cannot be checked does not keep the others from it.
    let mut failures = Vec::new();
    for (name, device, format) in &volumes.devices {
        let volume = attached.iter().find(|volume| volume.name == *name);
        match check_one((name, device, format), volume, repair, host) {
            Ok(one) => (found.was, found.is) = (found.was | one.was, found.is | one.is),
            Err(failure) => failures.push(Failure { text: format!("{name}: {}", failure.text), ..failure }),
        }
    }
    let Some(last) = failures.pop() else { return Ok(found) };
    failures.iter().for_each(|failure| host.note(&failure.text));
    Err(last)
}

fn check_one(
    (name, device, format): (&str, &Path, &str),
    volume: Option<&AttachedVolume>,
    repair: bool,
    host: &mut Host,
) -> Result<Found, Failure> {
    let mut found = Found::default();
    let checker = CHECKERS.iter().find(|checker| checker.formats.contains(&format));
    let Some(checker) = checker else {
        return Err(Failure::new(format!("Debian 12 has no tool that checks {format}")));
    };
    let words = match (repair, checker.repair) {
        (false, _) => checker.check,
        (true, Ok(words)) => words,
        (true, Err(why)) => return Err(Failure::new(why)),
    };
    host.note(&format!("{name}: {} {}", checker.tool.program, words.join(" ")));
    let (mut ended, mut told) = run(checker.tool, words, (device, name), host)?;
    if let ("xfs", true, DIRTY_LOG, Some(volume)) = (format, repair, ended.status, volume) {
        match replay(volume, device) {
            Ok(()) => {
                host.note(&format!("{name}: its log is written back, by mounting it"));
                found.was = true;
            }
            Err(failure) => host.note(&format!("{name}: its log cannot be written back: {}", failure.text)),
        }
        (ended, told) = run(checker.tool, words, (device, name), host)?;
    }
    match checker.statuses[usize::from(repair)].verdict(ended.status) {
        // e2fsck counts neither what it was not allowed to correct of a journal nor what it has written back of it.
        Verdict::Clean if told.refused && !repair => (found.was, found.is) = (true, true),
        Verdict::Clean => found.was |= told.changed,
        Verdict::Corrected => found.was = true,
        Verdict::Errors => (found.was, found.is) = (true, true),
        Verdict::Failed => {
            let failure = checker.tool.failed(&ended);
            return Err(Failure { text: with_name(&failure.text, device, name), ..failure });
        }
    }
    Ok(found)
}

/// Has the kernel write back what is in an XFS's log.
fn replay(volume: &AttachedVolume, device: &Path) -> Result<(), Failure> {
    load_driver("xfs")?;
    let mut mounted = Mounted::new(&[]);
    mounted.mount(volume, device, "xfs", false)?;
    mounted.unmount()
}

/// What a tool says besides its status.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// It was not allowed to correct something.
    refused: bool,
    /// It has changed the file system.
    changed: bool,
}

fn run(tool: Tool, words: &[&str], (device, name): (&Path, &str), host: &mut Host) -> Result<(Ended, Told), Failure> {
    let words = words.iter().map(Path::new).chain([device]);
    let (mut skips_journal, mut told) = (false, Told::default());
    let ended = tool.run(words, &mut |line| {
        skips_journal |= line.contains("skipping journal recovery");
        told.refused |= line.trim_end().ends_with("? no");
        told.changed |= line.contains("recovering journal") || line.contains("FILE SYSTEM WAS MODIFIED");
        host.note(&format!("  {}", with_name(line, device, name)));
    });
    if skips_journal {
        host.note(&format!(
            "{name}: its journal holds changes, as after a power cut; what is wrong above may be right once they are written back (--repair)"
        ));
    }
    Ok((ended?, told))
}
