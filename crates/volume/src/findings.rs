//! Collects the damage found in an image that affects only part of it.

use inarch_tree::{InodeId, Tree};

/// The most findings that are reported singly.
const TOLD: usize = 1000;
/// The most bytes of their paths.
const TOLD_BYTES: usize = 1 << 20;

/// Part of a node that was left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Whether it is damage. Encrypted content cannot be read, but is not damaged.
    pub is_damage: bool,
    /// Follows the name of the part concerned and a colon.
    pub reason: String,
}

impl Loss {
    /// A loss by damage.
    pub fn damage(reason: impl Into<String>) -> Loss {
        Loss { is_damage: true, reason: reason.into() }
    }

    /// A loss of something that is sound but unsupported.
    pub fn sound(reason: impl Into<String>) -> Loss {
        Loss { is_damage: false, reason: reason.into() }
    }
}

/// Something that was left out or differs from what it seems.
#[derive(Debug)]
struct Finding {
    /// The directory that contains it, or the directory itself.
    directory: InodeId,
    /// Its name there; empty for the directory itself.
    name: Box<[u8]>,
    loss: Loss,
}

/// All findings of an image; the first ones are stored.
#[derive(Debug, Default)]
pub struct Findings {
    general: Vec<String>,
    list: Vec<Finding>,
    more: u64,
    /// How many of them are damage.
    damaged: u64,
}

impl Findings {
    /// Records a note about the whole file system.
    pub fn push_general(&mut self, note: String) {
        self.general.push(note);
    }

    /// Records a finding about an entry of a directory, or about the directory if `name` is empty.
    pub fn push(&mut self, directory: InodeId, name: &[u8], loss: Loss) {
        self.damaged += u64::from(loss.is_damage);
        // The first damage is always stored, because a refusal names it.
        if self.list.len() < TOLD || (loss.is_damage && self.damaged == 1) {
            self.list.push(Finding { directory, name: name.into(), loss });
        } else {
            self.more += 1;
        }
    }

    /// The first damage, and how much more there is; `None` if there is none.
    pub fn damage(&self, tree: &Tree) -> Option<String> {
        let first = self.list.iter().find(|finding| finding.loss.is_damage)?;
        let line = line(first, tree).1;
        Some(match self.damaged {
            1 => format!("it is damaged: {line}"),
            all => format!("it is damaged in {all} places; the first: {line}"),
        })
    }

    /// One line for each. Paths can have any length, so the lines are bounded in bytes too.
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

/// A finding as a line, and the size of its path.
fn line(finding: &Finding, tree: &Tree) -> (usize, String) {
    let mut path = tree.path(finding.directory);
    if !path.is_empty() && !finding.name.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(&finding.name);
    let path = String::from_utf8_lossy(&path);
    (path.len(), format!("{:?}: {}", if path.is_empty() { "/" } else { &path }, finding.loss.reason))
}
