//! `diff`: compares the trees of two sources: disk images, archives, directories.
//!
//! 1. Both are opened, and their names read, as for any other use of a source.
//! 2. A confined thread walks both trees. Regular files of one size are read and compared; holes that both have are not.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use inarch_confine::Parse;
use inarch_kept::change::ChangeReport;
use inarch_kept::same::{Side, have_same_bytes};
use inarch_lifecycle::{PathError, counted, shown};
use inarch_source::{OpenError, Opened, Source};
use inarch_tree::compare::{Aspects, ChangeKind, Lineage, TooDeep, changes, differences};
use inarch_tree::select::Selection;
use inarch_tree::{InodeId, Tree};

use super::unread;

/// Why two sources cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DifferenceError {
    /// One cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// One is out of reach.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The paths that differ take too much memory.
    #[error("they cannot be compared: {0}")]
    Deep(TooDeep),
}

/// What to compare.
#[derive(Clone, Debug)]
pub struct DifferenceRequest {
    /// The older state.
    pub old: Source,
    /// The newer state.
    pub new: Source,
    /// Read what can be read of damaged images.
    pub salvage: bool,
    /// What does not count: the aspects that are set.
    pub ignored: Aspects,
}

/// How two sources differ.
#[derive(Clone, Debug, Default)]
pub struct Differences {
    /// Every difference, in the order of paths, from `/`.
    pub changes: Vec<ChangeReport>,
    /// Lines about the sources that the user should read.
    pub notes: Vec<String>,
    /// Files that cannot be read and so count as different, a line each.
    pub unread: Vec<String>,
}

/// Compares the trees of two sources, path by path. A renamed file is one that was removed and one that was added, since two disks have
/// nothing in common that would tell more.
///
/// # Errors
/// See [`DifferenceError`].
pub fn diff(request: &DifferenceRequest) -> Result<Differences, DifferenceError> {
    let selection = Selection { salvage: request.salvage, ..Selection::default() };
    let old = inarch_source::open(&request.old, &selection)?;
    let new = inarch_source::open(&request.new, &selection)?;
    let mut parse = Parse::new();
    // The files of a directory are opened when they are read.
    for source in [&request.old, &request.new] {
        if let Source::Directory(path) = source {
            parse = parse.reading(path).map_err(|error| PathError::new(path, "cannot be read", error))?;
        }
    }
    let left_out = [unread(&old), unread(&new)];
    let paths: HashSet<&[u8]> = left_out.iter().flat_map(|(_, paths)| paths).copied().collect();
    let compared = parse.run(|_| compare((&old, &new), &paths, request.ignored), || {}).map_err(OpenError::NoThread)?;
    let Compared { changes, mut unread, within_a_second } = compared.map_err(DifferenceError::Deep)?;
    for (source, (lines, _)) in [&request.old, &request.new].into_iter().zip(&left_out) {
        unread.extend(lines.iter().map(|line| format!("{source}: {line}; it is not compared")));
    }
    let notes = [(&request.old, old.notes), (&request.new, new.notes)];
    let notes =
        notes.into_iter().flat_map(|(source, notes)| notes.into_iter().map(move |note| format!("{source}: {note}")));
    let uncounted = (within_a_second > 0).then(|| {
        let times = counted(within_a_second, "time differs", "times differ");
        format!("{times} by less than a second, which does not count: one side has whole seconds only")
    });
    Ok(Differences { changes, notes: notes.chain(uncounted).collect(), unread })
}

/// What two trees have of each other.
struct Compared {
    changes: Vec<ChangeReport>,
    unread: Vec<String>,
    /// How many times differ by a fraction of a second that one side cannot have.
    within_a_second: u64,
}

/// Compares two trees, but for the paths that could not be read in one of them, and what is below these.
fn compare((old, new): (&Opened, &Opened), left_out: &HashSet<&[u8]>, ignored: Aspects) -> Result<Compared, TooDeep> {
    let strangers = Strangers { old, new, read: RefCell::default(), unread: RefCell::default() };
    let mut found = differences(&old.tree, &new.tree, &strangers)?;
    found.retain(|difference| !is_within(&difference.path, left_out));
    let whole_seconds = has_whole_seconds(&old.tree) || has_whole_seconds(&new.tree);
    let mut within_a_second = 0_u64;
    found.retain_mut(|difference| {
        let (Some(was), Some(is)) = (difference.old, difference.new) else { return true };
        let seconds = |tree: &Tree, inode| tree.inode(inode).mtime().seconds;
        let is_same_second = seconds(&old.tree, was) == seconds(&new.tree, is);
        let is_uncounted = difference.aspects.mtime && !ignored.mtime && whole_seconds && is_same_second;
        within_a_second += u64::from(is_uncounted);
        let ignored = Aspects { mtime: ignored.mtime || is_uncounted, ..ignored };
        difference.aspects = difference.aspects.without(ignored);
        difference.aspects.any()
    });
    let mut changes = changes(&old.tree, &new.tree, &found, &strangers);
    // A link that both trees have is not a new one.
    changes.iter_mut().filter(|change| change.kind != ChangeKind::Added).for_each(|change| change.link_to = None);
    let changes = changes.iter().map(|change| ChangeReport::new(change, (&old.tree, &new.tree), from_root)).collect();
    Ok(Compared { changes, unread: strangers.unread.into_inner(), within_a_second })
}

/// Whether a path is one of these, or below one of them.
fn is_within(path: &[u8], tops: &HashSet<&[u8]>) -> bool {
    let above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| path.get(..at));
    !tops.is_empty() && above.chain([Some(path)]).flatten().any(|top| tops.contains(top))
}

/// Whether no time of a tree has a fraction, as where its format has none (squashfs, a plain tar).
fn has_whole_seconds(tree: &Tree) -> bool {
    tree.inodes().all(|(_, inode)| inode.mtime().nanoseconds == 0)
}

fn from_root(path: &[u8]) -> PathBuf {
    Path::new("/").join(OsStr::from_bytes(path))
}

/// Two trees; only their content is known.
struct Strangers<'a> {
    old: &'a Opened,
    new: &'a Opened,
    /// What was found of files with several names.
    read: RefCell<HashMap<(InodeId, InodeId), bool>>,
    unread: RefCell<Vec<String>>,
}

impl Lineage for Strangers<'_> {
    fn origin(&self, _: InodeId) -> Option<InodeId> {
        None
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        if let Some(known) = self.read.borrow().get(&(old, new)) {
            return *known;
        }
        let same = self.read_both(old, new);
        let is_linked = |opened: &Opened, inode| opened.tree.inode(inode).links() > 1;
        if is_linked(self.old, old) && is_linked(self.new, new) {
            self.read.borrow_mut().insert((old, new), same);
        }
        same
    }
}

impl Strangers<'_> {
    fn read_both(&self, old: InodeId, new: InodeId) -> bool {
        let was = Side { content: &*self.old.content, tree: &self.old.tree, inode: old };
        let is = Side { content: &*self.new.content, tree: &self.new.tree, inode: new };
        have_same_bytes(was, is, &[]).unwrap_or_else(|error| {
            let path = from_root(&self.new.tree.path(new));
            self.unread
                .borrow_mut()
                .push(format!("{}: cannot be read, and counts as different: {error}", shown(&path)));
            false
        })
    }
}
