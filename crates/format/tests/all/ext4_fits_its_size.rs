//! An ext4 image is as large as asked for, or as small as can be, with the journal and the inodes of that size.

use std::sync::Arc;

use crate::common::odd::odd_tree;
use crate::common::*;
use inarch_block::{BLOCK_SIZE, BlockMap};
use inarch_format::ext4::Ext4;
use inarch_format::{Algorithm, Compression, Format, ImageOptions, Layout, Planned};
use inarch_tree::Tree;

const BLOCK: u64 = BLOCK_SIZE as u64;

fn image(tree: &Arc<Tree>, options: &ImageOptions) -> Result<(BlockMap, Vec<String>), String> {
    let Planned { layout, notes } = Ext4.plan(tree, options).map_err(|error| error.to_string())?;
    match layout {
        Layout::Blocks(map) => Ok((map, notes)),
        _ => panic!("ext4 is made of blocks"),
    }
}

fn of_size(tree: &Arc<Tree>, bytes: u64) -> Result<BlockMap, String> {
    image(tree, &ImageOptions { size: Some(bytes), ..ImageOptions::default() }).map(|(map, _)| map)
}

/// What dumpe2fs says of an image after `field`.
fn field(image: &std::path::Path, field: &str) -> String {
    let output = std::process::Command::new("dumpe2fs").arg("-h").arg(image).env("LC_ALL", "C").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn flat(files: u32, size: u64) -> Arc<Tree> {
    let mut b = builder();
    for i in 0..files {
        b.add(format!("{i:06}").as_bytes(), &file(size)).unwrap();
    }
    Arc::new(b.finish().unwrap())
}

#[test]
fn the_smallest_is_the_smallest() {
    let scratch = Scratch::new();
    // The second wants more groups for its inodes than for its blocks; the others lie around changes of the journal.
    let trees = [Arc::new(odd_tree()), flat(40_000, 0), flat(7, 1 << 20), flat(124, 1 << 20), flat(1000, 1 << 20)];
    for (number, tree) in trees.iter().enumerate() {
        let (map, _) = image(tree, &ImageOptions::default()).unwrap();
        let least = map.blocks() * BLOCK;
        let path = scratch.path(&format!("{number}"));
        dump(&map, &path, no_content);
        assert_clean(&path);
        assert_eq!(of_size(tree, least).unwrap().blocks(), map.blocks());
        let message = of_size(tree, least - 1).err().unwrap();
        assert!(message.starts_with("ext4: ") && message.contains(&least.to_string()), "{message}");
    }
}

#[test]
fn a_size_is_kept_and_filled() {
    let scratch = Scratch::new();
    let tree = flat(100, 10_000);
    for (bytes, journal) in [(4u64 << 20, ""), (64 << 20, "4096k"), (3 << 30, "64M"), (1 << 40, "512M")] {
        let map = of_size(&tree, bytes).unwrap();
        assert_eq!(map.blocks() * BLOCK, bytes);
        let path = scratch.path("image");
        dump(&map, &path, no_content);
        if bytes <= 64 << 30 {
            assert_clean(&path);
        }
        assert_eq!(field(&path, "Total journal size"), journal);
        let inodes: u64 = field(&path, "Inode count").parse().unwrap();
        assert!(inodes >= bytes / 16_384 / 10 * 9 && inodes <= bytes / 16_384 + 10_000, "{inodes} of {bytes}");
    }
    // Not a whole number of blocks, and one block more than whole groups.
    for bytes in [(64 << 20) + 4095, (128 << 20) + 4096, (256 << 20) - 4096] {
        let map = of_size(&tree, bytes).unwrap();
        assert_eq!(map.blocks(), bytes / BLOCK);
        dump(&map, &scratch.path("image"), no_content);
        assert_clean(&scratch.path("image"));
    }
}

#[test]
fn free_space_is_what_was_asked_for() {
    let scratch = Scratch::new();
    for free_bytes in [1u64 << 20, 200 << 20, 5 << 30] {
        let (map, _) = image(&flat(10, 5000), &ImageOptions { free_bytes, ..ImageOptions::default() }).unwrap();
        dump(&map, &scratch.path("image"), no_content);
        assert_clean(&scratch.path("image"));
        let free: u64 = field(&scratch.path("image"), "Free blocks").parse().unwrap();
        assert_eq!(free, free_bytes / BLOCK);
        let inodes: u64 = field(&scratch.path("image"), "Free inodes").parse().unwrap();
        assert!(inodes >= free_bytes / 16_384);
    }
}

#[test]
fn names_and_dates_are_taken() {
    let scratch = Scratch::new();
    let options = ImageOptions {
        label: "my label".into(),
        uuid: Some(*b"\x12\x34\x56\x78\x9a\xbc\xde\xf0\x12\x34\x56\x78\x9a\xbc\xde\xf0"),
        epoch: Some(1_234_567_890),
        ..ImageOptions::default()
    };
    dump(&image(&flat(1, 1), &options).unwrap().0, &scratch.path("image"), no_content);
    assert_clean(&scratch.path("image"));
    assert_eq!(field(&scratch.path("image"), "Filesystem volume name"), "my label");
    assert_eq!(field(&scratch.path("image"), "Filesystem UUID"), "12345678-9abc-def0-1234-56789abcdef0");
    assert!(field(&scratch.path("image"), "Filesystem created").contains("2009"));
}

#[test]
fn what_ext4_cannot_do_is_refused() {
    let compression = Some(Compression { algorithm: Algorithm::Zstd, level: None });
    for (options, part) in [
        (ImageOptions { compression, ..ImageOptions::default() }, "compresses nothing"),
        (ImageOptions { block_size: Some(1024), ..ImageOptions::default() }, "1024"),
        (ImageOptions { label: "x".repeat(17), ..ImageOptions::default() }, "longer than 16 bytes"),
        (ImageOptions { size: Some(0), ..ImageOptions::default() }, "too few"),
    ] {
        let message = image(&flat(1, 1), &options).err().unwrap();
        assert!(message.starts_with("ext4: ") && message.contains(part), "{message}");
    }
    let four = ImageOptions { block_size: Some(4096), ..ImageOptions::default() };
    assert!(image(&flat(1, 1), &four).is_ok());
}

#[test]
fn hard_links_beyond_the_format_are_split_and_said() {
    let mut b = builder();
    let first = b.add(b"000000", &file(1)).unwrap();
    for i in 1..65_001 {
        b.link(format!("{i:06}").as_bytes(), first).unwrap();
    }
    let (_, notes) = image(&Arc::new(b.finish().unwrap()), &ImageOptions::default()).unwrap();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("65000 hard links"), "{notes:?}");
}
