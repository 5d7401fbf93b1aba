//! Counts how much each file changed.

use std::time::Duration;

use inarch_tree::compare::{Change, ChangeKind};
use inarch_tree::{FileType, InodeId, Tree};
use serde::Serialize;
use similar::{ChangeTag, TextDiff};

use super::diff::{RunDiff, TreeDiff};
use super::side::Side;

/// A larger file is not compared line by line.
pub(super) const TEXT_MAX: u64 = 8 << 20;
/// After this long the shortest difference is no longer looked for, only some.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// How much a file changed.
#[derive(Clone, Debug, Serialize)]
pub struct FileStat {
    /// The path in the guest.
    pub path: String,
    /// Lines that are new; nothing where the file is no text.
    pub added: Option<u64>,
    /// Removed lines; `None` if the file is not text.
    pub removed: Option<u64>,
    /// Bytes before.
    pub old_size: u64,
    /// Bytes now.
    pub size: u64,
}

impl RunDiff {
    /// The extent of change of each file whose content changed.
    pub fn stat(&self) -> Vec<FileStat> {
        let of_tree = |tree: &TreeDiff| -> Vec<FileStat> {
            let changed = tree.changes.iter().filter(|change| has_content(tree, change));
            changed.filter(|change| differs(change)).map(|change| tree.stat(change)).collect()
        };
        self.trees().iter().flat_map(of_tree).collect()
    }
}

/// Whether a change is of a file or a symlink.
fn has_content(tree: &TreeDiff, change: &Change) -> bool {
    let has = |tree: &Tree, id: Option<InodeId>| {
        id.is_some_and(|id| matches!(tree.inode(id).file_type(), FileType::Regular | FileType::Symlink))
    };
    has(&tree.disk.base, change.old) || has(&tree.disk.guest, change.new)
}

fn differs(change: &Change) -> bool {
    matches!(change.kind, ChangeKind::Added | ChangeKind::Deleted) || change.aspects.beyond_attributes()
}

impl TreeDiff {
    fn stat(&self, change: &Change) -> FileStat {
        let disk = &self.disk;
        let old = Side::read((&disk.base, &*disk.base_content), change.old, TEXT_MAX);
        let new = Side::read((&disk.guest, &*disk.content), change.new, TEXT_MAX);
        let lines = old.text().zip(new.text()).map(|(old, new)| {
            let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
            let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count() as u64;
            (count(ChangeTag::Insert), count(ChangeTag::Delete))
        });
        let size = |tree: &Tree, id: Option<InodeId>| id.map_or(0, |id| tree.inode(id).size());
        FileStat {
            path: self.in_guest(&change.path).to_string_lossy().into_owned(),
            added: lines.map(|(added, _)| added),
            removed: lines.map(|(_, removed)| removed),
            old_size: size(&disk.base, change.old),
            size: size(&disk.guest, change.new),
        }
    }
}
