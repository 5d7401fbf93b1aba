//! Records which files changed after the tree was scanned.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Mutex;

use inarch_tree::{InodeId, Tree};

/// The most changed files that are named; the others are counted.
const MAX_NAMED: usize = 1000;

/// Why a file's content can no longer be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeReason {
    /// Its name is gone, or a directory on the way was replaced.
    #[error("it is gone")]
    Vanished,
    /// The name now leads through a symlink, out of the tree, or to something that is not a regular file.
    #[error("it was replaced by something that is not a regular file beneath the tree's root")]
    Replaced,
    /// Another inode has the name now.
    #[error("another file took its place")]
    OtherInode,
    /// Its size differs from the scan's.
    #[error("its size changed from {was} to {now} bytes")]
    Size {
        /// Bytes at the scan.
        was: u64,
        /// Bytes now.
        now: u64,
    },
    /// Its mtime differs from the scan's.
    #[error("it was written to")]
    Written,
    /// Its ctime differs from the scan's.
    #[error("its attributes were changed")]
    Attributes,
    /// The host refused to open or read it.
    #[error("it cannot be read: {0}")]
    Unreadable(rustix::io::Errno),
}

/// One changed file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedFile {
    /// Its path within the tree: any bytes but NUL. The `Display` text of [`ChangedFile`] is safe to print.
    pub path: PathBuf,
    /// The first change that was found.
    pub reason: ChangeReason,
}

/// Writes path and reason. The path is escaped, so that no name can move a terminal's cursor or add a line.
impl fmt::Display for ChangedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.as_os_str().as_bytes().escape_ascii(), self.reason)
    }
}

/// The files found changed so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedFiles {
    /// The first thousand, in the order they were found.
    pub named: Vec<ChangedFile>,
    /// How many files changed, named or not.
    pub count: u64,
}

#[derive(Debug, Default)]
struct Record {
    files: ChangedFiles,
    seen: HashSet<InodeId>,
}

/// Collects changed files from several threads; contains each file once.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog {
    record: Mutex<Record>,
}

impl ChangeLog {
    pub(crate) fn add(&self, tree: &Tree, inode: InodeId, reason: ChangeReason) {
        let mut record = self.record.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !record.seen.insert(inode) {
            return;
        }
        record.files.count += 1;
        if record.files.named.len() < MAX_NAMED {
            let path = PathBuf::from(OsString::from_vec(tree.path(inode)));
            record.files.named.push(ChangedFile { path, reason });
        }
    }

    pub(crate) fn snapshot(&self) -> ChangedFiles {
        self.record.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).files.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_prints_as_one_plain_line() {
        let path = PathBuf::from(OsString::from_vec(b"d/\x1b[2Jevil\nname\xff".to_vec()));
        let changed = ChangedFile { path, reason: ChangeReason::Written };
        assert_eq!(changed.to_string(), r"d/\x1b[2Jevil\nname\xff: it was written to");
    }
}
