//! Comparing two states of a tree reports paths; an inode whose name was removed and added elsewhere is a rename.

use std::collections::HashMap;

use inarch_tree::compare::{Change, ChangeKind, Lineage, changes, differences, differences_but_deep};
use inarch_tree::{Attributes, Builder, InodeId, Timestamp, Tree};

/// A tree from lines `PATH NUMBER [mode=OCTAL] [mtime=N] [content=N]`. A path that ends in a slash is a directory.
/// Paths with the same number are links of one inode, and the same number in two trees is the same inode.
fn tree(lines: &[&str]) -> (Tree, HashMap<InodeId, u32>, HashMap<InodeId, u64>) {
    let mut entries: Vec<(Vec<&str>, bool, u32, Attributes, u64)> = lines
        .iter()
        .map(|line| {
            let mut words = line.split(' ');
            let (path, number) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
            let directory = path.ends_with('/');
            let mut attributes =
                Attributes { mode: if directory { 0o040755 } else { 0o100644 }, ..Attributes::default() };
            let mut content = 0;
            for word in words {
                let (key, value) = word.split_once('=').unwrap();
                match key {
                    "mode" => attributes.mode = u32::from_str_radix(value, 8).unwrap(),
                    "mtime" => attributes.mtime = Timestamp { seconds: value.parse().unwrap(), nanoseconds: 0 },
                    _ => content = value.parse().unwrap(),
                }
            }
            (path.trim_end_matches('/').split('/').collect(), directory, number, attributes, content)
        })
        .collect();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    let root = entries
        .iter()
        .find(|entry| entry.0 == [""])
        .map_or(Attributes { mode: 0o040755, ..Attributes::default() }, |entry| entry.3);
    let mut builder = Builder::new(&root).unwrap();
    let (mut numbers, mut contents) = (HashMap::from([(InodeId::ROOT, 0)]), HashMap::new());
    let mut ids: HashMap<u32, InodeId> = HashMap::new();
    let mut directories = vec![(InodeId::ROOT, Vec::new())];
    while let Some((id, path)) = directories.pop() {
        builder.list(id).unwrap();
        for (entry, directory, number, attributes, content) in &entries {
            let Some((name, parent)) = entry.split_last() else { continue };
            if parent != path || name.is_empty() {
                continue;
            }
            if let Some(id) = ids.get(number) {
                builder.link(name.as_bytes(), *id).unwrap();
                continue;
            }
            let id = builder.add(name.as_bytes(), attributes).unwrap();
            ids.insert(*number, id);
            numbers.insert(id, *number);
            contents.insert(id, *content);
            if *directory {
                directories.push((id, entry.clone()));
            }
        }
    }
    (builder.finish().unwrap(), numbers, contents)
}

struct ByNumber {
    old: (HashMap<u32, InodeId>, HashMap<InodeId, u64>),
    new: (HashMap<InodeId, u32>, HashMap<InodeId, u64>),
}

impl Lineage for ByNumber {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        self.old.0.get(&self.new.0[&new]).copied()
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        self.old.1[&old] == self.new.1[&new]
    }
}

fn pair(old: &[&str], new: &[&str]) -> (Tree, Tree, ByNumber) {
    let (old, numbers, old_contents) = tree(old);
    let (new, new_numbers, new_contents) = tree(new);
    let numbers = numbers.into_iter().map(|(id, number)| (number, id)).collect();
    let lineage = ByNumber { old: (numbers, old_contents), new: (new_numbers, new_contents) };
    (old, new, lineage)
}

fn compare(old: &[&str], new: &[&str]) -> Vec<String> {
    let (old, new, lineage) = pair(old, new);
    changes(&old, &new, &differences(&old, &new, &lineage).unwrap(), &lineage).iter().map(show).collect()
}

fn show(change: &Change) -> String {
    let text = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
    let mut line = format!("{:?} {}", change.kind, text(&change.path));
    if let Some(from) = &change.from {
        line += &format!(" from {}", text(from));
    }
    if let Some(link) = &change.link_to {
        line += &format!(" link to {}", text(link));
    }
    for (name, differs) in
        [("mode", change.aspects.mode), ("mtime", change.aspects.mtime), ("content", change.aspects.content)]
    {
        if differs && change.kind != ChangeKind::Added {
            line += &format!(" {name}");
        }
    }
    line
}

const OLD: [&str; 6] = ["a 1", "b 2 content=2", "d/ 3", "d/x 4 content=4", "d/y 5", "e/ 6"];

