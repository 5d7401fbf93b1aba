//! Random trees: planned, read back, checked by `fsck.erofs`, and mounted.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::mount::Mount;
use crate::common::odd::{acl, xattr};
use crate::common::*;
use crate::erofs::{Pattern, assert_clean, assert_same, compare, make};
use inarch_block::BackingFile;
use inarch_confine::Parsing;
use inarch_format::erofs::open;
use inarch_tree::{Attributes, Builder, DataRange, InodeId, Timestamp, Tree};
use proptest::collection::vec;
use proptest::prelude::*;

/// Cases that the kernel mounts too; the others are only read back.
const MOUNTED: u32 = 12;

#[derive(Clone, Debug)]
enum Kind {
    Directory,
    /// Its size.
    File(u64),
    /// Its size, and the lengths of holes and data in turn.
    Sparse(u64, Vec<(u64, u64)>),
    /// The length of its target.
    Symlink(usize),
    Device(u32, u32),
    /// Another name of one of the nodes.
    Link(usize),
}

#[derive(Clone, Debug)]
struct Node {
    /// One of the directories before it.
    parent: usize,
    name: Vec<u8>,
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, u32),
    /// Lengths of values.
    xattrs: Vec<usize>,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        3 => Just(Kind::Directory),
        4 => (0u64..20_000).prop_map(Kind::File),
        2 => (0u64..200_000, vec((0u64..9000, 1u64..20_000), 0..12)).prop_map(|(size, runs)| Kind::Sparse(size, runs)),
        2 => (1usize..4096).prop_map(Kind::Symlink),
        1 => (0u32..4096, 0u32..1 << 20).prop_map(|(major, minor)| Kind::Device(major, minor)),
        2 => any::<usize>().prop_map(Kind::Link),
    ]
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no name has it", |byte| *byte != 0 && *byte != b'/');
    prop_oneof![vec(byte, 1..256), "[!-.a]{1,4}".prop_map(String::into_bytes)]
        .prop_filter("a name of its own", |name| name != b"." && name != b".." && !name.contains(&b'/'))
}

fn node() -> impl Strategy<Value = Node> {
    let attributes = (0u32..0o10000, any::<(u32, u32)>(), (any::<i32>(), 0u32..1_000_000_000));
    let xattrs = prop_oneof![4 => Just(Vec::new()), 1 => vec(prop_oneof![0usize..50, 0usize..5000], 0..5)];
    (any::<usize>(), name(), kind(), attributes, xattrs).prop_map(|(parent, name, kind, attributes, xattrs)| {
        let (mode, owner, mtime) = attributes;
        Node { parent, name, kind, mode, owner, mtime: (mtime.0.into(), mtime.1), xattrs }
    })
}

/// Nodes by directory and name; directories by their place among the nodes, the root by none.
type Listings<'a> = HashMap<Option<usize>, BTreeMap<&'a [u8], usize>>;

fn tree(nodes: &[Node]) -> Tree {
    let mut directories = vec![None];
    let mut listings: Listings<'_> = HashMap::new();
    for (place, node) in nodes.iter().enumerate() {
        let parent = directories[node.parent % directories.len()];
        let listing = listings.entry(parent).or_default();
        if listing.contains_key(&*node.name) {
            continue;
        }
        listing.insert(&node.name, place);
        if matches!(node.kind, Kind::Directory) {
            directories.push(Some(place));
        }
    }
    let mut builder = Builder::new(&directory()).unwrap();
    let mut ids = HashMap::new();
    let mut pending = vec![(None, InodeId::ROOT)];
    while let Some((directory, id)) = pending.pop() {
        builder.list(id).unwrap();
        for (name, place) in listings.get(&directory).into_iter().flatten() {
            add(&mut builder, nodes, name, *place, &mut ids);
            if let Kind::Directory = nodes[*place].kind {
                pending.push((Some(*place), ids[place]));
            }
        }
    }
    builder.finish().unwrap()
}

fn add(builder: &mut Builder, nodes: &[Node], name: &[u8], place: usize, ids: &mut HashMap<usize, InodeId>) {
    let node = &nodes[place];
    if let Kind::Link(other) = node.kind
        && let Some(id) = ids.get(&(other % nodes.len()))
        && !matches!(nodes[other % nodes.len()].kind, Kind::Directory)
    {
        builder.link(name, *id).unwrap();
        return;
    }
    let (file_type, size) = match node.kind {
        Kind::Directory => (0o040000, 0),
        Kind::File(size) | Kind::Sparse(size, _) => (0o100000, size),
        Kind::Symlink(_) => (0o120000, 0),
        Kind::Device(..) => (0o060000, 0),
        Kind::Link(_) => (0o010000, 0),
    };
    // Few files may have `user` attributes in the eyes of the kernel; each may have these.
    let names = ["security.a", "trusted.b", "trusted.same", "security.same"];
    let set = node.xattrs.iter().zip(names);
    let mut set: Vec<_> = set.map(|(length, name)| xattr(name, &vec![*length as u8; *length])).collect();
    if node.xattrs.len() > 3 && matches!(node.kind, Kind::File(_) | Kind::Directory) {
        set.push(xattr("system.posix_acl_access", &acl()));
    }
    let time = Timestamp { seconds: node.mtime.0, nanoseconds: node.mtime.1 };
    let attributes = Attributes {
        mode: file_type | node.mode,
        uid: node.owner.0,
        gid: node.owner.1,
        size,
        mtime: time,
        ctime: time,
        device: if let Kind::Device(major, minor) = node.kind { (major, minor) } else { (0, 0) },
        xattrs: builder.intern_xattrs(set),
        ..Attributes::default()
    };
    let id = builder.add(name, &attributes).unwrap();
    ids.insert(place, id);
    match &node.kind {
        Kind::Symlink(length) => builder.set_target(id, &vec![b'a' + (place % 26) as u8; *length]).unwrap(),
        Kind::Sparse(size, runs) => builder.set_sparse(id, &ranges(*size, runs)).unwrap(),
        _ => {}
    }
}

fn ranges(size: u64, runs: &[(u64, u64)]) -> Vec<DataRange> {
    let mut at = 0;
    let mut ranges = Vec::new();
    for (hole, data) in runs {
        let offset = at + hole;
        let length = (*data).min(size.saturating_sub(offset));
        if length > 0 {
            ranges.push(DataRange { offset, length });
        }
        at = offset + length;
    }
    ranges
}

static CASE: AtomicU32 = AtomicU32::new(0);

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(40), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_trees_come_back(nodes in vec(node(), 0..120), inline_files: bool) {
        let tree = Arc::new(tree(&nodes));
        let scratch = Scratch::new();
        let image = scratch.path("image");
        let content = Arc::new(Pattern(tree.clone()));
        make(&tree, content.clone(), &image, inline_files);
        let backing = BackingFile::new(File::open(&image).unwrap(), image.clone()).unwrap();
        let opened = open(Parsing::unconfined(), Arc::new(backing)).unwrap();
        assert_same(&tree, &*content, &opened.tree, &*opened.content);
        assert_clean(&image);
        if CASE.fetch_add(1, Ordering::Relaxed) < MOUNTED
            && let Some(mount) = Mount::new(&image, "loop,ro")
        {
            compare(&tree, &*content, &mount.0);
        }
    }
}
