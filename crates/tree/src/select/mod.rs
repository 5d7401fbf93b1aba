//! Selects what to take of a tree, and maps owners, times and labels: a pure function from a tree to a tree.
//!
//! A [`Selection`] means the same for every source. A scan of a directory applies a part of it while it walks
//! ([`Selection::scan_options`]), which saves reading what is excluded. [`select`] applies the rest
//! ([`Selection::after_scan`]), and for archives and images all of it, to the source's tree.

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
pub use transform::{ReadFile, Selected, beneath, select, with_directories, without};

use std::sync::Arc;

use crate::scan::ScanOptions;

/// What to take of a source, and how to map its owners, times and labels. By default everything, unchanged.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Which names.
    pub filter: Filter,
    /// Whether a directory's scan descends into mounts. Archives and images have none.
    pub cross: bool,
    /// Directories that a directory's scan includes empty, by their path from the scanned one, without a leading slash.
    pub leave_out: Vec<Vec<u8>>,
    /// How owners are mapped.
    pub owners: Owners,
    /// Nothing but these paths, and the directories that they are in.
    pub only: Option<Arc<PathList>>,
    /// Seconds since 1970: later times become this time.
    pub epoch: Option<i64>,
    /// SELinux contexts, set as `security.selinux`. For a file with several names the first name included counts.
    pub contexts: Option<Arc<FileContexts>>,
    /// Whether to take what can be read of a damaged archive or image; otherwise damage is an error.
    pub salvage: bool,
}

impl Selection {
    /// The part that a scan applies while it walks.
    pub fn scan_options(&self) -> ScanOptions {
        ScanOptions {
            cross: self.cross,
            leave_out: self.leave_out.clone(),
            filter: self.filter.clone(),
            owner: self.owners.of_scan(),
            ..ScanOptions::default()
        }
    }

    /// The part that remains for a tree that was scanned with [`Selection::scan_options`].
    pub fn after_scan(&self) -> Selection {
        Selection {
            filter: Filter::default(),
            cross: false,
            leave_out: Vec::new(),
            owners: self.owners.after_scan(),
            ..self.clone()
        }
    }

    /// Whether nothing remains: [`select`] would return the same tree.
    pub fn is_all(&self) -> bool {
        self.filter.is_empty()
            && self.owners == Owners::default()
            && self.only.is_none()
            && self.epoch.is_none()
            && self.contexts.is_none()
    }
}
