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

/// A part of an inode that is left out.
pub(super) struct Loss {
    /// Whether something is wrong with it.
    pub(super) is_damage: bool,
    pub(super) reason: String,
}

/// Something that was left out, or is not what it seems.
struct Finding {
    /// Whether something is wrong with it. What is encrypted cannot be read, and nothing is wrong with it.
    is_damage: bool,
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
    /// How much of all that is damage.
    damaged: u64,
}

impl Findings {
    /// Tells something of the whole file system.
    pub(super) fn push_general(&mut self, note: String) {
        self.general.push(note);
    }

    /// Tells of damage to an entry of a directory, or to the directory where `name` is empty.
    pub(super) fn push(&mut self, directory: InodeId, name: &[u8], reason: String) {
        self.damaged += 1;
        self.add(Finding { is_damage: true, directory, name: name.into(), reason });
    }

    /// The same of what is not taken although it is sound.
    pub(super) fn push_sound(&mut self, directory: InodeId, name: &[u8], reason: String) {
        self.add(Finding { is_damage: false, directory, name: name.into(), reason });
    }

    /// Tells of a part of an entry that is left out.
    pub(super) fn push_loss(&mut self, directory: InodeId, name: &[u8], loss: Loss) {
        match loss.is_damage {
            true => self.push(directory, name, loss.reason),
            false => self.push_sound(directory, name, loss.reason),
        }
    }

    fn add(&mut self, finding: Finding) {
        // The first damage is kept in any case: it is what a refusal names.
        if self.list.len() < TOLD || (finding.is_damage && self.damaged == 1) {
            self.list.push(finding);
        } else {
            self.more += 1;
        }
    }

    /// The first damage, and how much more there is.
    pub(super) fn damage(&self, tree: &Tree) -> Option<String> {
        let first = self.list.iter().find(|finding| finding.is_damage)?;
        let line = line(first, tree).1;
        Some(match self.damaged {
            1 => format!("it is damaged: {line}"),
            all => format!("it is damaged in {all} places; the first: {line}"),
        })
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
            let (length, line) = line(&finding, tree);
            notes.push(line);
            bytes += length;
        }
        if more > 0 {
            notes.push(format!("{more} more findings like these"));
        }
        notes
    }
}

/// A finding as a line, and the bytes of its path.
fn line(finding: &Finding, tree: &Tree) -> (usize, String) {
    let mut path = tree.path(finding.directory);
    if !path.is_empty() && !finding.name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(&finding.name);
    let path = String::from_utf8_lossy(&path);
    (path.len(), format!("{:?} {}", if path.is_empty() { "/" } else { &path }, finding.reason))
}
