//! A layer merged over its own tree gives the changed tree; merged over another state of the tree, it keeps the changes
//! of both sides.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use inarch_tree::compare::{Lineage, differences};
use inarch_tree::layer::{Bytes, Conflict, Facts, Holder, Identity, Layer, Lender, Merged, Origin, Part, merge};
use inarch_tree::{Attributes, Builder, InodeId, Timestamp, Tree};
use proptest::prelude::*;

/// A file's state: its number is the same as long as it exists.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    number: u64,
    directory: bool,
    content: u64,
    mode: u32,
    /// Changes with every change.
    stamp: i64,
}

#[derive(Clone, Debug)]
struct Model {
    /// The number of the file at each path.
    names: BTreeMap<Vec<u8>, u64>,
    nodes: BTreeMap<u64, Node>,
    next: u64,
    clock: i64,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize),
    Mode(usize),
    Make(usize, u8, bool),
    Remove(usize),
    Rename(usize, usize, u8),
    Link(usize, usize, u8),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0..64usize;
    let name = 0..4u8;
    prop_oneof![
        at.clone().prop_map(Change::Write),
        at.clone().prop_map(Change::Mode),
        (at.clone(), name.clone(), any::<bool>()).prop_map(|(at, name, dir)| Change::Make(at, name, dir)),
        at.clone().prop_map(Change::Remove),
        (at.clone(), at.clone(), name.clone()).prop_map(|(from, to, name)| Change::Rename(from, to, name)),
        (at.clone(), at, name).prop_map(|(from, to, name)| Change::Link(from, to, name)),
    ]
}

impl Model {
    fn new() -> Model {
        let root = Node { number: 1, directory: true, content: 0, mode: 0o755, stamp: 0 };
        Model { names: BTreeMap::from([(Vec::new(), 1)]), nodes: BTreeMap::from([(1, root)]), next: 2, clock: 1 }
    }

    fn node(&mut self, path: &[u8]) -> &mut Node {
        self.nodes.get_mut(&self.names[path]).unwrap()
    }

    fn pick(&self, at: usize, directory: Option<bool>) -> Option<Vec<u8>> {
        let fits = |path: &&Vec<u8>| directory.is_none_or(|wanted| self.nodes[&self.names[*path]].directory == wanted);
        let all: Vec<&Vec<u8>> = self.names.keys().filter(fits).collect();
        (!all.is_empty()).then(|| all[at % all.len()].clone())
    }

    fn below(&self, path: &[u8]) -> Vec<Vec<u8>> {
        self.names.keys().filter(|name| is_below(name, path)).cloned().collect()
    }

    fn remove(&mut self, path: &[u8]) {
        self.names.remove(path);
        for name in self.below(path) {
            self.names.remove(&name);
        }
    }

    fn apply(&mut self, change: &Change, base: u64) {
        self.clock += 1;
        let stamp = self.clock;
        match change {
            Change::Write(at) => {
                let Some(path) = self.pick(*at, Some(false)) else { return };
                let node = self.node(&path);
                (node.content, node.stamp) = (base + stamp as u64, stamp);
            }
            Change::Mode(at) => {
                let Some(path) = self.pick(*at, None) else { return };
                let node = self.node(&path);
                (node.mode, node.stamp) = (node.mode ^ 0o022, stamp);
            }
            Change::Make(at, name, directory) => {
                let Some(path) = self.pick(*at, Some(true)).map(|path| child(&path, *name)) else { return };
                if !self.names.contains_key(&path) {
                    let number = self.next + base;
                    self.next += 1;
                    let content = base + stamp as u64;
                    let node = Node { number, directory: *directory, content, mode: 0o644, stamp };
                    self.nodes.insert(number, node);
                    self.names.insert(path, number);
                }
            }
            Change::Remove(at) => {
                let Some(path) = self.pick(*at, None).filter(|path| !path.is_empty()) else { return };
                self.remove(&path);
            }
            Change::Rename(from, to, name) => {
                let Some(from) = self.pick(*from, None).filter(|path| !path.is_empty()) else { return };
                let Some(to) = self.pick(*to, Some(true)).map(|path| child(&path, *name)) else { return };
                if from == to || is_below(&to, &from) || is_below(&from, &to) {
                    return;
                }
                self.remove(&to);
                for name in self.below(&from).into_iter().chain([from.clone()]) {
                    let number = self.names.remove(&name).unwrap();
                    self.names.insert([&to[..], &name[from.len()..]].concat(), number);
                }
                self.node(&to).stamp = stamp;
            }
            Change::Link(from, to, name) => {
                let Some(from) = self.pick(*from, Some(false)) else { return };
                let Some(to) = self.pick(*to, Some(true)).map(|path| child(&path, *name)) else { return };
                if !self.names.contains_key(&to) {
                    self.names.insert(to, self.names[&from]);
                    self.node(&from).stamp = stamp;
                }
            }
        }
    }

