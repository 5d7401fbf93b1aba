//! The guest's side of a kept run, for `diff` and `apply`.

use std::collections::HashSet;
use std::sync::Arc;

use inarch_block::{Content, read_content};
use inarch_source::Opened;
use inarch_tree::compare::{Difference, Lineage};
use inarch_tree::layer::{Conflict, Origin};
use inarch_tree::{FileType, InodeId, Timestamp, Tree};

use super::files::DiskFiles;
use super::fold::keep_only;
use super::layered::{Layered, LayeredContent, LayeredLineage};
use super::{KeptRun, KeptTree};
use crate::KeptError;

/// What a kept disk was and what it is.
pub(super) struct KeptDisk {
    /// The host's tree when the last command of the run began.
    pub base: Arc<Tree>,
    /// The content of its files, as long as the host's are unchanged.
    pub base_content: Arc<dyn Content>,
    /// The guest's tree.
    pub guest: Arc<Tree>,
    /// What its files hold.
    pub content: Arc<dyn Content>,
    /// What of the guest's file system could not be read, a line each.
    pub notes: Vec<String>,
    files: DiskFiles,
    layered: Arc<Layered>,
    lineage: LayeredLineage,
}

impl KeptDisk {
    /// Opens the disk of `tree`, which must be folded; `None` if no guest ever had it.
    pub fn open(run: &KeptRun, tree: &KeptTree) -> Result<Option<KeptDisk>, KeptError> {
        let files = run.files(tree.ordinal);
        if tree.read_only {
            return Ok(None);
        }
        let Some(layer) = files.load_layer()?.filter(|layer| !layer.is_empty()) else { return Ok(None) };
        let Opened { tree: base, content: base_content, .. } = Opened::at(&tree.source(), files.load_base()?)?;
        let layered = Arc::new(Layered::new(&base, layer)?);
        let content: Arc<dyn Content> = Arc::new(LayeredContent::new(&layered, &base_content, &files)?);
        let lineage = LayeredLineage {
            layered: Arc::clone(&layered),
            host: Arc::clone(&base_content),
            content: Arc::clone(&content),
        };
        let guest = Arc::clone(&layered.tree);
        Ok(Some(KeptDisk { base, base_content, guest, content, notes: Vec::new(), files, layered, lineage }))
    }

    /// The guest's files that share bytes with another file or with themselves: its file system was damaged, or made
    /// to fill whatever it is copied to.
    pub fn overlapping(&self) -> HashSet<InodeId> {
        let shared = self.layered.layer.extents().overlapping();
        let is_shared = |id: &InodeId| match self.layered.owner(*id) {
            Some(Origin::Upper(upper)) => shared.contains(&upper),
            _ => false,
        };
        self.guest.inodes().map(|(id, _)| id).filter(is_shared).collect()
    }

    /// Paths that both host and guest had changed when the last command of the run began.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.layered.conflicts
    }

    /// Whether the guest's file at a path cannot be read any more: a part of it was in a file of the host that changed.
    pub fn is_lost(&self, path: &[u8]) -> bool {
        self.guest.lookup(path).is_some_and(|id| {
            let unreadable = |at: &u64| read_content(&*self.content, id, *at, &mut [0]).is_err();
            self.guest.inode(id).file_type() == FileType::Regular && self.lineage.lent(id).iter().any(unreadable)
        })
    }

    /// Whether a difference is none of the run's: the guest has there what the host has.
    pub fn is_of_host(&self, difference: &Difference) -> bool {
        let lower = |new: InodeId| match self.layered.owner(new) {
            Some(Origin::Lower(lower)) => Some(lower),
            _ => None,
        };
        difference.new.and_then(lower).is_some_and(|lower| Some(lower) == difference.old)
    }

    /// Drops all changes of the run except `kept`: the rest is durably on the host.
    pub fn keep_only(&self, kept: &[Difference]) -> Result<(), KeptError> {
        keep_only(&self.files, &self.layered, kept)
    }

    /// The paths of `conflicts`.
    pub fn conflicting(&self) -> HashSet<&[u8]> {
        self.layered.conflicts.iter().map(|conflict| &conflict.path[..]).collect()
    }
}

impl Lineage for KeptDisk {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        self.lineage.origin(new)
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        self.lineage.same_content(old, new)
    }

    fn lenders(&self, new: InodeId) -> Vec<InodeId> {
        self.lineage.lenders(new)
    }

    fn as_stored(&self, time: Timestamp) -> Timestamp {
        self.lineage.as_stored(time)
    }
}
