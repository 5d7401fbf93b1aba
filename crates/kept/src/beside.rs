//! The files that applies of a run left under temporary names, as its record lists them.

use inarch_lifecycle::shown;

use super::bytes::Bytes;
use super::record::{BesideFile, KeptTree, Record};

/// The paths on the host of all leftovers of a run that are still there.
pub(crate) fn still_beside(record: &Record) -> Vec<String> {
    let is_there = |(tree, file): &(&KeptTree, &BesideFile)| {
        let path = tree.source().join(file.path.to_os_string());
        path.symlink_metadata().is_ok()
    };
    besides(record).filter(is_there).map(|(tree, file)| place(tree, &file.path)).collect()
}

/// All leftovers that the record lists, with their trees.
pub(super) fn besides(record: &Record) -> impl Iterator<Item = (&KeptTree, &BesideFile)> {
    let files = record.made.iter().flat_map(|made| &made.beside);
    files.filter_map(|file| {
        let tree = record.trees.iter().find(|tree| tree.ordinal == file.ordinal && !tree.read_only)?;
        Some((tree, file))
    })
}

/// The path of one on the host, as it is shown.
pub(super) fn place(tree: &KeptTree, path: &Bytes) -> String {
    shown(&tree.source().join(path.to_os_string()))
}
