//! [`Report`]: what a scan left out, and why.

use std::collections::BinaryHeap;
use std::fmt;

/// The most paths that a [`Report`] names; the counts are exact.
pub const LISTED_MAX: usize = 1000;

/// Why a path, or its content, is not in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A regular file that the caller may not read: left out.
    UnreadableFile,
    /// A directory that the caller may not list: included empty.
    UnreadableDirectory,
    /// A mount point: included empty.
    MountPoint,
    /// Opening it would mount something (autofs): included empty.
    Automount,
    /// One of [`ScanOptions::leave_out`](super::ScanOptions::leave_out): included empty.
    AskedFor,
    /// The name is longer than 255 bytes, or contains a `/`: left out.
    BadName,
    /// A type, size or symlink target that no Linux file system can hold: left out.
    BadAttributes,
    /// Another error, [`LeftOut::error`]. A directory is included as far as it could be read; anything else is left
    /// out.
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
            Reason::AskedFor => "content not taken, as asked for; kept empty",
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
    /// The error number of the failed system call, if there was one.
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

/// What a scan left out: exact counts, and the first paths. Independent of the number of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How often each reason applied, in the order of [`Reason::ALL`].
    pub counts: [u64; Reason::ALL.len()],
    /// The paths, sorted; at most the first [`LISTED_MAX`].
    pub left_out: Vec<LeftOut>,
    /// The number of names that the filter excluded, without the content of excluded directories.
    pub filtered: u64,
}

impl Report {
    /// How often `reason` applied.
    pub fn count(&self, reason: Reason) -> u64 {
        self.counts[reason as usize]
    }

    /// How often any reason applied, without names that the filter excluded.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// One worker's part of a [`Report`]. Contains the [`LISTED_MAX`] smallest paths, so that the union of all parts
/// contains the smallest of all.
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
