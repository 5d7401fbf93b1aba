//! `diff`: finds what the guest of a kept run changed in its trees.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use inarch_lifecycle::shown;
use inarch_tree::compare::{Change, Difference, changes, differences};
use inarch_tree::layer::{Below, Conflict};

use super::beside::still_beside;
use super::fold::fold_but;
use super::fold_note::FoldNote;
use super::guest::KeptDisk;
use super::{KeptRun, KeptTree, Record, Store};
use crate::KeptError;
use crate::change::ChangeReport;

/// What is said of a file of which the run has only a part: the rest was in a file of this machine.
pub(super) const LOST: &str = ", and the run's version is lost with it: it was made of this machine's old file";

/// What the guest of a kept run made of its trees.
pub struct RunDiff {
    trees: Vec<TreeDiff>,
    /// Notes on file systems that were folded just now.
    folded: Vec<FoldNote>,
    /// The paths of the guest that were asked for; all where there are none.
    asked: Vec<PathBuf>,
    /// The trees of the run, including unchanged ones.
    all: Vec<KeptTree>,
    /// Those that no longer exist on this machine.
    gone: Vec<KeptTree>,
    /// What applies of the run began or left, a line each.
    unfinished: Vec<String>,
}

/// The changes in one tree.
pub(super) struct TreeDiff {
    pub tree: KeptTree,
    pub disk: KeptDisk,
    /// Every path that differs, except what the run itself created.
    pub differences: Vec<Difference>,
    /// The same as changes: added, changed, deleted, renamed.
    pub changes: Vec<Change>,
}

/// Compares what the guest of the kept run `name` left with what it was given.
pub fn diff(name: &str) -> Result<RunDiff, KeptError> {
    let run = Store::of_user()?.open(name)?;
    let record = run.record.as_ref().ok_or_else(|| KeptError::NoRecord(name.to_owned()))?;
    // What was applied is what the host has.
    if record.applied.is_some() {
        let all = record.trees.clone();
        let (trees, folded, asked, gone, unfinished) = Default::default();
        Ok(RunDiff { trees, folded, asked, all, gone, unfinished })
    } else {
        RunDiff::of(&run, record)
    }
}

impl RunDiff {
    pub(super) fn of(run: &KeptRun, record: &Record) -> Result<RunDiff, KeptError> {
        let gone: Vec<KeptTree> =
            record.trees.iter().filter(|tree| !tree.read_only && tree.is_gone()).cloned().collect();
        let folded = fold_but(run, &gone)?;
        let mut trees = Vec::new();
        for tree in record.trees.iter().filter(|tree| !gone.contains(tree)) {
            let Some(disk) = KeptDisk::open(run, tree)? else { continue };
            trees.push(TreeDiff::new(tree.clone(), disk)?);
        }
        let (asked, all, unfinished) = (Vec::new(), record.trees.clone(), unfinished(run.name(), record));
        Ok(RunDiff { trees, folded, asked, all, gone, unfinished })
    }

    /// What applies of the run began and have not ended, and what they left beside the places of files; a line each.
    pub fn unfinished(&self) -> &[String] {
        &self.unfinished
    }

    /// The tree that a path of the guest is in, if this machine does not have that tree any more.
    fn gone_around(&self, path: &Path) -> Option<&KeptTree> {
        let around = self.all.iter().filter(|tree| path.starts_with(tree.destination()));
        let nearest = around.max_by_key(|tree| tree.destination().components().count())?;
        self.gone.iter().find(|gone| *gone == nearest)
    }

    /// Refuses a path of the guest in a tree that no longer exists on this machine.
    pub(super) fn refuse_gone(&self, path: &Path) -> Result<(), KeptError> {
        let gone = self.gone_around(path);
        gone.map_or(Ok(()), |tree| Err(KeptError::Gone { path: path.to_owned(), tree: tree.source() }))
    }

    /// Keeps only changes at these guest paths and below; all changes if there are none.
    ///
    /// # Errors
    /// A path exists neither in the guest nor on the host: it may be misspelt.
    pub fn only(mut self, paths: Vec<PathBuf>) -> Result<RunDiff, KeptError> {
        paths.iter().try_for_each(|path| self.refuse_gone(path))?;
        if let Some(path) = paths.iter().find(|path| !self.is_known(path)) {
            let reason = "nothing is there, neither in the guest nor, when its last command began, on this machine";
            return Err(KeptError::Nothing { path: path.clone(), reason });
        }
        self.asked = paths;
        let trees = std::mem::take(&mut self.trees);
        let keep = |mut tree: TreeDiff| {
            let changes = std::mem::take(&mut tree.changes);
            let is_asked = |path: &[u8]| self.is_asked(&tree.in_guest(path));
            let is_kept = |change: &Change| is_asked(&change.path) || change.from.as_deref().is_some_and(is_asked);
            tree.changes = changes.into_iter().filter(is_kept).collect();
            tree
        };
        let trees = trees.into_iter().map(keep).collect();
        self.trees = trees;
        Ok(self)
    }