    /// The tree, and the number of each of its inodes.
    fn tree(&self) -> (Tree, Vec<u64>) {
        let attributes = |node: &Node| Attributes {
            mode: node.mode | if node.directory { 0o040_000 } else { 0o100_000 },
            size: if node.directory { 0 } else { node.content },
            source_ino: node.number,
            mtime: Timestamp { seconds: node.content as i64, nanoseconds: 0 },
            ctime: Timestamp { seconds: node.stamp, nanoseconds: 0 },
            ..Attributes::default()
        };
        let mut builder = Builder::new(&attributes(&self.nodes[&1])).unwrap();
        let mut numbers = vec![1];
        let mut made: HashMap<u64, InodeId> = HashMap::new();
        let mut directories = vec![(Vec::new(), InodeId::ROOT)];
        while let Some((path, id)) = directories.pop() {
            builder.list(id).unwrap();
            for (name, number) in self.names.iter().filter(|(name, _)| is_child(name, &path)) {
                let last = name.rsplit(|byte| *byte == b'/').next().unwrap();
                if let Some(id) = made.get(number) {
                    builder.link(last, *id).unwrap();
                    continue;
                }
                let id = builder.add(last, &attributes(&self.nodes[number])).unwrap();
                numbers.push(*number);
                made.insert(*number, id);
                if self.nodes[number].directory {
                    directories.push((name.clone(), id));
                }
            }
        }
        (builder.finish().unwrap(), numbers)
    }
}

fn child(path: &[u8], name: u8) -> Vec<u8> {
    let mut path = path.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.push(b'a' + name);
    path
}

fn is_below(path: &[u8], above: &[u8]) -> bool {
    path != above && (above.is_empty() || (path.starts_with(above) && path[above.len()] == b'/'))
}

fn is_child(path: &[u8], above: &[u8]) -> bool {
    is_below(path, above) && !path[above.len() + usize::from(!above.is_empty())..].contains(&b'/')
}

/// Tells by their numbers which files of two trees are the same.
struct ByNumber<'a> {
    old: (&'a Tree, HashMap<u64, InodeId>),
    new: (&'a Tree, &'a [u64]),
    earlier: Option<&'a Layer>,
}

impl<'a> ByNumber<'a> {
    fn new(old: (&'a Tree, &'a [u64]), new: (&'a Tree, &'a [u64]), earlier: Option<&'a Layer>) -> ByNumber<'a> {
        let index = old.1.iter().zip(0..).map(|(number, id)| (*number, InodeId(id))).collect();
        ByNumber { old: (old.0, index), new, earlier }
    }
}

impl Lineage for ByNumber<'_> {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        self.old.1.get(&self.new.1[new.index()]).copied()
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        self.old.0.inode(old).size() == self.new.0.inode(new).size()
    }
}

