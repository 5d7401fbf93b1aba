//! What of a source is taken, and as whose: a pure transformation from a tree to a tree.
//!
//! A [`Selection`] means the same for every source. A scan of a directory can do a part of it while it walks
//! ([`Selection::scan_options`]), which spares it what is left out; the rest ([`Selection::after_scan`]), and for
//! archives and images all of it, is done by [`select`] on the tree that the source gave.

mod contexts;
mod files;
mod filter;
mod only;
mod owner;
mod transform;

pub use contexts::{ContextsError, FileContexts};
pub use files::files_below;
pub use filter::{Filter, FilterBuilder, FilterError};
pub(crate) use filter::{IGNORE_FILE_MAX, IgnoreLevel};
pub use only::PathList;
pub use owner::{IdRange, IdRangeError, OwnerMap, OwnerMapError, Owners};
pub use transform::{ReadFile, Selected, select, with_directories};

use std::sync::Arc;

use crate::scan::ScanOptions;

/// What of a source is taken, and what becomes of its owners, times and labels. By default everything as it is.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Which names.
    pub filter: Filter,
    /// Whether a directory's scan goes on into what is mounted below it. Archives and images have nothing of the kind.
    pub cross: bool,
    /// Directories of which a directory's scan takes nothing but the directory itself, by their path from the scanned
    /// one, without a leading slash.
    pub leave_out: Vec<Vec<u8>>,
    /// Who owns it.
    pub owners: Owners,
    /// Nothing but these paths, and the directories that they are in.
    pub only: Option<Arc<PathList>>,
    /// Seconds since 1970: what is younger becomes as old as this.
    pub epoch: Option<i64>,
    /// The security contexts of SELinux that it gets as `security.selinux`; of a file with several names, the first one
    /// taken counts.
    pub contexts: Option<Arc<FileContexts>>,
    /// Of an archive or image that is damaged, what can be read; without, damage is an error.
    pub salvage: bool,
}

impl Selection {
    /// The part of it that a scan does while it walks.
    pub fn scan_options(&self) -> ScanOptions {
        ScanOptions {
            cross: self.cross,
            leave_out: self.leave_out.clone(),
            filter: self.filter.clone(),
            owner: self.owners.of_scan(),
            ..ScanOptions::default()
        }
    }

    /// What is left to be done for a tree that was scanned with [`Selection::scan_options`].
    pub fn after_scan(&self) -> Selection {
        Selection {
            filter: Filter::default(),
            cross: false,
            leave_out: Vec::new(),
            owners: self.owners.after_scan(),
            ..self.clone()
        }
    }

    /// Whether there is nothing to be done: [`select`] would give the same tree.
    pub fn is_all(&self) -> bool {
        self.filter.is_empty()
            && self.owners == Owners::default()
            && self.only.is_none()
            && self.epoch.is_none()
            && self.contexts.is_none()
    }
}
