//! `e2fsck -fn` finds nothing to mend in what is planned.

use crate::common::odd::{odd_tree, xattr};
use crate::common::*;
use inarch_format::ext4::Options;
use inarch_tree::{Attributes, DataRange, InodeId, Tree};

#[test]
fn an_empty_tree() {
    for free_bytes in [0, 1, 128 << 20, 1 << 30, 64 << 30] {
        for journal in [None, Some(4 << 20)] {
            let options = Options { free_bytes, journal, ..Options::default() };
            let plan = assert_clean_plan(builder().finish().unwrap(), &options);
            assert!(plan.summary.free_blocks * 4096 >= free_bytes);
        }
    }
}

#[test]
fn a_tree_of_every_odd_thing() {
    for journal in [None, Some(16 << 20)] {
        let plan = assert_clean_plan(odd_tree(), &Options { journal, ..small() });
        assert_eq!(plan.summary.xattr_inodes, 2);
    }
}

/// A tree of one directory with `count` entries, all made from `attributes`.
fn crowd(count: u32, attributes: &Attributes) -> Tree {
    let mut b = builder();
    let dir = b.add(b"crowd", &directory()).unwrap();
    b.list(dir).unwrap();
    for i in 0..count {
        b.add(format!("entry-{i:07}").as_bytes(), attributes).unwrap();
    }
    b.finish().unwrap()
}

#[test]
fn directories_around_every_change_of_shape() {
    // 4060 bytes are one block; 507 leaves of 139 entries are one level of index.
    for count in [1, 168, 169, 170, 1000, 507 * 139 - 1, 507 * 139, 507 * 139 + 1, 100_000] {
        assert_clean_plan(crowd(count, &file(0)), &small());
    }
}

#[test]
fn a_directory_of_a_million_files() {
    let plan = assert_clean_plan(crowd(1_000_000, &file(0)), &small());
    assert_eq!(plan.summary.hashed_directories, 1);
    assert!(plan.summary.inodes - plan.summary.free_inodes >= 1_000_000);
}

#[test]
fn a_directory_of_more_extents_than_an_inode_holds() {
    // 13 of these names fill a leaf; 4 extents of 32,768 blocks are what the inode holds.
    let mut b = builder();
    let dir = b.add(b"crowd", &directory()).unwrap();
    b.list(dir).unwrap();
    let first = b.add(format!("{:0255}", 0).as_bytes(), &file(0)).unwrap();
    for i in 1..4 * 32_768 * 13 {
        b.link(format!("{i:0255}").as_bytes(), first).unwrap();
    }
    let plan = assert_clean_plan(b.finish().unwrap(), &small());
    assert!(plan.summary.directory_blocks > 4 * 32_768);
}

#[test]
fn more_subdirectories_than_a_link_count_holds() {
    for count in [64_998, 64_999, 65_001] {
        assert_clean_plan(crowd(count, &directory()), &small());
    }
}

#[test]
fn names_of_the_greatest_length_in_number() {
    let mut b = builder();
    for i in 0..20_000 {
        b.add(format!("{i:0255}").as_bytes(), &file(0)).unwrap();
    }
    assert_clean_plan(b.finish().unwrap(), &small());
}

#[test]
fn a_deep_tree() {
    let mut b = builder();
    let mut at = InodeId::ROOT;
    for depth in 0..50_000 {
        if depth > 0 {
            b.list(at).unwrap();
        }
        at = b.add(b"d", &directory()).unwrap();
        b.add(b"f", &file(depth % 3000)).unwrap();
    }
    assert_clean_plan(b.finish().unwrap(), &small());
}

#[test]
fn more_hard_links_than_an_inode_counts() {
    let mut b = builder();
    let dir = b.add(b"links", &directory()).unwrap();
    let set = b.intern_xattrs(vec![xattr("user.a", &[1; 1000])]);
    let linked = b.add(b"original", &Attributes { xattrs: set, ..file(10_000) }).unwrap();
    let symlink = b.add(b"symlink", &attributes(0o120777)).unwrap();
    b.set_target(symlink, &[b'x'; 100]).unwrap();
    b.list(dir).unwrap();
    for i in 0..140_000 {
        b.link(format!("{i:06}").as_bytes(), linked).unwrap();
    }
    for i in 0..65_000 {
        b.link(format!("s{i:06}").as_bytes(), symlink).unwrap();
    }
    let plan = assert_clean_plan(b.finish().unwrap(), &small());
    assert_eq!(plan.summary.split_inodes, 3);
}