impl Facts for ByNumber<'_> {
    fn origin(&self, new: InodeId) -> Option<Lender> {
        Lineage::origin(self, new).map(|old| Lender::of(self.old.0, old))
    }

    fn bytes(&mut self, new: InodeId) -> std::io::Result<Bytes> {
        let size = self.new.0.inode(new).size();
        if Lineage::origin(self, new).is_some_and(|old| self.same_content(old, new)) {
            return Ok(Bytes::Whole);
        }
        let part = Part { offset: 0, length: size.max(1), at: size, holder: Holder::File("written".into()) };
        Ok(Bytes::Parts(vec![part]))
    }

    fn was(&self, path: &[u8]) -> Option<Option<Identity>> {
        self.earlier?.was(path)
    }
}

/// Every path with its attributes, its size and the first path of the same file.
fn listing(tree: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    let mut directories = vec![InodeId::ROOT];
    let root = tree.inode(InodeId::ROOT);
    lines.push(format!("/ {:o}", root.mode()));
    let mut firsts: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let mut names = BTreeMap::new();
    while let Some(id) = directories.pop() {
        for entry in tree.entries(id) {
            let mut path = tree.path(id);
            path.push(b'/');
            path.extend_from_slice(entry.name);
            names.insert(path, entry.inode);
            if tree.inode(entry.inode).mode() & 0o170_000 == 0o040_000 {
                directories.push(entry.inode);
            }
        }
    }
    for (path, id) in names {
        let first = firsts.entry(id.0).or_insert_with(|| path.clone());
        let inode = tree.inode(id);
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        lines.push(format!("{} {:o} {} {}", text(&path), inode.mode(), inode.size(), text(first)));
    }
    lines
}

fn layer_of(base: &Model, newer: &Model) -> Layer {
    let (old, old_numbers) = base.tree();
    let (new, new_numbers) = newer.tree();
    let mut facts = ByNumber::new((&old, &old_numbers), (&new, &new_numbers), None);
    let found = differences(&old, &new, &facts).unwrap();
    let layer = Layer::new(&old, &new, &found, &mut facts).unwrap();
    let stored = layer.store();
    let loaded = Layer::load(&stored).unwrap();
    assert_eq!(loaded.store(), stored);
    loaded
}

fn changed(mut model: Model, changes: &[Change], base: u64) -> Model {
    for change in changes {
        model.apply(change, base);
    }
    model
}