    /// Whether there is, or was, something at a path of the guest.
    fn is_known(&self, path: &Path) -> bool {
        let above = self.all.iter().filter_map(|tree| Some((tree, path.strip_prefix(tree.destination()).ok()?)));
        let Some((tree, within)) = above.min_by_key(|(_, within)| within.components().count()) else {
            return self.all.iter().any(|tree| tree.destination().starts_with(path));
        };
        match self.trees.iter().find(|changed| changed.tree == *tree) {
            Some(TreeDiff { disk, .. }) => {
                let within = within.as_os_str().as_bytes();
                disk.base.lookup(within).or_else(|| disk.guest.lookup(within)).is_some()
            }
            None => tree.source().join(within).symlink_metadata().is_ok(),
        }
    }

    pub(super) fn trees(&self) -> &[TreeDiff] {
        &self.trees
    }

    /// Every change, tree by tree in the order of paths.
    pub fn changes(&self) -> Vec<ChangeReport> {
        let of = |tree: &TreeDiff| {
            let conflicts: HashMap<&[u8], Below> =
                tree.disk.conflicts().iter().map(|conflict| (&conflict.path[..], conflict.below)).collect();
            tree.changes.iter().map(|change| tree.report(change, &conflicts)).collect::<Vec<_>>()
        };
        self.trees.iter().flat_map(of).collect()
    }

    /// What could not be read, a line each.
    pub fn notes(&self) -> Vec<String> {
        let notes = |tree: &TreeDiff| {
            let destination = shown(&tree.tree.destination());
            tree.disk.notes.iter().map(move |note| format!("{destination}: {note}")).collect::<Vec<_>>()
        };
        self.folded.iter().map(FoldNote::to_string).chain(self.trees.iter().flat_map(notes)).collect()
    }

    /// The trees that are left out because this machine does not have them any more: each by its place here, with the
    /// reason.
    pub fn left_out(&self) -> Vec<(String, String)> {
        let reason = "it is gone; what the run changed there waits until it is back";
        self.gone.iter().map(|tree| (shown(&tree.source()), reason.to_owned())).collect()
    }

    /// What this machine changed, too, before the last command of the run, a line each.
    pub fn conflicts(&self) -> Vec<String> {
        let of = |tree: &TreeDiff| {
            let conflicts = tree.disk.conflicts().iter();
            let asked = conflicts
                .map(|conflict| (tree.in_guest(&conflict.path), conflict))
                .filter(|(path, _)| self.is_asked(path));
            let line = |(path, conflict): (PathBuf, &Conflict)| {
                let what = match conflict.below {
                    Below::Added | Below::Changed => "changed it, too",
                    Below::Removed => "removed it",
                };
                let lost = if tree.disk.is_lost(&conflict.path) { LOST } else { "" };
                format!("{}: this machine {what}{lost}", shown(&path))
            };
            asked.map(line).collect::<Vec<_>>()
        };
        self.trees.iter().flat_map(of).collect()
    }

    pub(super) fn is_asked(&self, path: &Path) -> bool {
        self.asked.is_empty() || self.asked.iter().any(|top| path.starts_with(top))
    }
}

fn unfinished(name: &str, record: &Record) -> Vec<String> {
    let begun =
        record.applying.as_ref().map(|_| format!("an apply has begun and not ended; inarch apply {name} ends it"));
    let left = still_beside(record).into_iter();
    let left =
        left.map(|path| format!("{path}: an apply left it; inarch apply {name} removes it or says what to do with it"));
    begun.into_iter().chain(left).collect()
}

impl TreeDiff {
    fn new(tree: KeptTree, disk: KeptDisk) -> Result<TreeDiff, KeptError> {
        let mut found = differences(&disk.base, &disk.guest, &disk)
            .map_err(|error| KeptError::TooDeep { destination: tree.destination(), error })?;
        found.retain(|difference| !disk.is_of_host(difference));
        let changes = changes(&disk.base, &disk.guest, &found, &disk);
        Ok(TreeDiff { tree, disk, differences: found, changes })
    }

    /// A path of the tree as the guest sees it.
    pub fn in_guest(&self, path: &[u8]) -> PathBuf {
        // Joining an empty path would end the destination in a slash.
        let destination = self.tree.destination();
        if path.is_empty() { destination } else { destination.join(OsStr::from_bytes(path)) }
    }

    fn report(&self, change: &Change, conflicts: &HashMap<&[u8], Below>) -> ChangeReport {
        let trees = (&*self.disk.base, &*self.disk.guest);
        let conflict = [Some(&change.path), change.from.as_ref()]
            .into_iter()
            .flatten()
            .find_map(|path| conflicts.get(&path[..]))
            .map(|below| conflict_name(*below));
        ChangeReport { conflict, ..ChangeReport::new(change, trees, |path| self.in_guest(path)) }
    }
}

fn conflict_name(below: Below) -> &'static str {
    match below {
        Below::Added | Below::Changed => "changed",
        Below::Removed => "removed",
    }
}