#[test]
fn a_tree_is_like_itself() {
    assert_eq!(compare(&OLD, &OLD), [""; 0]);
}

#[test]
fn what_is_new_gone_or_other_is_named() {
    let new = ["a 1 content=9", "c 7", "d/ 3", "d/x 4 content=4 mode=100600", "d/y 5 mtime=5", "f/ 8", "f/g 9"];
    assert_eq!(
        compare(&OLD, &new),
        [
            "Changed a content",
            "Deleted b",
            "Added c",
            "Attributes d/x mode",
            "Attributes d/y mtime",
            "Deleted e",
            "Added f",
            "Added f/g"
        ]
    );
}

#[test]
fn a_file_saved_by_rename_is_changed_or_not_at_all() {
    assert_eq!(compare(&["a 1 content=1"], &["a 2 content=2"]), ["Changed a content"]);
    assert_eq!(compare(&["a 1 content=1"], &["a 2 content=1"]), [""; 0]);
}

#[test]
fn kinds_may_change() {
    assert_eq!(compare(&["a 1"], &["a/ 2", "a/b 3"]), ["Changed a mode", "Added a/b"]);
    assert_eq!(compare(&["a/ 2", "a/b 3"], &["a 1"]), ["Changed a mode", "Deleted a/b"]);
}

#[test]
fn renames_are_found_by_inode() {
    assert_eq!(
        compare(&OLD, &["a 1", "c 2 content=2", "d/ 3", "d/x 4 content=4", "d/y 5", "e/ 6"]),
        ["Renamed c from b"]
    );
    assert_eq!(
        compare(&["a 1 content=1", "b 2"], &["a 2", "b 1 content=1"]),
        ["Renamed a from b", "Renamed b from a"],
        "a swap"
    );
    assert_eq!(compare(&["a 1 content=1", "b 2"], &["b 1 content=1"]), ["Renamed b from a"], "over another");
    assert_eq!(compare(&["a 1 content=1"], &["b 1 content=3 mode=100600"]), ["Renamed b from a mode content"]);
    // The number was free and is reused.
    assert_eq!(compare(&["a 1"], &["b 2"]), ["Deleted a", "Added b"]);
}

#[test]
fn of_a_renamed_directory_only_what_changed_in_it_is_named() {
    let new = ["a 1", "b 2 content=2", "e/ 6", "e/z/ 3", "e/z/new 8", "e/z/x 4 content=5"];
    assert_eq!(
        compare(&OLD, &new),
        ["Deleted d/y", "Renamed e/z from d", "Added e/z/new", "Changed e/z/x from d/x content"]
    );
}

#[test]
fn a_directory_is_no_link_of_another() {
    // The host put something into the directory that the guest renamed: both come from the same one.
    let (old, new, mut lineage) = pair(&["d/ 3", "d/x 4"], &["d/ 3", "d/theirs 7", "e/ 8", "e/x 4"]);
    lineage.new.0.insert(new.lookup(b"e").unwrap(), 3);
    let found = differences(&old, &new, &lineage).unwrap();
    let lines: Vec<String> = changes(&old, &new, &found, &lineage).iter().map(show).collect();
    assert_eq!(lines, ["Added d/theirs", "Added e", "Renamed e/x from d/x"]);
}

#[test]
fn links_are_told_from_renames() {
    assert_eq!(compare(&["a 1"], &["a 1", "b 1"]), ["Added b link to a"]);
    assert_eq!(compare(&["a 1", "b 1"], &["a 1"]), ["Deleted b"]);
    assert_eq!(compare(&["a 1", "b 1"], &["a 1", "c 1"]), ["Renamed c from b"]);
    assert_eq!(
        compare(&["a 1", "b 1"], &["a 1 content=3", "b 1 content=3"]),
        ["Changed a content", "Changed b content"]
    );
}

#[test]
fn a_directorys_time_counts_where_nothing_else_explains_it() {
    let (old, touched) = (["d/ 1 mtime=1", "d/a 2"], ["d/ 1 mtime=2", "d/a 2"]);
    assert_eq!(compare(&old, &touched), ["Attributes d mtime"]);
    assert_eq!(compare(&old, &["d/ 1 mtime=2", "d/a 2", "d/b 3"]), ["Added d/b"]);
    assert_eq!(compare(&old, &["d/ 1 mtime=2", "d/a 3"]), [""; 0], "saved by rename with the same content");
    assert_eq!(
        compare(&old, &["d/ 1 mtime=2 mode=040700", "d/b 2"]),
        ["Attributes d mode mtime", "Renamed d/b from d/a"]
    );
}

