//! What a scan did not take into the tree, and why.

use std::collections::BinaryHeap;
use std::fmt;

/// How many paths a [`Report`] names; the counts go on.
pub const LISTED_MAX: usize = 1000;

/// Why a path, or what is below it, is not in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A regular file that the caller may not read: not in the tree.
    UnreadableFile,
    /// A directory that the caller may not list: in the tree, empty.
    UnreadableDirectory,
    /// Something else is mounted there: in the tree, empty.
    MountPoint,
    /// Opening it would mount something (autofs): in the tree, empty.
    Automount,
    /// One of [`ScanOptions::leave_out`](super::ScanOptions::leave_out): in the tree, empty.
    AskedFor,
    /// The name is longer than 255 bytes, or holds a `/`: not in the tree.
    BadName,
    /// A type, size or symlink target that no file system of Linux holds: not in the tree.
    BadAttributes,
    /// Another error, which [`LeftOut::error`] names: a directory is in the tree, as far as it could be read;
    /// anything else is not.
    Failed,
}

impl Reason {
    /// Every reason, in the order of [`Report::counts`].
    pub const ALL: [Reason; 8] = [
        Reason::UnreadableFile,
        Reason::UnreadableDirectory,
        Reason::MountPoint,
        Reason::Automount,
        Reason::AskedFor,
        Reason::BadName,
        Reason::BadAttributes,
        Reason::Failed,
    ];
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::UnreadableFile => "file not readable, left out",
            Reason::UnreadableDirectory => "directory not readable, kept empty",
            Reason::MountPoint => "another file system, kept empty",
            Reason::Automount => "mounted when used (autofs), kept empty",
            Reason::AskedFor => "what is in it is not taken, kept empty",
            Reason::BadName => "name too long, left out",
            Reason::BadAttributes => "type, size or symlink target not valid, left out",
            Reason::Failed => "cannot be read",
        })
    }
}

/// One path that was left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// Relative to the scanned directory, without a leading slash; empty for that directory itself.
    pub path: Vec<u8>,
    /// Why.
    pub reason: Reason,
    /// The error number of the system call that failed, where one did.
    pub error: Option<i32>,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.escape_ascii(), self.reason)?;
        match self.error {
            Some(error) if self.reason == Reason::Failed => {
                write!(f, ": {}", std::io::Error::from_raw_os_error(error))
            }
            _ => Ok(()),
        }
    }
}

/// What a scan left out: exact counts, and the first paths. The same for the same tree, whatever the threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How often each reason applied, in the order of [`Reason::ALL`].
    pub counts: [u64; Reason::ALL.len()],
    /// The paths, sorted; of more than [`LISTED_MAX`], the first ones.
    pub left_out: Vec<LeftOut>,
    /// Names that the filter took out; what lies below an excluded directory is not counted.
    pub filtered: u64,
}

impl Report {
    /// How often `reason` applied.
    pub fn count(&self, reason: Reason) -> u64 {
        self.counts[reason as usize]
    }

    /// How often any reason applied; names that the filter took out do not count.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// One worker's part of a [`Report`]. Keeps the [`LISTED_MAX`] smallest paths, so that the union of all parts
/// holds the smallest of all.
#[derive(Debug, Default)]
pub(super) struct ReportPart {
    counts: [u64; Reason::ALL.len()],
    smallest: BinaryHeap<LeftOut>,
    pub(super) filtered: u64,
}

impl ReportPart {
    pub(super) fn add(&mut self, path: Vec<u8>, reason: Reason, error: Option<i32>) {
        self.counts[reason as usize] += 1;
        self.smallest.push(LeftOut { path, reason, error });
        if self.smallest.len() > LISTED_MAX {
            self.smallest.pop();
        }
    }

    pub(super) fn merge(parts: impl Iterator<Item = ReportPart>) -> Report {
        let mut report = Report::default();
        for part in parts {
            for (sum, count) in report.counts.iter_mut().zip(part.counts) {
                *sum += count;
            }
            report.filtered += part.filtered;
            report.left_out.extend(part.smallest);
        }
        report.left_out.sort();
        report.left_out.truncate(LISTED_MAX);
        report
    }
}
