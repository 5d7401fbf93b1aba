//! What the record of a run knows of earlier applies, and the temporary names that they used.

use super::seen::Seen;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display, Formatter};
use std::os::unix::ffi::OsStringExt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::bytes::Bytes;
use crate::record::{BesideFile, DurableFile, FileIdentity, TouchedFile};

/// What is known of earlier applies.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// A part of every temporary name, which no other run uses.
    pub token: String,
    /// Whether an earlier apply used the token.
    pub is_old: bool,
    /// An apply began and did not end, or everything was applied: what is not as it was scanned may have been changed
    /// by it.
    pub begun: bool,
    /// The machine was started again since, or a sync failed: what was not durable may be torn.
    pub restarted: bool,
    /// Paths of the tree that the earlier apply left alone.
    pub left: HashSet<Vec<u8>>,
    /// The paths that the earlier apply was for; `None`: all.
    pub chosen: Option<HashSet<Vec<u8>>>,
    /// Files that are durable on the host, by the path that they are for.
    pub durable: HashMap<Vec<u8>, Durable>,
    /// Files that are as they were scanned, except for the times that an apply gave them by linking, by path.
    pub touched: HashMap<Vec<u8>, Seen>,
    /// What an apply with force that has not ended was to replace, by path.
    pub forced: HashMap<Vec<u8>, Seen>,
    /// Leftovers that earlier applies told, by path, with their identity if nobody needs them any more.
    pub beside: HashMap<Vec<u8>, Option<Seen>>,
}

/// A file that an apply made and that is durable on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Durable {
    pub ino: u64,
    pub size: u64,
    pub mtime: (i64, u64),
}

impl Progress {
    /// Whether an interrupted apply may have changed a path.
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

    /// The temporary name of the new object of a path, or of the old one after an exchange.
    pub fn aside(&self, path: &[u8]) -> Vec<u8> {
        self.name(OursKind::Aside, path)
    }

    /// The temporary name of the old object during an exchange in several steps, on file systems that cannot exchange
    /// two names.
    pub fn away(&self, path: &[u8]) -> Vec<u8> {
        self.name(OursKind::Away, path)
    }

    /// The temporary name of a file that is not yet whole, on file systems that have no files without a name.
    pub fn part(&self, path: &[u8]) -> Vec<u8> {
        self.name(OursKind::Part, path)
    }

    /// The temporary name of a file that is about to be removed.
    pub fn gone(&self, path: &[u8]) -> Vec<u8> {
        self.name(OursKind::Gone, path)
    }

    /// All temporary names that something may have for a path.
    pub fn names(&self, path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        OursKind::ALL.into_iter().map(move |kind| self.name(kind, path))
    }

    /// Each name tells the path, not the number of the difference, which changes when a part is applied.
    fn name(&self, kind: OursKind, path: &[u8]) -> Vec<u8> {
        format!("{}{}", self.prefix(kind), Mark::of(path)).into_bytes()
    }

    /// Whether a name is a temporary one of this run.
    pub fn is_ours(&self, name: &[u8]) -> bool {
        self.ours(name).is_some()
    }

    /// What a temporary name stands for, and the difference that it belongs to.
    pub fn ours(&self, name: &[u8]) -> Option<Ours> {
        OursKind::ALL.into_iter().find_map(|kind| {
            let rest = std::str::from_utf8(name.strip_prefix(self.prefix(kind).as_bytes())?).ok()?;
            Some(Ours { kind, mark: rest.parse().ok()? })
        })
    }

    fn prefix(&self, kind: OursKind) -> String {
        format!(".inarch-{}-{}-", kind.word(), self.token)
    }
}

impl Durable {
    pub fn of(seen: &Seen) -> Durable {
        Durable { ino: seen.ino, size: seen.size, mtime: seen.mtime }
    }
}

impl TouchedFile {
    pub(super) fn new(ordinal: u8, path: &[u8], seen: &Seen) -> TouchedFile {
        TouchedFile { ordinal, path: Bytes::new(path), identity: seen.identity() }
    }

    /// The file, if it is one of this disk.
    pub(super) fn of(&self, ordinal: u8) -> Option<(Vec<u8>, Seen)> {
        let path = self.path.to_os_string().into_vec();
        (self.ordinal == ordinal).then_some((path, Seen::from_identity(self.identity)))
    }
}

impl BesideFile {
    pub(super) fn new(ordinal: u8, path: &[u8], useless: Option<&Seen>) -> BesideFile {
        BesideFile { ordinal, path: Bytes::new(path), useless: useless.map(Seen::identity) }
    }

    /// The path, and what it is if nobody needs it; of this disk.
    pub(super) fn of(&self, ordinal: u8) -> Option<(Vec<u8>, Option<Seen>)> {
        let path = self.path.to_os_string().into_vec();
        (self.ordinal == ordinal).then_some((path, self.useless.map(Seen::from_identity)))
    }
}

impl Seen {
    fn identity(&self) -> FileIdentity {
        (self.ino, self.size, self.kind, self.mtime, self.ctime)
    }

    fn from_identity((ino, size, kind, mtime, ctime): FileIdentity) -> Seen {
        Seen { ino, size, kind, mtime, ctime }
    }
}

/// What a temporary name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ours {
    pub kind: OursKind,
    /// Of the difference's path.
    pub mark: Mark,
}

/// Tells a path from others: the first 96 bits of its SHA-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mark([u8; 12]);

impl Mark {
    pub fn of(path: &[u8]) -> Mark {
        let mut mark = [0; 12];
        mark.iter_mut().zip(Sha256::digest(path)).for_each(|(mark, byte)| *mark = byte);
        Mark(mark)
    }
}

impl Display for Mark {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Mark {
    type Err = ();

    fn from_str(text: &str) -> Result<Mark, ()> {
        let mut mark = [0; 12];
        if text.len() != 2 * mark.len() || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(());
        }
        for (at, byte) in mark.iter_mut().enumerate() {
            *byte = text.get(2 * at..2 * at + 2).and_then(|two| u8::from_str_radix(two, 16).ok()).ok_or(())?;
        }
        Ok(Mark(mark))
    }
}

/// The kinds of temporary names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OursKind {
    /// The new object of a path, or the old one after an exchange.
    Aside,
    /// The old object during an exchange in several steps.
    Away,
    /// A file that is not yet whole.
    Part,
    /// A file that is about to be removed, and looked at once more.
    Gone,
}

impl OursKind {
    const ALL: [OursKind; 4] = [OursKind::Aside, OursKind::Away, OursKind::Part, OursKind::Gone];

    fn word(self) -> &'static str {
        match self {
            OursKind::Aside => "new",
            OursKind::Away => "aside",
            OursKind::Part => "part",
            OursKind::Gone => "gone",
        }
    }
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
