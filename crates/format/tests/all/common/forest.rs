//! Random trees.

use inarch_tree::{Attributes, Builder, DataRange, InodeId, Timestamp, Xattr};
use proptest::prelude::*;

use super::attributes;

/// What a random directory entry is.
#[derive(Clone, Debug)]
pub enum Node {
    File { size: u64, ranges: Option<Vec<(u64, u64)>> },
    Directory(Vec<(Vec<u8>, Node)>),
    Symlink(Vec<u8>),
    Special(u32),
    LinkToEarlier(prop::sample::Index),
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = (1..=255u8).prop_map(|byte| if byte == b'/' { b'_' } else { byte });
    let short = prop::collection::vec(byte.clone(), 1..12);
    let long = prop::collection::vec(byte, 200..=255);
    prop_oneof![9 => short, 1 => long].prop_filter("no dots", |name| name != b"." && name != b"..")
}

fn leaf() -> impl Strategy<Value = Node> {
    let ranges = prop::collection::vec((1..40_000u64, 1..20_000u64), 0..12);
    prop_oneof![
        4 => (0..50_000u64).prop_map(|size| Node::File { size, ranges: None }),
        2 => (0..300_000u64, ranges).prop_map(|(size, ranges)| Node::File { size, ranges: Some(ranges) }),
        1 => prop::collection::vec(name(), 1..5).prop_map(|names| Node::Symlink(names.join(&b'/'))),
        1 => prop::sample::select(vec![0o010_600, 0o140_755, 0o020_666]).prop_map(Node::Special),
        1 => any::<prop::sample::Index>().prop_map(Node::LinkToEarlier),
    ]
}

/// The entries of a random root directory.
pub fn forest() -> impl Strategy<Value = Vec<(Vec<u8>, Node)>> {
    let node = leaf().prop_recursive(4, 600, 40, |inner| {
        prop_oneof![
            3 => prop::collection::vec((name(), inner.clone()), 0..40).prop_map(Node::Directory),
            1 => leaf(),
        ]
    });
    prop::collection::vec((name(), node), 0..250)
}

/// Adds entries to the directory being listed, then lists the directories among them.
pub fn grow(b: &mut Builder, mut entries: Vec<(Vec<u8>, Node)>, linkable: &mut Vec<InodeId>) {
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries.dedup_by(|b, a| a.0 == b.0);
    let mut directories = Vec::new();
    for (number, (name, node)) in entries.into_iter().enumerate() {
        // From 1970 to 2034: ext4-view 1.0.0 refuses seconds whose lower half is negative.
        let seconds = i64::from(name[0]) * 8_000_000;
        let value: Box<[u8]> = name.repeat(number % 7).into();
        let set = if number % 3 == 0 { vec![Xattr { name: (*b"trusted.name").into(), value }] } else { Vec::new() };
        let mtime = Timestamp { seconds, nanoseconds: u32::from(name[0]) * 1_000_000 };
        let xattrs = b.intern_xattrs(set);
        let with = |mode| Attributes { mtime, xattrs, ..attributes(mode) };
        match node {
            Node::File { size, ranges } => {
                let id = b.add(&name, &Attributes { size, ..with(0o100_640) }).unwrap();
                if let Some(ranges) = ranges {
                    b.set_sparse(id, &data_ranges(&ranges, size)).unwrap();
                }
                linkable.push(id);
            }
            Node::Directory(inner) => directories.push((b.add(&name, &with(0o041_777)).unwrap(), inner)),
            Node::Symlink(target) => {
                let id = b.add(&name, &with(0o120_777)).unwrap();
                b.set_target(id, &target).unwrap();
            }
            Node::Special(mode) => linkable.push(b.add(&name, &with(mode)).unwrap()),
            Node::LinkToEarlier(_) if linkable.is_empty() => {}
            Node::LinkToEarlier(index) => b.link(&name, *index.get(linkable)).unwrap(),
        }
    }
    for (id, inner) in directories {
        b.list(id).unwrap();
        grow(b, inner, linkable);
    }
}

/// Ranges from pairs of (gap, length), as far as they lie within the file.
fn data_ranges(pairs: &[(u64, u64)], size: u64) -> Vec<DataRange> {
    let mut ranges = Vec::new();
    let mut at = 0;
    for (gap, length) in pairs {
        let range = DataRange { offset: at + gap, length: *length };
        at = range.offset + range.length;
        if at <= size {
            ranges.push(range);
        }
    }
    ranges
}
