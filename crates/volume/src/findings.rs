//! What is wrong with an image: what only costs a part of it.

use inarch_tree::{InodeId, Tree};

/// Findings that are told one by one.
const TOLD: usize = 1000;
/// Bytes of their paths.
const TOLD_BYTES: usize = 1 << 20;

/// A part of a node that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Whether something is wrong with it. What is encrypted cannot be read, and nothing is wrong with it.
    pub is_damage: bool,
    /// Goes on after the name of what it is about and a colon.
    pub reason: String,
}

impl Loss {
    /// Of something that is wrong.
    pub fn damage(reason: impl Into<String>) -> Loss {
        Loss { is_damage: true, reason: reason.into() }
    }

    /// Of something that is sound, and cannot be had.
    pub fn sound(reason: impl Into<String>) -> Loss {
        Loss { is_damage: false, reason: reason.into() }
    }
}

/// Something that was left out, or is not what it seems.
#[derive(Debug)]
struct Finding {
    /// The directory it is in, or the directory itself.
    directory: InodeId,
    /// Its name there; empty for the directory itself.
    name: Box<[u8]>,
    loss: Loss,
}

/// All findings of an image, of which the first are kept.
#[derive(Debug, Default)]
pub struct Findings {
    general: Vec<String>,
    list: Vec<Finding>,
    more: u64,
    /// How much of all that is damage.
    damaged: u64,
}

impl Findings {
    /// Tells something of the whole file system.
    pub fn push_general(&mut self, note: String) {
        self.general.push(note);
    }

    /// Tells of an entry of a directory, or of the directory where `name` is empty.
    pub fn push(&mut self, directory: InodeId, name: &[u8], loss: Loss) {
        self.damaged += u64::from(loss.is_damage);
        // The first damage is kept in any case: it is what a refusal names.
        if self.list.len() < TOLD || (loss.is_damage && self.damaged == 1) {
            self.list.push(Finding { directory, name: name.into(), loss });
        } else {
            self.more += 1;
        }
    }

    /// The first damage, and how much more there is; none if there is none.
    pub fn damage(&self, tree: &Tree) -> Option<String> {
        let first = self.list.iter().find(|finding| finding.loss.is_damage)?;
        let line = line(first, tree).1;
        Some(match self.damaged {
            1 => format!("it is damaged: {line}"),
            all => format!("it is damaged in {all} places; the first: {line}"),
        })
    }

    /// A line for each. Names may make paths of any length, so what is told is bounded in bytes, too.
    pub fn into_notes(self, tree: &Tree) -> Vec<String> {
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
    (path.len(), format!("{:?}: {}", if path.is_empty() { "/" } else { &path }, finding.loss.reason))
}
