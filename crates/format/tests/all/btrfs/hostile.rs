//! Damaged images: an error that says what is wrong; no panic, no endless loop, nothing beyond what the image has room for.

use std::sync::Arc;

use inarch_block::read_content;
use inarch_confine::Parsing;
use inarch_format::btrfs::{ReadOptions, open, open_volume};
use inarch_format::{Damage, ReadError, TreeAndContent};

use super::build::{
    Builder, Directory, Items, Key, Made, NODE, SUPERBLOCK, chunk, extent, inline, inode, kind, root_item,
    root_reference, sorted,
};
use super::golden;
use crate::common::rounds;
use crate::erofs::Bytes;
use crate::volumes_hostile::ask_for_everything;

fn walk(image: Vec<u8>, damage: Damage) -> Result<TreeAndContent, ReadError> {
    open(Parsing::unconfined(), Arc::new(Bytes(image)), &ReadOptions { damage, ..ReadOptions::default() })
}

/// Reads parts of every file of what can be walked.
fn read_all(image: Vec<u8>) {
    let Ok(opened) = walk(image, Damage::Salvaged) else { return };
    let mut buffer = vec![0; 20_000];
    for (id, inode) in opened.tree.inodes().take(2000) {
        for offset in [0, inode.size() / 2, inode.size().saturating_sub(9000)] {
            let _ = read_content(&*opened.content, id, offset, &mut buffer);
        }
    }
}

