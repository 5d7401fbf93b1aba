//! Lists the files of a tree that a filter includes.

use std::sync::Arc;

use super::filter::IgnoreLevel;
use super::{Filter, IGNORE_FILE_MAX, ReadFile};
use crate::{FileType, InodeId, Tree};

/// The regular files beneath the directory `top` of `tree` that `filter` includes; paths count from `top`. A file with
/// several names is listed once for each. `read` reads ignore files.
pub fn files_below(tree: &Tree, top: InodeId, filter: &Filter, read: &ReadFile<'_>) -> Vec<InodeId> {
    let mut files = Vec::new();
    let mut directories = vec![(top, Vec::new(), None)];
    while let Some((directory, mut path, ignore)) = directories.pop() {
        let ignore = ignore_level(tree, filter, (directory, &path), ignore, read);
        if !path.is_empty() {
            path.push(b'/');
        }
        let parent = path.len();
        for entry in tree.entries(directory) {
            path.truncate(parent);
            path.extend_from_slice(entry.name);
            let kind = tree.inode(entry.inode).file_type();
            let is_directory = kind == FileType::Directory;
            if !filter.is_empty() && filter.leaves_out(&path, is_directory, ignore.as_ref()) {
                continue;
            }
            if is_directory {
                directories.push((entry.inode, path.clone(), ignore.clone()));
            } else if kind == FileType::Regular {
                files.push(entry.inode);
            }
        }
    }
    files
}

/// The ignore files that apply in a directory with this path: those above it, and its own.
pub(super) fn ignore_level(
    tree: &Tree,
    filter: &Filter,
    (directory, path): (InodeId, &[u8]),
    above: Option<Arc<IgnoreLevel>>,
    read: &ReadFile<'_>,
) -> Option<Arc<IgnoreLevel>> {
    let mut level = above;
    // The last level is checked first.
    for name in filter.ignore_files().iter().rev() {
        let Some((_, inode)) = tree.find_entry(directory, name) else { continue };
        if tree.inode(inode).file_type() != FileType::Regular {
            continue;
        }
        let prefix = if path.is_empty() { 0 } else { path.len() + 1 };
        if let Some(text) = read(inode, IGNORE_FILE_MAX) {
            level = IgnoreLevel::new(&text, prefix, level);
        }
    }
    level
}
