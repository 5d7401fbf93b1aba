//! An independent reader, the crate ext4-view, finds in a planned device the tree it was planned from.

mod common;

use std::error::Error;
use std::sync::Arc;

use common::*;
use ext4_view::{Ext4, Ext4Read};
use inarch_block::{BLOCK_SIZE, BlockMap, Run};
use inarch_format::ext4::{Options, plan};
use inarch_tree::{Attributes, Builder, DataRange, FileType, InodeId, Timestamp, Tree, Xattr};
use proptest::prelude::*;

/// Serves a block map with [`pattern`] as the content of its files.
struct Device(Arc<BlockMap>);

impl Ext4Read for Device {
    fn read(&mut self, start: u64, out: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        let mut block = [0; BLOCK_SIZE];
        let mut at = start;
        for chunk in chunks(out, start) {
            block.fill(0);
            let number = at / BLOCK_SIZE as u64;
            match self.0.lookup(number).0 {
                Run::Zeros => {}
                Run::Metadata => self.0.render(number, &mut block),
                Run::File { inode, block: first } => fill_pattern(inode, first, &mut block),
            }
            let within = at as usize % BLOCK_SIZE;
            chunk.copy_from_slice(&block[within..within + chunk.len()]);
            at += chunk.len() as u64;
        }
        Ok(())
    }
}

/// Cuts `out`, which starts at byte `start` of the device, where blocks end.
fn chunks(mut out: &mut [u8], start: u64) -> Vec<&mut [u8]> {
    let mut list = Vec::new();
    let mut room = BLOCK_SIZE - start as usize % BLOCK_SIZE;
    while !out.is_empty() {
        let (chunk, rest) = out.split_at_mut(room.min(out.len()));
        list.push(chunk);
        (out, room) = (rest, BLOCK_SIZE);
    }
    list
}

/// What a file holds by the tree: the pattern in every block that has data, zeros in the others.
fn expected_content(tree: &Tree, id: InodeId) -> Vec<u8> {
    let size = tree.inode(id).size() as usize;
    let mut content = vec![0; size.next_multiple_of(BLOCK_SIZE)];
    let whole = [DataRange { offset: 0, length: size as u64 }];
    for range in tree.sparse_ranges(id).unwrap_or(if size > 0 { &whole } else { &[] }) {
        let blocks = range.offset as usize / BLOCK_SIZE..((range.offset + range.length) as usize).div_ceil(BLOCK_SIZE);
        for block in blocks {
            fill_pattern(id, block as u64, &mut content[block * BLOCK_SIZE..][..BLOCK_SIZE]);
        }
    }
    content.truncate(size);
    content
}

/// Compares a directory and everything below it.
fn compare(tree: &Tree, fs: &Ext4, dir: InodeId, path: &[u8]) {
    let mut found: Vec<Vec<u8>> = fs
        .read_dir(if path.is_empty() { b"/" } else { path })
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_ref().to_vec())
        .filter(|name| name != b"." && name != b".." && !(dir == InodeId::ROOT && name == b"lost+found"))
        .collect();
    found.sort();
    let names: Vec<Vec<u8>> = tree.entries(dir).map(|entry| entry.name.to_vec()).collect();
    assert_eq!(found, names);
    for entry in tree.entries(dir) {
        let inode = tree.inode(entry.inode);
        let path = [path, b"/", entry.name].concat();
        let metadata = fs.symlink_metadata(path.as_slice()).unwrap();
        assert_eq!(u32::from(metadata.mode()), inode.mode() & 0o7777);
        assert_eq!((metadata.uid(), metadata.gid()), (inode.uid(), inode.gid()));
        let mtime = metadata.modified();
        assert_eq!(Timestamp { seconds: mtime.seconds(), nanoseconds: mtime.nanoseconds() }, inode.mtime());
        match inode.file_type() {
            FileType::Regular => {
                assert_eq!(metadata.len(), inode.size());
                assert!(fs.read(path.as_slice()).unwrap() == expected_content(tree, entry.inode), "content differs");
            }
            FileType::Directory => compare(tree, fs, entry.inode, &path),
            FileType::Symlink => {
                assert_eq!(fs.read_link(path.as_slice()).unwrap().as_ref(), tree.symlink_target(entry.inode));
            }
            _ => {}
        }
    }
}

/// What a random directory entry is.
#[derive(Clone, Debug)]
enum Node {
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

fn forest() -> impl Strategy<Value = Vec<(Vec<u8>, Node)>> {
    let node = leaf().prop_recursive(4, 600, 40, |inner| {
        prop_oneof![
            3 => prop::collection::vec((name(), inner.clone()), 0..40).prop_map(Node::Directory),
            1 => leaf(),
        ]
    });
    prop::collection::vec((name(), node), 0..250)
}

/// Adds entries to the directory being listed, then lists the directories among them.
fn grow(b: &mut Builder, mut entries: Vec<(Vec<u8>, Node)>, linkable: &mut Vec<InodeId>) {
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries.dedup_by(|b, a| a.0 == b.0);
    let mut directories = Vec::new();
    for (number, (name, node)) in entries.into_iter().enumerate() {
        // From 1970 to 2034: ext4-view 1.0.0 refuses seconds whose lower half is negative.
        let seconds = i64::from(name[0]) * 8_000_000;
        let value: Box<[u8]> = name.repeat(number % 7).into();
        let set = if number % 3 == 0 { vec![Xattr { name: (*b"user.name").into(), value }] } else { Vec::new() };
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

fn rendered(map: &BlockMap) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut block = [0; BLOCK_SIZE];
    for number in map.metadata().iter().flat_map(Clone::clone) {
        map.render(number, &mut block);
        bytes.extend_from_slice(&block);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_trees(forest in forest(), journal in any::<bool>(), free_bytes in 0..400_000_000u64) {
        let mut b = builder();
        grow(&mut b, forest, &mut Vec::new());
        let tree = Arc::new(b.finish().unwrap());
        let options = Options { free_bytes, free_inodes: 50, journal: journal.then_some(4 << 20), ..Options::default() };
        let planned = plan(tree.clone(), &options).unwrap();
        let again = plan(tree.clone(), &options).unwrap();
        prop_assert!(rendered(&planned.map) == rendered(&again.map));

        let scratch = Scratch::new();
        dump(&planned.map, &scratch.path("image"), fill_pattern);
        assert_clean(&scratch.path("image"));
        let fs = Ext4::load(Box::new(Device(Arc::new(planned.map)))).unwrap();
        compare(&tree, &fs, InodeId::ROOT, b"");
    }
}

#[test]
fn names_and_content_of_a_hashed_directory() {
    let mut b = builder();
    for i in 0..30_000 {
        b.add(format!("{i:05}").as_bytes(), &file(i % 5)).unwrap();
    }
    let tree = Arc::new(b.finish().unwrap());
    let planned = plan(tree.clone(), &small()).unwrap();
    let fs = Ext4::load(Box::new(Device(Arc::new(planned.map)))).unwrap();
    compare(&tree, &fs, InodeId::ROOT, b"");
}
