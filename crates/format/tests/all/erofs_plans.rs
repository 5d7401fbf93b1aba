//! What a plan promises: its options, its limits, and how large its metadata is.

use std::sync::Arc;

use crate::common::odd::xattr;
use crate::common::*;
use crate::erofs::{Pattern, assert_clean, dump_erofs, odd_tree, planned, try_plan, write};
use inarch_block::{BLOCK_SIZE, Run};
use inarch_format::{Algorithm, Compression, ImageOptions};
use inarch_tree::{Attributes, DataRange, InodeId, Tree};

#[test]
fn options_reach_the_superblock() {
    let tree = Arc::new(odd_tree());
    let size = (planned(&tree).blocks() + 7) * BLOCK_SIZE as u64;
    let options = ImageOptions {
        label: "a label of its ".into(),
        uuid: Some([0x11; 16]),
        epoch: Some(1_234_567_890),
        size: Some(size),
        ..ImageOptions::default()
    };
    let scratch = Scratch::new();
    let image = scratch.path("image");
    write(try_plan(&tree, &options).unwrap(), Arc::new(Pattern(tree.clone())), &image);
    assert_clean(&image);
    assert_eq!(std::fs::metadata(&image).unwrap().len(), size);
    let text = dump_erofs(&image, &["-s"]);
    assert!(text.contains("11111111-1111-1111-1111-111111111111"), "{text}");
    assert!(text.contains(&format!("inode count:                       {}", tree.inode_count())), "{text}");
    let superblock = &std::fs::read(&image).unwrap()[1024..1152];
    assert_eq!(&superblock[24..32], &1_234_567_890u64.to_le_bytes());
    assert_eq!(&superblock[64..80], b"a label of its \0");
}

#[test]
fn the_same_tree_gives_the_same_bytes() {
    let bytes = || {
        let map = planned(&Arc::new(odd_tree()));
        let mut block = [0; BLOCK_SIZE];
        let mut rendered = Vec::new();
        for number in map.metadata().iter().flat_map(Clone::clone) {
            map.render(number, &mut block);
            rendered.extend(block);
        }
        (map.files().to_vec(), rendered)
    };
    assert!(bytes() == bytes());
}

