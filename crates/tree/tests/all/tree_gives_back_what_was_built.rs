//! A tree contains what its builder was given, and invalid input is refused.

use std::collections::{BTreeMap, BTreeSet};

use inarch_tree::{Attributes, BuildError, Builder, DataRange, FileType, InodeId, Timestamp, Tree, Xattr, XattrSetId};
use proptest::prelude::*;

const EPOCH: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

const DIRECTORY: Attributes = Attributes {
    mode: 0o040755,
    uid: 0,
    gid: 0,
    size: 0,
    mtime: EPOCH,
    ctime: EPOCH,
    source_ino: 0,
    device: (0, 0),
    xattrs: XattrSetId::NONE,
};

/// A random node, and what is in it if it is a directory.
#[derive(Clone, Debug)]
enum Node {
    File {
        attributes: Attributes,
        ranges: Option<Vec<DataRange>>,
        xattrs: Vec<Xattr>,
    },
    Symlink {
        attributes: Attributes,
        target: Vec<u8>,
    },
    /// Another name of an earlier file, by its position modulo their number; an empty directory if there is none.
    Link(usize),
    Directory {
        attributes: Attributes,
        entries: BTreeMap<Vec<u8>, Node>,
    },
}

fn attributes(kind: u32) -> impl Strategy<Value = Attributes> {
    let time = || (any::<i64>(), 0..1_000_000_000u32).prop_map(|(s, n)| Timestamp { seconds: s, nanoseconds: n });
    let owners = (any::<u32>(), any::<u32>(), any::<u64>());
    (0..0o10000u32, owners, 0..1u64 << 40, time(), time()).prop_map(
        move |(mode, (uid, gid, source_ino), size, mtime, ctime)| Attributes {
            mode: kind | mode,
            uid,
            gid,
            size: if kind == 0o100000 { size } else { 0 },
            mtime,
            ctime,
            source_ino,
            device: (0, 0),
            xattrs: XattrSetId::NONE,
        },
    )
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![1..b'/', b'/' + 1..=255u8];
    let bytes = prop_oneof![9 => 1..12usize, 1 => 255..=1024usize];
    bytes
        .prop_flat_map(move |length| prop::collection::vec(byte.clone(), length))
        .prop_filter("dots", |name| name != b"." && name != b"..")
}

fn file() -> impl Strategy<Value = Node> {
    let xattr = (0..3u8, 0..2u8).prop_map(|(name, value)| Xattr { name: [b'u', name].into(), value: [value].into() });
    let cuts = prop::option::of(prop::collection::btree_set(0..1u64 << 40, 0..6));
    (attributes(0o100000), cuts, prop::collection::vec(xattr, 0..3)).prop_map(|(attributes, cuts, xattrs)| {
        let ranges = cuts.map(|cuts| {
            let cuts: Vec<u64> = cuts.into_iter().filter(|cut| *cut <= attributes.size).collect();
            let (pairs, _) = cuts.as_chunks::<2>();
            pairs.iter().map(|[start, end]| DataRange { offset: *start, length: end - start }).collect()
        });
        Node::File { attributes, ranges, xattrs }
    })
}

fn node() -> impl Strategy<Value = Node> {
    let target = prop::collection::vec(1..=255u8, 1..80);
    let symlink = (attributes(0o120000), target).prop_map(|(attributes, target)| Node::Symlink { attributes, target });
    let leaf = prop_oneof![4 => file(), 1 => symlink, 1 => any::<usize>().prop_map(Node::Link)];
    leaf.prop_recursive(5, 200, 12, |inner| directory(inner.boxed()))
}

fn directory(inner: BoxedStrategy<Node>) -> impl Strategy<Value = Node> {
    (attributes(0o040000), prop::collection::btree_map(name(), inner, 0..12))
        .prop_map(|(attributes, entries)| Node::Directory { attributes, entries })
}

/// The expected attributes of each path.
#[derive(Debug, Default)]
struct Expected {
    inodes: BTreeMap<Vec<u8>, (InodeId, Node)>,
    files: Vec<(InodeId, Node)>,
    links: BTreeMap<InodeId, u32>,
}

fn build(root: &Node) -> Result<(Tree, Expected), BuildError> {
    let Node::Directory { attributes, .. } = root else { panic!("the root is a directory") };
    let mut builder = Builder::new(attributes)?;
    let mut expected = Expected::default();
    expected.links.insert(InodeId::ROOT, 2);
    let mut stack = vec![(Vec::new(), InodeId::ROOT, root)];
    while let Some((path, dir, node)) = stack.pop() {
        let Node::Directory { entries, .. } = node else { continue };
        builder.list(dir)?;
        for (name, node) in entries {
            let below = join(&path, name);
            let (id, node) = add(&mut builder, name, node, &mut expected)?;
            if matches!(node, Node::Directory { .. }) {
                *expected.links.entry(dir).or_default() += 1;
                expected.links.insert(id, 2);
            } else {
                *expected.links.entry(id).or_default() += 1;
            }
            expected.inodes.insert(below, (id, node));
        }
        for (name, node) in entries.iter().rev() {
            let below = join(&path, name);
            stack.push((below.clone(), expected.inodes[&below].0, node));
        }
    }
    Ok((builder.finish()?, expected))
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, name].join(&b'/') }
}