/// A host path that is missing in the merged tree was deleted by the guest, and the host left it as the guest knew it; or a
/// conflict names it or a directory above it.
fn assert_nothing_is_lost(lower: &Model, base: &Model, newer: &Model, merged: &Merged) {
    let conflicts: BTreeSet<&[u8]> = merged.conflicts.iter().map(|conflict| &conflict.path[..]).collect();
    let ((tree, _), (base, _)) = (lower.tree(), base.tree());
    for path in lower.names.keys() {
        let is_there = merged.tree.lookup(path).is_some();
        let named = conflicts.iter().any(|conflict| *conflict == path || is_below(path, conflict));
        let is_deleted = || {
            let now = tree.lookup(path).unwrap();
            let known = base.lookup(path).map(|known| Identity::of(&base, known));
            !newer.names.contains_key(path) && known.is_some_and(|known| known.is(&tree, now))
        };
        assert!(is_there || named || is_deleted(), "{} vanished", String::from_utf8_lossy(path));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn over_its_own_tree_it_gives_the_changed_one(
        first in prop::collection::vec(change(), 0..30),
        second in prop::collection::vec(change(), 0..12),
    ) {
        let base = changed(Model::new(), &first, 0);
        let newer = changed(base.clone(), &second, 1 << 20);
        let layer = layer_of(&base, &newer);
        let merged = merge(&base.tree().0, &layer).unwrap();
        prop_assert_eq!(listing(&merged.tree), listing(&newer.tree().0));
        prop_assert_eq!(merged.conflicts, Vec::<Conflict>::new());
        prop_assert_eq!(merged.origins.len(), merged.tree.inode_count() as usize);
    }

    #[test]
    fn over_another_state_both_sides_are_there_or_a_conflict_is_named(
        first in prop::collection::vec(change(), 0..30),
        guest in prop::collection::vec(change(), 0..10),
        host in prop::collection::vec(change(), 0..10),
    ) {
        let base = changed(Model::new(), &first, 0);
        let newer = changed(base.clone(), &guest, 1 << 20);
        let layer = layer_of(&base, &newer);
        let mut lower = base.clone();
        lower.clock += 1000;
        let lower = changed(lower, &host, 1 << 30);
        let (tree, _) = lower.tree();
        let merged = merge(&tree, &layer).unwrap();
        assert_nothing_is_lost(&lower, &base, &newer, &merged);
        // Every path of the layer is as the guest has it.
        for path in newer.names.keys().filter(|path| layer.was(path).is_some()) {
            prop_assert!(merged.tree.lookup(path).is_some(), "{} is not there", String::from_utf8_lossy(path));
        }
        for (id, origin) in merged.tree.inodes().map(|(id, _)| id).zip(&merged.origins) {
            if let Origin::Lower(lower) = origin {
                prop_assert_eq!(merged.tree.inode(id).source_ino(), tree.inode(*lower).source_ino());
            }
        }
    }
}

/// Paths end in a slash for directories.
fn model(paths: &[&str]) -> Model {
    let mut model = Model::new();
    for path in paths {
        let directory = path.ends_with('/');
        let (number, stamp) = (model.next, model.clock);
        model.next += 1;
        model.nodes.insert(number, Node { number, directory, content: number, mode: 0o644, stamp });
        model.names.insert(path.trim_end_matches('/').into(), number);
    }
    model
}

fn told(merged: &Merged) -> Vec<String> {
    let one = |conflict: &Conflict| format!("{} {:?}", String::from_utf8_lossy(&conflict.path), conflict.below);
    merged.conflicts.iter().map(one).collect()
}

#[test]
fn what_both_changed_is_named() {
    let base = model(&["a", "b", "c", "d/", "d/x", "e/", "e/x", "f/", "f/g/", "f/g/x"]);
    let mut newer = base.clone();
    newer.clock = 50;
    for path in ["a", "b", "c"] {
        newer.node(path.as_bytes()).content += 100;
    }
    newer.remove(b"d");
    newer.remove(b"e");
    newer.remove(b"f");
    let file = Node { number: 900, directory: false, content: 5, mode: 0o644, stamp: 50 };
    newer.nodes.insert(900, file);
    newer.names.insert(b"f".to_vec(), 900);
    newer.names.insert(b"new".to_vec(), 900);
    let layer = layer_of(&base, &newer);

    let mut host = base.clone();
    host.node(b"b").stamp = 70;
    host.remove(b"c");
    host.node(b"d/x").stamp = 70;
    for path in ["e/y", "f/g/y", "new"] {
        let number = host.next + 5000;
        host.next += 1;
        let node = Node { number, directory: false, content: 9, mode: 0o644, stamp: 70 };
        host.nodes.insert(number, node);
        host.names.insert(path.into(), number);
    }
    let merged = merge(&host.tree().0, &layer).unwrap();
    assert_eq!(told(&merged), ["b Changed", "c Removed", "d/x Changed", "f/g/y Added", "new Added"]);
    assert!(merged.tree.lookup(b"d").is_none());
    assert!(merged.tree.lookup(b"e/y").is_some() && merged.tree.lookup(b"e/x").is_none());
    assert_eq!(merged.tree.lookup(b"f"), merged.tree.lookup(b"new"));
}

/// The names of both are there. If the host's directory is for its owner alone, no one learns of that by a merge.
#[test]
fn directories_that_both_made_are_merged_and_named_if_they_differ() {
    let base = model(&["a"]);
    let with = |number: u64, mode: u32, name: &str| {
        let mut model = base.clone();
        let directory = Node { number, directory: true, content: number, mode, stamp: 50 };
        model.nodes.insert(number, directory);
        model.names.insert(b"d".to_vec(), number);
        let file = Node { number: number + 1, directory: false, content: number, mode: 0o644, stamp: 50 };
        model.nodes.insert(number + 1, file);
        model.names.insert([b"d/", name.as_bytes()].concat(), number + 1);
        model
    };
    for (mode, expected) in [(0o700, vec!["d Added"]), (0o755, vec![])] {
        let merged = merge(&with(800, mode, "y").tree().0, &layer_of(&base, &with(900, 0o755, "x"))).unwrap();
        assert_eq!(told(&merged), expected);
        assert!(["d/x", "d/y"].iter().all(|path| merged.tree.lookup(path.as_bytes()).is_some()));
    }
}

/// If the layer changed only attributes of a file, the others are as they are now: `make` must see that content written
/// since is newer than what was built before.
#[test]
fn attributes_that_the_layer_left_are_those_of_today() {
    let base = model(&["edited", "moved"]);
    let mut newer = base.clone();
    newer.clock = 50;
    for path in [&b"edited"[..], b"moved"] {
        newer.node(path).mode = 0o600;
    }
    let mut host = base.clone();
    (host.node(b"edited").content, host.node(b"edited").stamp) = (700, 70);
    let merged = merge(&host.tree().0, &layer_of(&base, &newer)).unwrap();
    let file = |path: &[u8]| merged.tree.inode(merged.tree.lookup(path).unwrap());
    let edited = file(b"edited");
    assert_eq!((edited.mode() & 0o777, edited.size(), edited.mtime().seconds), (0o600, 700, 700));
    let moved = file(b"moved");
    assert_eq!((moved.mode() & 0o777, moved.mtime().seconds), (0o600, moved.size() as i64));
    assert_eq!(told(&merged), ["edited Changed"]);
}

#[test]
fn bytes_that_are_no_layer_are_refused() {
    let base = model(&["a", "b/", "b/c"]);
    let mut newer = base.clone();
    newer.remove(b"b");
    newer.node(b"a").content = 9;
    let stored = layer_of(&base, &newer).store();
    for length in 0..stored.len() {
        assert!(Layer::load(&stored[..length]).is_err(), "{length}");
    }
    for at in 0..stored.len() {
        let mut bytes = stored.clone();
        bytes[at] ^= 1;
        assert!(Layer::load(&bytes).is_err(), "{at}");
        // With a valid checksum it may be another layer, but never a panic.
        let checksum = crc32c::crc32c(&bytes[16..]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(layer) = Layer::load(&bytes) {
            let _ = merge(&base.tree().0, &layer);
        }
    }
}

#[test]
fn fifty_thousand_directories_deep() {
    let deep = |extra: bool| {
        let directory = Attributes { mode: 0o040_755, ..Attributes::default() };
        let mut builder = Builder::new(&directory).unwrap();
        let mut at = InodeId::ROOT;
        let mut numbers = vec![1];
        for number in 0..50_000 {
            builder.list(at).unwrap();
            at = builder.add(b"d", &directory).unwrap();
            numbers.push(number + 2);
        }
        if extra {
            builder.list(at).unwrap();
            builder.add(b"file", &Attributes { mode: 0o100_644, ..Attributes::default() }).unwrap();
            numbers.push(99_999_999);
        }
        (builder.finish().unwrap(), numbers)
    };
    let ((old, old_numbers), (new, new_numbers)) = (deep(false), deep(true));
    let mut facts = ByNumber::new((&old, &old_numbers), (&new, &new_numbers), None);
    let path = [vec![b"d".to_vec(); 50_000].join(&b'/'), b"/file".to_vec()].concat();
    let found =
        [inarch_tree::compare::Difference { old: None, new: new.lookup(&path), aspects: Default::default(), path }];
    let layer = Layer::new(&old, &new, &found, &mut facts).unwrap();
    assert_eq!(layer.counts(), (1, 0));
    let merged = merge(&old, &layer).unwrap();
    assert_eq!(merged.tree.inode_count(), 50_002);
}