fn random(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

/// Some thousand images with random bytes in their metadata, most of them with right checksums.
#[test]
fn every_damage_is_survived() {
    let base = golden::image();
    let mut state = 5;
    let mut walked = 0;
    for round in 0..rounds(1500) {
        let mut made = base.clone();
        for _ in 0..1 + round % 5 {
            let blocks: Vec<_> = made.blocks.iter().copied().chain([SUPERBLOCK]).collect();
            let block = blocks[random(&mut state, blocks.len())];
            // Most bytes of a block are at its start or its end.
            let within = match random(&mut state, 3) {
                0 => random(&mut state, NODE),
                1 => random(&mut state, 400),
                _ => NODE - 1 - random(&mut state, 1500),
            };
            let value = [0, 1, 0x7f, 0xff, random(&mut state, 256) as u8][random(&mut state, 5)];
            let end = (block + within + 1 + random(&mut state, 4)).min(block + NODE);
            made.image[block + within..end].fill(value);
        }
        if round % 8 != 0 {
            made.seal();
        }
        if round % 10 == 0
            && let Ok(volume) =
                open_volume(Parsing::unconfined(), Arc::new(Bytes(made.image.clone())), Damage::Salvaged)
        {
            ask_for_everything(&*volume, made.image.len());
        }
        walked += u32::from(walk(made.image.clone(), Damage::Salvaged).is_ok());
        read_all(made.image);
    }
    assert!(walked > rounds(1500) / 4, "{walked}");
}

#[test]
fn a_cut_image_is_an_error_or_has_less() {
    let image = golden::image().image;
    for length in [0, 100, SUPERBLOCK, SUPERBLOCK + 4095, SUPERBLOCK + 4096, 128 << 10, 150 << 10, 200 << 10, 300 << 10]
    {
        read_all(image[..length].to_vec());
        let cut = walk(image[..length].to_vec(), Damage::Refused);
        assert!(cut.is_err() || length > 200 << 10, "{length}");
    }
}

/// An image whose top subvolume has these items.
fn with_items(items: Items) -> Made {
    let mut b = Builder::new(1 << 20);
    let top = b.tree(&sorted(items));
    let roots = b.tree(&[((5, kind::ROOT, 0), root_item(top))]);
    b.finish(roots)
}

fn refused(made: Made) -> String {
    let error = walk(made.image.clone(), Damage::Refused).err().expect("it is refused");
    read_all(made.image);
    error.to_string()
}

/// An image with one file, which has these extents.
fn with_extents(size: u64, extents: Vec<(u64, Vec<u8>)>) -> Made {
    let mut root = Directory::new(256, 256);
    let mut items = vec![(kind::INODE, 0, inode(0o100_644, size, 0))];
    items.extend(extents.into_iter().map(|(offset, item)| (kind::EXTENT, offset, item)));
    root.add(b"file", 257, 1, items);
    with_items(root.items)
}

#[test]
fn trees_that_are_circles_or_have_wrong_levels_are_refused() {
    let first: Key = (256, kind::INODE, 0);
    for (level, says) in [(1, "another level"), (7, "another level"), (200, "more than 8 levels")] {
        let mut b = Builder::new(1 << 20);
        let at = b.reserve();
        // It is its own child, in every slot.
        let below: Vec<_> = (0..100).map(|number| ((256 + number, kind::INODE, 0), at)).collect();
        b.node(at, level.min(7), &below);
        let roots = b.tree(&[((5, kind::ROOT, 0), root_item((at, level)))]);
        let error = refused(b.finish(roots));
        assert!(error.contains(says), "{level}: {error}");
    }
    // One leaf below many keys; a leaf with keys beyond those of its parent; a node of nothing.
    let root = sorted(Directory::new(256, 256).items);
    for (below, says) in [
        (vec![(first, 0), ((256, kind::INODE, 1), 0), ((300, 1, 0), 0)], "other keys"),
        (vec![((256, kind::INODE, 0), 0), ((256, kind::INODE_REF, 0), 0)], "other keys"),
        (vec![], "a node of nothing"),
    ] {
        let mut b = Builder::new(1 << 20);
        let (leaf, at) = (b.reserve(), b.reserve());
        b.leaf(leaf, &root);
        b.node(at, 1, &below.into_iter().map(|(key, _): (Key, u64)| (key, leaf)).collect::<Vec<_>>());
        let roots = b.tree(&[((5, kind::ROOT, 0), root_item((at, 1)))]);
        let error = refused(b.finish(roots));
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn items_outside_of_their_leaf_and_keys_out_of_order_are_refused() {
    let damage = |at: usize, bytes: &[u8]| {
        let mut made = golden::image();
        let leaf = made.blocks[0];
        made.image[leaf + at..leaf + at + bytes.len()].copy_from_slice(bytes);
        made.seal();
        refused(made)
    };
    // Item 0: its key at 101, its offset at 118, its size at 122.
    assert!(damage(118, &4000u32.to_le_bytes()).contains("outside of itself"));
    assert!(damage(122, &u32::MAX.to_le_bytes()).contains("outside of itself"));
    assert!(damage(118, &0u32.to_le_bytes()).contains("outside of itself"));
    assert!(damage(101, &u64::MAX.to_le_bytes()).contains("out of order"));
    assert!(damage(96, &10_000u32.to_le_bytes()).contains("more than there is room for"));
    assert!(damage(48, &1u64.to_le_bytes()).contains("belongs to another place"));
    assert!(damage(80, &8u64.to_le_bytes()).contains("another level or generation"));
    let mut made = golden::image();
    let leaf = made.blocks[0];
    made.image[leaf + 3000] ^= 1;
    assert!(refused(made).contains("wrong checksum"));
}

#[test]
fn chunks_that_overlap_or_lead_nowhere_are_refused() {
    // The chunk tree is the last one made: its leaf has one item.
    let with_chunks = |items: &[(Key, Vec<u8>)]| {
        let mut made = golden::image();
        let at = *made.blocks.last().unwrap();
        let mut b = Builder::of(made);
        b.image[at..at + NODE].fill(0);
        b.leaf(at as u64, items);
        made = Made { image: b.image, blocks: b.blocks };
        made.seal();
        refused(made)
    };
    let whole = || ((256, kind::CHUNK, 0), chunk(1 << 20, 0));
    assert!(with_chunks(&[whole(), ((256, kind::CHUNK, 4096), chunk(4096, 0))]).contains("overlap"));
    assert!(with_chunks(&[((256, kind::CHUNK, 0), chunk(4096, 0))]).contains("overlap"));
    assert!(with_chunks(&[whole(), ((256, kind::CHUNK, 1 << 40), chunk(0, 0))]).contains("empty"));
    assert!(with_chunks(&[whole(), ((256, kind::CHUNK, u64::MAX - 9), chunk(4096, 0))]).contains("beyond 2^64"));
    // A chunk behind the end of the image.
    let mut made = with_extents(8192, vec![(0, extent(1 << 40, 8192, 0, 8192, 8192, 0, 1))]);
    assert!(refused(made.clone()).contains("in no chunk"));
    made.image[SUPERBLOCK + 0xa0..SUPERBLOCK + 0xa4].copy_from_slice(&5000u32.to_le_bytes());
    made.seal();
    assert!(refused(made).contains("list of chunks has 5000 bytes"));
}

#[test]
fn extents_that_overlap_or_are_too_long_are_refused() {
    let plain = |offset, length| (offset, extent(200_704, 8192, 0, length, 8192, 0, 1));
    for (extents, says) in [
        (vec![plain(0, 8192), plain(4096, 4096)], "overlap"),
        (vec![plain(0, 16_384)], "longer than what it refers to"),
        (vec![(0, extent((1 << 20) - 4096, u64::MAX, 0, u64::MAX, 0, 0, 1))], "in no chunk"),
        (vec![(0, extent(200_704, u64::MAX, 4096, u64::MAX, 0, 0, 1))], "longer than what it refers to"),
        (vec![(4096, inline(5, 0, b"bytes"))], "where only a file's start may be"),
        (vec![(0, inline(500, 0, b"bytes"))], "longer than its item"),
        (vec![(0, extent(200_704, 4096, 0, 4096, 1 << 40, 3, 1))], "longer than 128 KiB"),
        (vec![(0, extent(200_704, 1 << 40, 0, 4096, 4096, 3, 1))], "longer than 128 KiB"),
        (vec![(0, extent(200_704, 4096, 0, 4096, 4096, 9, 1))], "unknown method 9"),
        (vec![(0, extent(200_704, 4096, 0, 4096, 4096, 0, 7))], "unknown kind 7"),
        (vec![(0, vec![0; 20])], "cut off"),
    ] {
        let made = with_extents(100_000, extents);
        let found = match walk(made.image.clone(), Damage::Refused) {
            Err(error) => error.to_string(),
            Ok(opened) => opened.notes.join("\n"),
        };
        assert!(found.contains(says), "{says}: {found}");
        read_all(made.image);
    }
}

/// A frame that says that it decompresses to a gibibyte gives no more than its extent says, which is bounded.
#[test]
fn a_bomb_gives_no_more_than_its_extent_has() {
    let zeros = zstd::bulk::compress(&vec![0; 64 << 20], 19).unwrap();
    assert!(zeros.len() < 8192);
    let mut b = Builder::new(1 << 20);
    let at = b.data(&zeros);
    let mut root = Directory::new(256, 256);
    let items = vec![
        (kind::INODE, 0, inode(0o100_644, 131_072, 0)),
        (kind::EXTENT, 0, extent(at, 8192, 0, 131_072, 131_072, 3, 1)),
    ];
    root.add(b"bomb", 257, 1, items);
    let top = b.tree(&sorted(root.items));
    let roots = b.tree(&[((5, kind::ROOT, 0), root_item(top))]);
    let opened = walk(b.finish(roots).image, Damage::Refused).unwrap();
    let mut bytes = vec![1; 131_072];
    let read = read_content(&*opened.content, opened.tree.lookup(b"bomb").unwrap(), 0, &mut bytes);
    // Its window is larger than Btrfs makes any.
    assert!(read.is_err() || bytes.iter().all(|byte| *byte == 0));
}

/// A thousand subvolumes that are one tree of a thousand names: the walk ends before it has more names than an image of this
/// size could hold.
#[test]
fn subvolumes_that_share_a_tree_are_bounded() {
    let mut b = Builder::new(2 << 20);
    let mut root = Directory::new(256, 256);
    for number in 0..1000u64 {
        root.name(format!("{number}").as_bytes(), (257 + number, kind::ROOT, u64::MAX), 2);
    }
    let top = b.tree(&sorted(root.items));
    let mut shared = Directory::new(256, 256);
    for number in 0..1000u64 {
        shared.name(format!("{number:0>150}").as_bytes(), (300, kind::INODE, 0), 1);
    }
    shared.items.push(((300, kind::INODE, 0), inode(0o100_644, 0, 0)));
    let shared = b.tree(&sorted(shared.items));
    let mut roots = vec![((5, kind::ROOT, 0), root_item(top))];
    for number in 0..1000u64 {
        roots.push(((257 + number, kind::ROOT, 0), root_item(shared)));
        let reference = root_reference(256, format!("{number}").as_bytes());
        roots.push(((5, kind::ROOT_REF, 257 + number), reference));
    }
    let roots = b.tree(&sorted(roots));
    let opened = walk(b.finish(roots).image, Damage::Salvaged).unwrap();
    assert!(
        opened.notes.iter().any(|note| note.contains("more than an image of its size can have")),
        "{:?}",
        opened.notes
    );
}