#[test]
fn extent_trees_of_every_depth() {
    let mut b = builder();
    // One extent maps at most 128 MiB; holes make as many as wanted.
    for (name, extents) in [("a4", 4), ("b5", 5), ("c340", 340), ("d1360", 1360), ("e1361", 1361), ("f500000", 500_000)]
    {
        let sparse = b.add(name.as_bytes(), &file(extents * 8192)).unwrap();
        let ranges: Vec<_> = (0..extents).map(|i| DataRange { offset: i * 8192 + 4096, length: 100 }).collect();
        b.set_sparse(sparse, &ranges).unwrap();
    }
    b.add(b"g-whole", &file(3 << 30)).unwrap();
    let end = b.add(b"h-greatest", &file((1 << 44) - 4096)).unwrap();
    b.set_sparse(end, &[DataRange { offset: (1 << 44) - 8192, length: 4096 }]).unwrap();
    let long_runs = b.add(b"i-runs", &file(2 << 30)).unwrap();
    let run = |offset: u64| DataRange { offset, length: 700 << 20 };
    b.set_sparse(long_runs, &[run(4096), run(1 << 30)]).unwrap();
    assert_clean_plan(b.finish().unwrap(), &small());
}

#[test]
fn one_attribute_set_on_more_inodes_than_share_a_block() {
    let mut b = builder();
    let in_block = b.intern_xattrs(vec![xattr("user.a", &[1; 1000])]);
    let apart = b.intern_xattrs(vec![xattr("user.a", &[2; 9000]), xattr("user.b", &[3; 3000])]);
    for i in 0..3000 {
        let xattrs = if i % 2 == 0 { in_block } else { apart };
        b.add(format!("{i:04}").as_bytes(), &Attributes { xattrs, ..file(1) }).unwrap();
    }
    let plan = assert_clean_plan(b.finish().unwrap(), &small());
    assert_eq!((plan.summary.xattr_blocks, plan.summary.xattr_inodes), (4, 1));
}

#[test]
fn a_tree_with_a_lost_and_found_of_its_own() {
    let mut b = builder();
    let own = b.add(b"lost+found", &directory()).unwrap();
    b.add(b"other", &file(1)).unwrap();
    b.list(own).unwrap();
    b.add(b"#12", &file(1)).unwrap();
    assert_clean_plan(b.finish().unwrap(), &small());
}

#[test]
fn a_tree_without_lost_and_found() {
    let options = Options { lost_and_found: false, journal: Some(4 << 20), ..small() };
    let with = assert_clean_plan(odd_tree(), &small());
    let without = assert_clean_plan(odd_tree(), &options);
    assert_eq!(with.summary.directory_blocks - without.summary.directory_blocks, 4);
}

#[test]
fn a_root_directory_that_needs_an_index() {
    let mut b = builder();
    for i in 0..5000 {
        b.add(format!("{i:05}").repeat(3).as_bytes(), &file(1)).unwrap();
    }
    assert_clean_plan(b.finish().unwrap(), &small());
}

#[test]
fn more_inodes_than_blocks_ask_for_groups() {
    let options = Options { free_bytes: 0, free_inodes: 200_000, ..Options::default() };
    let plan = assert_clean_plan(crowd(10, &file(0)), &options);
    assert_eq!(plan.summary.groups, 7);
}

#[test]
fn a_device_beyond_32_bits_of_blocks() {
    let options = Options { free_bytes: 17 << 40, free_inodes: 1000, journal: Some(64 << 20), ..Options::default() };
    let plan = planned(odd_tree(), &options);
    assert!(plan.summary.features.contains(&"64bit"));
    // ext4, which may be below the folder for temporary files, has no file of this size; tmpfs has.
    let scratch = Scratch::within("/dev/shm");
    dump(&plan.map, &scratch.path("image"), no_content);
    assert_clean(&scratch.path("image"));
}
