//! What earlier applies of a run have left on the host, as the run's record remembers it.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStringExt;

use super::look::Seen;
use crate::kept::bytes::Bytes;
use crate::kept::record::{DurableFile, TouchedFile};

/// What is known of earlier applies.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Makes our names for what is not yet in its place our own.
    pub token: String,
    /// Whether an earlier apply used it.
    pub is_old: bool,
    /// An apply began and did not end, or everything was applied: what is not as it was scanned may be ours.
    pub begun: bool,
    /// The machine was started again since, or a wait for the disk failed: what was not made durable may be torn.
    pub restarted: bool,
    /// Paths of the tree that the earlier apply left alone.
    pub left: HashSet<Vec<u8>>,
    /// The paths that the earlier apply was for; `None`: all.
    pub chosen: Option<HashSet<Vec<u8>>>,
    /// Files that are on the host's disk, by the path that they are for.
    pub durable: HashMap<Vec<u8>, Durable>,
    /// What was scanned and has other times since an apply linked it, by path.
    pub touched: HashMap<Vec<u8>, Seen>,
}

/// A file that an apply made and that is on the host's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Durable {
    pub ino: u64,
    pub size: u64,
    pub mtime: (i64, u64),
}

impl Progress {
    /// Whether an earlier apply may have been in the midst of a path.
    pub fn had_begun(&self, path: &[u8]) -> bool {
        let chosen = self.chosen.as_ref().is_none_or(|chosen| chosen.contains(path));
        self.begun && chosen && !self.left.contains(path)
    }

    pub fn may_be_torn(&self, path: &[u8]) -> bool {
        self.restarted && self.had_begun(path)
    }

    /// Whether a file of the host is the one that was made for a path.
    pub fn is_durable(&self, path: &[u8], seen: &Seen) -> bool {
        self.durable.get(path).is_some_and(|durable| *durable == Durable::of(seen))
    }

    /// The name of ours for what is to come at, or went from, the path of a difference.
    pub fn aside(&self, i: usize) -> Vec<u8> {
        format!("{}{i}", self.prefix("new")).into_bytes()
    }

    /// The name that something has for a moment on file systems that cannot exchange two names.
    pub fn away(&self, i: usize) -> Vec<u8> {
        format!("{}{i}", self.prefix("aside")).into_bytes()
    }

    /// The name of a file that is not yet whole, on file systems that have no files without a name.
    pub fn part(&self, i: usize) -> Vec<u8> {
        format!("{}{i}", self.prefix("part")).into_bytes()
    }

    /// The name of a file that is about to be removed from `path`, that of a difference. It tells that path: once what was
    /// applied in part is no difference any more, others have the numbers.
    pub fn gone(&self, i: usize, path: &[u8]) -> Vec<u8> {
        format!("{}{i}-{:08x}", self.prefix("gone"), crc32c::crc32c(path)).into_bytes()
    }

    /// Whether a name is one of ours.
    pub fn is_ours(&self, name: &[u8]) -> bool {
        self.ours(name).is_some()
    }

    /// What a name of ours is, and of which difference.
    pub fn ours(&self, name: &[u8]) -> Option<(Ours, usize)> {
        let kinds = [("new", Ours::Aside), ("aside", Ours::Away), ("part", Ours::Part), ("gone", Ours::Gone)];
        kinds.into_iter().find_map(|(kind, ours)| {
            let rest = std::str::from_utf8(name.strip_prefix(self.prefix(kind).as_bytes())?).ok()?;
            let number = if ours == Ours::Gone { rest.split_once('-')?.0 } else { rest };
            Some((ours, number.parse().ok()?))
        })
    }

    fn prefix(&self, kind: &str) -> String {
        format!(".inarch-{kind}-{}-", self.token)
    }
}

impl Durable {
    pub fn of(seen: &Seen) -> Durable {
        Durable { ino: seen.ino, size: seen.size, mtime: seen.mtime }
    }
}

impl TouchedFile {
    pub(super) fn new(ordinal: u8, path: &[u8], seen: &Seen) -> TouchedFile {
        let identity = (seen.ino, seen.size, seen.kind, seen.mtime, seen.ctime);
        TouchedFile { ordinal, path: Bytes::new(path), identity }
    }

    /// The file, if it is one of this disk.
    pub(super) fn of(&self, ordinal: u8) -> Option<(Vec<u8>, Seen)> {
        let (ino, size, kind, mtime, ctime) = self.identity;
        let path = self.path.to_os_string().into_vec();
        (self.ordinal == ordinal).then_some((path, Seen { ino, size, kind, mtime, ctime }))
    }
}

/// What a name of ours is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ours {
    /// What is to come to a path, or was exchanged for what came.
    Aside,
    /// What goes from a path, in the midst of an exchange that takes several steps.
    Away,
    /// What is not yet whole.
    Part,
    /// What is about to be removed, and is looked at once more.
    Gone,
}

impl DurableFile {
    pub(super) fn new(ordinal: u8, path: &[u8], file: &Durable) -> DurableFile {
        let identity = (file.ino, file.size, file.mtime.0, file.mtime.1);
        DurableFile { ordinal, path: Bytes::new(path), identity }
    }

    /// The file, if it is one of this disk.
    pub(super) fn of(&self, ordinal: u8) -> Option<(Vec<u8>, Durable)> {
        let (ino, size, seconds, nanoseconds) = self.identity;
        let path = self.path.to_os_string().into_vec();
        (self.ordinal == ordinal).then_some((path, Durable { ino, size, mtime: (seconds, nanoseconds) }))
    }
}