/// Why a tree cannot be planned.
fn refusal(tree: Tree, options: &ImageOptions) -> String {
    match try_plan(&Arc::new(tree), options) {
        Ok(_) => panic!("it was planned"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_cannot_be_stored_is_named() {
    let with = |attributes: Attributes| {
        let mut b = builder();
        let dir = b.add(b"dir", &directory()).unwrap();
        b.list(dir).unwrap();
        b.add(b"the file", &attributes).unwrap();
        refusal(b.finish().unwrap(), &ImageOptions::default())
    };
    let device = with(Attributes { device: (4096, 0), ..attributes(0o020666) });
    assert_eq!(device, "erofs: dir/the file: the device number 4096:0 cannot be stored");
    let size = with(file(1 << 44));
    assert_eq!(size, "erofs: dir/the file: 17592186044416 bytes exceed the greatest file size, 17592186040320");
    let image = with(file((1 << 44) - 4096));
    assert!(image.contains("the file: what the image holds up to this file exceeds 16 TiB"), "{image}");
    let xattrs = |name: &str, value: &[u8]| {
        let mut b = builder();
        let set = b.intern_xattrs(vec![xattr(name, value)]);
        b.add(b"x", &Attributes { xattrs: set, ..file(0) }).unwrap();
        refusal(b.finish().unwrap(), &ImageOptions::default())
    };
    assert!(xattrs("user.a", &[0; 65_536]).contains("x: the value of \"user.a\" has 65536 bytes, more than 65535"));
    assert!(xattrs("system.other", b"").contains("x: the extended attribute \"system.other\""));
    assert!(xattrs("system.posix_acl_access", b"no").contains("is not a POSIX ACL"));
    let mut b = builder();
    let many = (0..5).map(|i| xattr(&format!("user.{i}"), &[i; 65_000])).collect();
    let set = b.intern_xattrs(many);
    b.add(b"y", &Attributes { xattrs: set, ..file(0) }).unwrap();
    let text = refusal(b.finish().unwrap(), &ImageOptions::default());
    assert_eq!(text, "erofs: y: its extended attributes exceed 262148 bytes");
}

#[test]
fn options_that_cannot_be_met() {
    let refused = |options| refusal(builder().finish().unwrap(), &options);
    let defaults = ImageOptions::default;
    assert!(refused(ImageOptions { label: "x".repeat(16), ..defaults() }).contains("longer than 15 bytes"));
    assert!(refused(ImageOptions { size: Some(4096), ..defaults() }).contains("the image needs 8192 bytes"));
    assert!(refused(ImageOptions { block_size: Some(1024), ..defaults() }).contains("only 4096 are supported"));
    let compression = Some(Compression { algorithm: Algorithm::Xz, level: None });
    assert!(refused(ImageOptions { compression, ..defaults() }).contains("compression by xz"));
}

#[test]
fn an_attribute_of_many_files_is_stored_once() {
    let mut b = builder();
    let set = b.intern_xattrs(vec![xattr("security.selinux", &[b's'; 2000])]);
    for i in 0..1000 {
        b.add(format!("{i:04}").as_bytes(), &Attributes { xattrs: set, ..file(0) }).unwrap();
    }
    let map = planned(&Arc::new(b.finish().unwrap()));
    // 96 bytes an inode with its attribute's address, the listing, and one value.
    assert!(map.blocks() < 1000 * 96 / 4096 + 10, "{}", map.blocks());
}

#[test]
fn holes_take_no_blocks_of_content() {
    let mut b = builder();
    let sparse = b.add(b"sparse", &file(1 << 40)).unwrap();
    b.set_sparse(sparse, &[DataRange { offset: 12_345_678_912, length: 5000 }]).unwrap();
    let tree = Arc::new(b.finish().unwrap());
    let map = planned(&tree);
    let content: u64 = map.files().iter().map(|file| u64::from(file.blocks)).sum();
    assert_eq!(content, 2);
    let metadata: u64 = map.metadata().iter().map(|range| range.end - range.start).sum();
    assert!(metadata < 2000, "{metadata}");
}

/// What the kernel wants of a file behind its inode: that it does not cross a block's end (`erofs_map_blocks` of its
/// fs/erofs/data.c).
#[test]
fn short_files_take_no_blocks() {
    let mut b = builder();
    let large = b.intern_xattrs(vec![xattr("user.large", &[1; 4000]), xattr("user.larger", &[2; 5000])]);
    let sizes: Vec<u64> = (0..600).map(|i| i * 37 % 8200).collect();
    for (place, size) in sizes.iter().enumerate() {
        // Two with the same attributes would have them once, elsewhere.
        let xattrs = if place == 300 { large } else { Default::default() };
        b.add(format!("{place:03}").as_bytes(), &Attributes { xattrs, ..file(*size) }).unwrap();
    }
    let tree = Arc::new(b.finish().unwrap());
    let map = try_plan(&tree, &ImageOptions { inline_files: true, ..ImageOptions::default() }).unwrap();
    let mut within = 0;
    for number in map.metadata().iter().flat_map(Clone::clone) {
        let mut block = [0; BLOCK_SIZE];
        map.render(number, &mut block);
        let mut end = 0;
        for inlay in map.inlays(number) {
            let size = tree.inode(inlay.inode).size();
            assert!(inlay.at >= end && inlay.length > 0, "{inlay:?} overlaps what is before it");
            end = inlay.at + inlay.length;
            assert!(block[inlay.at..end].iter().all(|byte| *byte == 0), "{inlay:?} is rendered over");
            assert_eq!((inlay.offset, inlay.length as u64), (0, size));
            within += 1;
        }
    }
    assert_eq!(within, sizes.iter().filter(|size| (1..=3072).contains(*size)).count());
    let apart = planned(&tree);
    assert!(map.blocks() * 100 < apart.blocks() * 95, "{} blocks against {}", map.blocks(), apart.blocks());
    assert!(apart.metadata().iter().flat_map(Clone::clone).all(|block| apart.inlays(block).is_empty()));
}

#[test]
fn a_directory_of_a_million_files() {
    let mut b = builder();
    for i in 0..1_000_000 {
        b.add(format!("{i:07}").as_bytes(), &file(i % 9000)).unwrap();
    }
    let tree = Arc::new(b.finish().unwrap());
    let map = planned(&tree);
    let last = map.files().last().unwrap();
    assert_eq!(last.inode, InodeId(1_000_000));
    assert_eq!(map.lookup(last.start), (Run::File { inode: last.inode, block: 0 }, u64::from(last.blocks)));
    let scratch = Scratch::new();
    let image = scratch.path("image");
    dump(&map, &image, no_content);
    let Some(mount) = crate::common::mount::Mount::new(&image, "loop,ro") else { return };
    for i in [0, 1, 499_999, 777_777, 999_999] {
        let metadata = std::fs::metadata(mount.0.join(format!("{i:07}"))).unwrap();
        assert_eq!(metadata.len(), i % 9000);
    }
    assert!(!mount.0.join("1000000").exists());
    assert_eq!(std::fs::read_dir(&mount.0).unwrap().count(), 1_000_000);
}
