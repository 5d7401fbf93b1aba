//! Says what was done, or would be, in the words of `diff`: a rename is one line, and a renamed directory brings its
//! content along.

use std::collections::{HashMap, HashSet};

use inarch_tree::compare::{Change, ChangeKind, Difference};
use serde::Serialize;

/// What was done, or would be, to a path of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Done {
    /// `add`, `change`, `remove`, `rename` or `attributes`.
    pub what: &'static str,
    /// The path; of what was renamed, the new one.
    pub path: String,
    /// The path before, of what was renamed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Describes the differences at the indices `which`; `changes` was derived from all `differences`. `name` formats a path for the user.
pub(super) fn done(
    differences: &[Difference],
    changes: &[Change],
    which: &HashSet<usize>,
    name: &dyn Fn(&[u8]) -> String,
) -> Vec<Done> {
    let chosen: Vec<&Difference> =
        differences.iter().enumerate().filter(|(i, _)| which.contains(i)).map(|(_, difference)| difference).collect();
    let paths: HashSet<&[u8]> = chosen.iter().map(|difference| &difference.path[..]).collect();
    // A directory may be at the old name of another one, and differ in nothing.
    let all: HashSet<&[u8]> = differences.iter().map(|difference| &difference.path[..]).collect();
    let whole = |change: &&Change| {
        let from = change.from.as_deref();
        paths.contains(&change.path[..]) && from.is_some_and(|from| paths.contains(from) || !all.contains(from))
    };
    let renames: Vec<&Change> =
        changes.iter().filter(|change| change.kind == ChangeKind::Renamed).filter(whole).collect();
    let moved: HashSet<&[u8]> = renames
        .iter()
        .flat_map(|change| [Some(&change.path), change.from.as_ref()])
        .flatten()
        .map(|path| &path[..])
        .collect();
    let named: HashMap<&[u8], &Change> = changes.iter().map(|change| (&change.path[..], change)).collect();
    let comes_along = |path: &[u8]| {
        let ends = (0..path.len()).filter(|at| path.get(*at) == Some(&b'/'));
        moved.contains(path) || ends.filter_map(|end| path.get(..end)).any(|above| moved.contains(above))
    };
    let one = |difference: &&Difference| {
        let path = &difference.path;
        let (what, from) = match named.get(&path[..]) {
            Some(change) if change.kind == ChangeKind::Renamed && moved.contains(&path[..]) => {
                ("rename", change.from.as_deref())
            }
            // Something else came to the old path of what was renamed, or of what came along.
            Some(change) => (verb(difference, change), None),
            None if comes_along(path) => return None,
            None => (plain_verb(difference), None),
        };
        Some(Done { what, path: name(path), from: from.map(name) })
    };
    chosen.iter().filter_map(one).collect()
}

fn verb(difference: &Difference, change: &Change) -> &'static str {
    match change.kind {
        ChangeKind::Added => "add",
        ChangeKind::Changed => "change",
        ChangeKind::Deleted => "remove",
        ChangeKind::Attributes => "attributes",
        ChangeKind::Renamed => plain_verb(difference),
    }
}

fn plain_verb(difference: &Difference) -> &'static str {
    match (difference.old, difference.new) {
        (None, _) => "add",
        (_, None) => "remove",
        _ if difference.aspects.beyond_attributes() => "change",
        _ => "attributes",
    }
}

#[cfg(test)]
mod tests {
    use super::super::world::{World, fill};

    #[test]
    fn a_rename_is_one_thing() {
        let mut world = World::new(|root| {
            fill(
                root,
                &[("sub/deep", ""), ("sub/one", "one"), ("sub/deep/two", "two"), ("sub/gone", "gone"), ("a", "a")],
            )
        });
        assert!(world.rename("a", "b") && world.rename("sub", "moved") && world.remove("moved/gone"));
        assert!(world.append("moved/deep/two", b"more") && world.write("moved/new", b"new"));
        let whole =
            ["rename a -> b", "rename sub -> moved", "change moved/deep/two", "add moved/new", "remove sub/gone"];
        assert_eq!(world.told(&[]), whole);
        // What of a rename was left is no rename.
        let torn = [
            "add b",
            "add moved",
            "add moved/deep",
            "change moved/deep/two",
            "add moved/new",
            "add moved/one",
            "remove sub/deep",
            "remove sub/deep/two",
            "remove sub/gone",
            "remove sub/one",
        ];
        assert_eq!(world.told(&["a", "sub"]), torn);
        // Something else is where it was.
        assert!(world.mkdir("sub") && world.write("sub/one", b"other") && world.write("a", b"other"));
        let told = ["change a", "rename a -> b", "rename sub -> moved", "change moved/deep/two", "add moved/new"];
        assert_eq!(world.told(&[])[..5], told);
    }
}