/// A lineage that knows nothing.
struct Unknown;

impl Lineage for Unknown {
    fn origin(&self, _: InodeId) -> Option<InodeId> {
        None
    }

    fn same_content(&self, _: InodeId, _: InodeId) -> bool {
        false
    }
}

/// A chain of nested directories.
fn chain(levels: usize) -> Tree {
    let directory = Attributes { mode: 0o040755, ..Attributes::default() };
    let mut builder = Builder::new(&directory).unwrap();
    let mut id = InodeId::ROOT;
    for _ in 0..levels {
        builder.list(id).unwrap();
        id = builder.add(b"d", &directory).unwrap();
    }
    builder.list(id).unwrap();
    builder.finish().unwrap()
}

#[test]
fn deep_chains_of_directories_are_compared_or_refused_and_fill_no_memory() {
    let none = chain(0);
    let found = differences(&none, &chain(10_000), &Unknown).unwrap();
    assert_eq!((found.len(), found.last().unwrap().path.len()), (10_000, 2 * 10_000 - 1));
    for (old, new) in [(&none, &chain(50_000)), (&chain(50_000), &none)] {
        let error = differences(old, new, &Unknown).unwrap_err();
        assert_eq!((error.levels, &error.top[..]), (50_000, &b"d"[..]));
    }
    // Unchanged paths take no room.
    assert_eq!(differences(&chain(50_000), &chain(50_000), &Unknown).unwrap(), []);
}

/// The lines of a chain of directories in one that is there.
fn levels(above: &str, count: u32, first_number: u32) -> Vec<String> {
    (1..=count).map(|level| format!("{above}{} {}", "d/".repeat(level as usize), first_number + level)).collect()
}

#[test]
fn a_chain_that_is_too_deep_is_left_out_and_the_rest_stays() {
    let old = ["gone 2", "old/ 3", "old/moved 4", "old/other 5", "src/ 6", "src/a 7"];
    let new = ["src/ 6", "src/a 7", "src/new 8", "src/out/ 9", "src/out/made 10", "src/out/loop/ 11"];
    // A file of the older tree is at the end of the chain now.
    let last = format!("src/out/loop/{}moved 4", "d/".repeat(1000));
    let chain = levels("src/out/loop/", 1000, 100);
    let new: Vec<&str> = new.into_iter().chain(chain.iter().map(|line| &line[..])).chain([&last[..]]).collect();
    let (old, new, lineage) = pair(&old, &new);
    let (found, left_out) = differences_but_deep(&old, &new, &lineage, 100_000);
    let found: Vec<&str> = found.iter().map(|one| std::str::from_utf8(&one.path).unwrap()).collect();
    // What moved into the chain stays where it was, with its directory.
    assert_eq!(found, ["gone", "old/other", "src/new", "src/out", "src/out/made"]);
    let left_out: Vec<(usize, &[u8])> = left_out.iter().map(|one| (one.levels, &one.top[..])).collect();
    assert_eq!(left_out, [(1001, &b"src/out/loop"[..])]);
    assert_eq!(differences(&old, &new, &lineage).unwrap().len(), 1009, "all of it has room by default");
}

#[test]
fn of_many_chains_the_deepest_goes() {
    let lines = [vec!["a/ 1".to_owned(), "b/ 2".to_owned(), "c/ 3".to_owned()]];
    let lines = lines.into_iter().chain([levels("a/", 300, 1000), levels("b/", 900, 2000), levels("c/", 300, 3000)]);
    let lines: Vec<String> = lines.flatten().collect();
    let (old, new, lineage) = pair(&[], &lines.iter().map(|line| &line[..]).collect::<Vec<_>>());
    let (found, left_out) = differences_but_deep(&old, &new, &lineage, 60_000);
    assert_eq!(left_out.iter().map(|one| &one.top[..]).collect::<Vec<_>>(), [b"b"]);
    assert_eq!(found.len(), 2 * 301);
    // So it is where the older tree has them, and the newer has not.
    let (found, left_out) = differences_but_deep(&new, &old, &Unknown, 60_000);
    assert_eq!(left_out.iter().map(|one| &one.top[..]).collect::<Vec<_>>(), [b"b"]);
    assert_eq!(found.len(), 2 * 301);
}
