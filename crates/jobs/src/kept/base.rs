//! The tree that a kept overlay stands on, as it was when the run began.

use std::fs;
use std::path::{Path, PathBuf};

use inarch_tree::compare::{Difference, Lineage, differences};
use inarch_tree::{FileType, InodeId, Tree};

use super::store::replace;
use crate::JobError;
use crate::notes::shown;

/// The most differences that a refusal names; the rest are counted.
const NAMED: usize = 8;

/// The file that holds a tree as it was.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    pub file: PathBuf,
    /// The run that it belongs to.
    pub run: String,
    /// Whether the run goes on over it even where the host's tree has changed since then.
    pub stale: bool,
}

impl Base {
    /// Whether the tree is taken as it was, with the overlay at `overlay` on it, whatever the host's tree is now.
    pub fn is_taken(&self, overlay: &Path) -> bool {
        self.stale && self.file.exists() && overlay.exists()
    }

    /// Keeps `tree`, in the place of whatever was kept.
    pub fn keep(&self, tree: &Tree) -> Result<(), JobError> {
        replace(&self.file, &tree.store())
            .map_err(|error| JobError::path(&self.file, "cannot keep the tree of the run", error))
    }

    /// The tree as it was.
    pub fn load(&self) -> Result<Tree, JobError> {
        let bytes = fs::read(&self.file)
            .map_err(|error| JobError::path(&self.file, "cannot read the tree of the kept run", error))?;
        Tree::load(&bytes).map_err(|error| JobError::Other(format!("{}: {error}", shown(&self.file))))
    }

    /// Says in what the tree of `source`, which is `now`, is no longer the one of the run.
    pub fn refusal(&self, source: &Path, now: &Tree) -> JobError {
        let was = match self.load() {
            Ok(was) => was,
            Err(error) => return error,
        };
        let found = differences(&was, now, &OnHost { was: &was, now });
        JobError::Other(format!(
            "{} is not what it was when the kept run '{}' began{}; bring it back, go on over what \
             it was with --stale, or inarch discard {}",
            shown(source),
            self.run,
            told(&found),
            self.run
        ))
    }
}

/// The differences in a few words: how many there are of each kind, and the first ones.
fn told(found: &[Difference]) -> String {
    if found.is_empty() {
        // Times of a change of attributes are all that differs, or another version of this program laid it out.
        return String::new();
    }
    let kind = |difference: &Difference| match (difference.old, difference.new) {
        (None, _) => "added",
        (_, None) => "removed",
        _ => "changed",
    };
    let counts: Vec<String> = ["added", "removed", "changed"]
        .into_iter()
        .map(|name| (name, found.iter().filter(|difference| kind(difference) == name).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let name = |path: &[u8]| {
        let path = if path.is_empty() { b"." } else { path };
        shown(Path::new(std::ffi::OsStr::new(&*String::from_utf8_lossy(path))))
    };
    let named: Vec<String> =
        found.iter().take(NAMED).map(|difference| format!("{} {}", kind(difference), name(&difference.path))).collect();
    let rest = if found.len() > NAMED { format!(", and {} more", found.len() - NAMED) } else { String::new() };
    format!(" ({}): {}{rest}", counts.join(", "), named.join(", "))
}

/// Two scans of one directory: a file is the same as long as nothing of it changed.
struct OnHost<'a> {
    was: &'a Tree,
    now: &'a Tree,
}

impl OnHost<'_> {
    fn is_the_same(&self, old: InodeId, new: InodeId) -> bool {
        let (was, is) = (self.was.inode(old), self.now.inode(new));
        was.source_ino() == is.source_ino() && was.mtime() == is.mtime() && was.ctime() == is.ctime()
    }
}

impl Lineage for OnHost<'_> {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        // Only asked whether a directory's names are the same.
        let path = self.now.path(new);
        let is = self.now.inode(new);
        let same = |old: &InodeId| {
            let was = self.was.inode(*old);
            was.source_ino() == is.source_ino() && was.file_type() == is.file_type()
        };
        self.was.lookup(&path).filter(same)
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        self.was.inode(old).file_type() == FileType::Regular && self.is_the_same(old, new)
    }
}
