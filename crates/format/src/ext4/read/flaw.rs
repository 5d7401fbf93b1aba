//! What is wrong with an image: what ends the reading of it, and what only costs a part of it.

use inarch_tree::{InodeId, Tree};

use crate::ReadError;

/// Findings that are told one by one.
const TOLD: usize = 1000;
/// Bytes of their paths.
const TOLD_BYTES: usize = 1 << 20;

/// Why a structure could not be read.
#[derive(Debug)]
pub(super) enum Flaw {
    /// The host failed to read the image: nothing can be said any more.
    Host(ReadError),
    /// It makes no sense, and what depends on it is left out. The text goes on after the name of what it belongs to.
    Bad(String),
}

impl From<ReadError> for Flaw {
    fn from(error: ReadError) -> Flaw {
        Flaw::Host(error)
    }
}

/// The error of an image that cannot be read at all.
pub(super) fn unreadable(reason: impl Into<String>) -> ReadError {
    ReadError::Format { format: "ext4", reason: reason.into() }
}

/// Separates what ends the reading from what is only told.
pub(super) fn tolerate<T>(result: Result<T, Flaw>) -> Result<Result<T, String>, ReadError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Flaw::Bad(reason)) => Ok(Err(reason)),
        Err(Flaw::Host(error)) => Err(error),
    }
}

/// Something that was left out, or is not what it seems.
struct Finding {
    /// The directory it is in, or the directory itself.
    directory: InodeId,
    /// Its name there; empty for the directory itself.
    name: Box<[u8]>,
    reason: String,
}

/// All findings of an image, of which the first are kept.
#[derive(Default)]
pub(super) struct Findings {
    general: Vec<String>,
    list: Vec<Finding>,
    more: u64,
}

impl Findings {
    /// Tells something of the whole file system.
    pub(super) fn push_general(&mut self, note: String) {
        self.general.push(note);
    }

    /// Tells something of an entry of a directory, or of the directory where `name` is empty.
    pub(super) fn push(&mut self, directory: InodeId, name: &[u8], reason: String) {
        if self.list.len() < TOLD {
            self.list.push(Finding { directory, name: name.into(), reason });
        } else {
            self.more += 1;
        }
    }

    /// A line for each. Names may make paths of any length, so what is told is bounded in bytes, too.
    pub(super) fn into_notes(self, tree: &Tree) -> Vec<String> {
        let mut notes = self.general;
        let (mut bytes, mut more) = (0, self.more);
        for finding in self.list {
            if bytes > TOLD_BYTES {
                more += 1;
                continue;
            }
            let mut path = tree.path(finding.directory);
            if !path.is_empty() && !finding.name.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&finding.name);
            let path = String::from_utf8_lossy(&path);
            notes.push(format!("{:?} {}", if path.is_empty() { "/" } else { &path }, finding.reason));
            bytes += path.len();
        }
        if more > 0 {
            notes.push(format!("{more} more findings like these"));
        }
        notes
    }
}
