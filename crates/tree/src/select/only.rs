//! `--only`: takes nothing but the paths of a list.

use std::collections::HashSet;

use crate::{FileType, InodeId, Tree};

/// The most symlinks on one path (`MAXSYMLINKS` of `include/linux/namei.h`).
const MAX_LINKS: u32 = 40;

/// Paths of a tree, as a trace lists them.
///
/// Each path is resolved within the tree as the kernel would: every directory and symlink on the way is taken, and what
/// a symlink at the end leads to. A directory is taken without its content, unless the path ends with a slash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathList {
    paths: Vec<Vec<u8>>,
}

impl PathList {
    /// One path on each line; a text that contains NUL bytes is NUL-separated, as from `find -print0`. Empty paths are
    /// skipped.
    pub fn parse(text: &[u8]) -> PathList {
        let separator = if text.contains(&0) { 0 } else { b'\n' };
        let paths = text.split(|byte| *byte == separator).filter(|path| !path.is_empty());
        PathList { paths: paths.map(<[u8]>::to_vec).collect() }
    }

    /// The list relative to `directory`, an absolute path: paths beneath it count from there, others are unchanged.
    pub fn beneath(&self, directory: &[u8]) -> PathList {
        let directory = directory.strip_suffix(b"/").unwrap_or(directory);
        let below = |path: &Vec<u8>| {
            let rest = path.strip_prefix(directory).filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
            // The directory itself always exists.
            rest.map_or(path.clone(), |rest| if rest.is_empty() { b"/".to_vec() } else { rest.to_vec() })
        };
        PathList { paths: self.paths.iter().map(below).collect() }
    }

    /// How many paths there are.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether the list has no paths.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }
}

/// What a list takes of one tree.
pub(super) struct Marks {
    /// For each entry of the tree, whether it is taken.
    entries: Vec<bool>,
    /// Directories whose whole content is taken.
    whole: HashSet<InodeId>,
}

/// A component that is still to be resolved.
struct Step<'a> {
    name: &'a [u8],
    /// Whether it comes from the list, not from a symlink's target.
    listed: bool,
}

impl Marks {
    /// What `list` takes of `tree`, and which of its paths do not exist.
    pub(super) fn of(tree: &Tree, list: &PathList) -> (Marks, Vec<Vec<u8>>) {
        let mut marks = Marks { entries: vec![false; tree.entry_count() as usize], whole: HashSet::new() };
        let missing = list.paths.iter().filter(|path| !marks.follow(tree, path)).cloned().collect();
        (marks, missing)
    }

    /// Takes all but the names of some inodes.
    pub(super) fn without(tree: &Tree, gone: &dyn Fn(InodeId) -> bool) -> Marks {
        let entries = tree.entries.iter().map(|entry| !gone(entry.inode)).collect();
        Marks { entries, whole: HashSet::new() }
    }

    pub(super) fn takes(&self, entry: usize) -> bool {
        self.entries.get(entry).copied().unwrap_or(false)
    }

    pub(super) fn takes_all_below(&self, directory: InodeId) -> bool {
        self.whole.contains(&directory)
    }

    /// Marks everything on the way of `path`; returns whether it exists. A dangling symlink at the end exists.
    fn follow(&mut self, tree: &Tree, path: &[u8]) -> bool {
        let mut steps: Vec<Step<'_>> = steps(path, true).collect();
        let mut directories = vec![InodeId::ROOT];
        let mut links = 0;
        while let Some(Step { name, listed }) = steps.pop() {
            if name == b".." {
                directories.truncate(directories.len().saturating_sub(1).max(1));
                continue;
            }
            let at_end = !listed && !steps.iter().any(|step| step.listed);
            let directory = directories.last().copied().unwrap_or(InodeId::ROOT);
            let Some((index, inode)) = tree.find_entry(directory, name) else { return at_end };
            if let Some(mark) = self.entries.get_mut(index) {
                *mark = true;
            }
            match tree.inode(inode).file_type() {
                FileType::Directory => directories.push(inode),
                FileType::Symlink if links == MAX_LINKS => return at_end,
                FileType::Symlink => {
                    links += 1;
                    let target = tree.symlink_target(inode);
                    if target.starts_with(b"/") {
                        directories.truncate(1);
                    }
                    steps.extend(self::steps(target, false));
                }
                _ => return steps.is_empty() || at_end,
            }
        }
        if path.ends_with(b"/") {
            self.whole.extend(directories.last());
        }
        true
    }
}

/// The components of a path, the last one first.
fn steps(path: &[u8], listed: bool) -> impl Iterator<Item = Step<'_>> {
    let names = path.rsplit(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(move |name| Step { name, listed })
}