fn add(builder: &mut Builder, name: &[u8], node: &Node, known: &mut Expected) -> Result<(InodeId, Node), BuildError> {
    match node {
        Node::File { attributes, ranges, xattrs } => {
            let xattrs = builder.intern_xattrs(xattrs.clone());
            let id = builder.add(name, &Attributes { xattrs, ..*attributes })?;
            if let Some(ranges) = ranges {
                builder.set_sparse(id, ranges)?;
            }
            known.files.push((id, node.clone()));
            Ok((id, node.clone()))
        }
        Node::Symlink { attributes, target } => {
            let id = builder.add(name, attributes)?;
            builder.set_target(id, target)?;
            Ok((id, node.clone()))
        }
        Node::Link(index) if !known.files.is_empty() => {
            let (id, node) = known.files[index % known.files.len()].clone();
            builder.link(name, id)?;
            Ok((id, node))
        }
        Node::Link(_) => {
            let node = Node::Directory { attributes: DIRECTORY, entries: BTreeMap::new() };
            Ok((builder.add(name, &DIRECTORY)?, node))
        }
        Node::Directory { attributes, .. } => Ok((builder.add(name, attributes)?, node.clone())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_path_has_what_it_was_given(root in directory(node().boxed())) {
        let (tree, expected) = build(&root).unwrap();
        prop_assert_eq!(tree.entry_count() as usize, expected.inodes.len());
        let ids: BTreeSet<InodeId> = expected.inodes.values().map(|(id, _)| *id).collect();
        prop_assert_eq!(tree.inode_count() as usize, ids.len() + 1);
        for (path, (id, node)) in &expected.inodes {
            prop_assert_eq!(tree.lookup(path), Some(*id));
            let inode = tree.inode(*id);
            prop_assert_eq!(inode.links(), expected.links[id]);
            match node {
                Node::File { attributes, ranges, xattrs } => {
                    prop_assert_eq!(inode.file_type(), FileType::Regular);
                    prop_assert_eq!((inode.mode(), inode.size()), (attributes.mode, attributes.size));
                    prop_assert_eq!((inode.uid(), inode.gid()), (attributes.uid, attributes.gid));
                    prop_assert_eq!((inode.mtime(), inode.ctime()), (attributes.mtime, attributes.ctime));
                    prop_assert_eq!(inode.source_ino(), attributes.source_ino);
                    prop_assert_eq!(tree.sparse_ranges(*id), ranges.as_deref());
                    let names: BTreeSet<_> = xattrs.iter().map(|xattr| &xattr.name).collect();
                    let found = tree.xattrs(inode.xattrs());
                    prop_assert_eq!(found.iter().map(|xattr| &xattr.name).collect::<BTreeSet<_>>(), names);
                    prop_assert!(found.iter().all(|xattr| xattrs.contains(xattr)));
                    prop_assert!(found.is_sorted());
                }
                Node::Symlink { target, .. } => prop_assert_eq!(tree.symlink_target(*id), &target[..]),
                Node::Directory { entries, .. } => {
                    prop_assert_eq!(tree.path(*id), &path[..]);
                    let names: Vec<&[u8]> = tree.entries(*id).map(|entry| entry.name).collect();
                    prop_assert_eq!(names, entries.keys().map(|name| &name[..]).collect::<Vec<_>>());
                }
                Node::Link(_) => unreachable!("links are resolved"),
            }
            prop_assert_eq!(tree.lookup(&tree.path(*id)), Some(*id));
        }
    }
}

#[test]
fn what_makes_no_tree_is_refused() {
    let file = Attributes { mode: 0o100644, size: 100, ..DIRECTORY };
    assert!(matches!(Builder::new(&file), Err(BuildError::Misuse(_))));
    let mut builder = Builder::new(&DIRECTORY).unwrap();
    assert!(matches!(builder.add(b"x", &file), Err(BuildError::Misuse(_))), "nothing is listed yet");
    builder.list(InodeId::ROOT).unwrap();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 1025]] {
        assert!(matches!(builder.add(name, &file), Err(BuildError::BadName(_))), "{}", name.escape_ascii());
    }
    let id = builder.add(b"m", &file).unwrap();
    for name in [&b"m"[..], b"a", b"l\xff"] {
        assert!(matches!(builder.add(name, &file), Err(BuildError::Unsorted(_))), "{}", name.escape_ascii());
    }
    assert_eq!(builder.add(b"n", &Attributes { mode: 0o644, ..file }), Err(BuildError::BadMode(0o644)));
    for ranges in [[(0, 0)], [(99, 2)], [(u64::MAX, 2)]] {
        let ranges = ranges.map(|(offset, length)| DataRange { offset, length });
        assert!(builder.set_sparse(id, &ranges).is_err(), "{ranges:?}");
    }
    let overlapping = [(0, 10), (9, 1)].map(|(offset, length)| DataRange { offset, length });
    assert!(builder.set_sparse(id, &overlapping).is_err());
    assert!(builder.set_target(id, b"x").is_err());
    assert!(builder.list(id).is_err() && builder.list(InodeId::ROOT).is_err() && builder.list(InodeId(99)).is_err());
    assert!(builder.link(b"z", InodeId::ROOT).is_err() && builder.link(b"z", InodeId(99)).is_err());
    let link = builder.add(b"z", &Attributes { mode: 0o120777, ..DIRECTORY }).unwrap();
    for target in [&b""[..], b"\0", &[b'x'; 4096]] {
        assert!(builder.set_target(link, target).is_err());
    }
    assert!(matches!(builder.finish(), Err(BuildError::Misuse("a symlink has no target"))));
}
