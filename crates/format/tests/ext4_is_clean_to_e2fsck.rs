//! `e2fsck -fn` finds nothing to mend in what is planned.

mod common;

use common::*;
use inarch_format::ext4::Options;
use inarch_tree::{Attributes, DataRange, InodeId, Timestamp, Tree, Xattr};

fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr { name: name.as_bytes().into(), value: value.into() }
}

/// A POSIX ACL as `getxattr` gives it: user::rwx, user:1000:r--, group::r-x, mask::r-x, other::---.
fn acl() -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [(1u16, 7u16, u32::MAX), (2, 4, 1000), (4, 5, u32::MAX), (0x10, 5, u32::MAX), (0x20, 0, !0)]
    {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// One of everything that a directory can hold.
fn odd_tree() -> Tree {
    let mut b = builder();
    let set = b.intern_xattrs(vec![
        xattr("user.small", b"1"),
        xattr("security.capability", &[1; 20]),
        xattr("system.posix_acl_access", &acl()),
    ]);
    let block = b.intern_xattrs(vec![xattr("user.larger", &[7; 500]), xattr("trusted.a", &[8; 500])]);
    let huge = b.intern_xattrs(vec![
        xattr("user.huge", &[9; 65_536]),
        xattr("user.large", &[10; 5000]),
        xattr("user.little", b"2"),
        xattr("user.empty", b""),
    ]);
    let old = Timestamp { seconds: -1_000_000_000, nanoseconds: 999_999_999 };
    let late = Timestamp { seconds: 13_569_465_600, nanoseconds: 1 };
    let never = Timestamp { seconds: i64::MAX, nanoseconds: u32::MAX };

    let long = b.add(&[b'0'; 255], &file(1)).unwrap();
    b.add(b"1bad\xFF\xFEutf8", &file(4096)).unwrap();
    b.add(b"2char", &Attributes { device: (1, 3), ..attributes(0o020666) }).unwrap();
    b.add(b"3block", &Attributes { device: (259, 70_000), ..attributes(0o060660) }).unwrap();
    b.add(b"4fifo", &attributes(0o010644)).unwrap();
    b.add(b"5socket", &attributes(0o140755)).unwrap();
    for (name, length) in [("6link1", 1), ("6link2", 59), ("6link3", 60), ("6link4", 4095)] {
        let link = b.add(name.as_bytes(), &attributes(0o120777)).unwrap();
        b.set_target(link, &vec![b't'; length]).unwrap();
    }
    let dir = b.add(b"7dir", &Attributes { xattrs: set, ..directory() }).unwrap();
    b.add(b"8in-block", &Attributes { xattrs: block, ..file(10) }).unwrap();
    b.add(b"8in-block-2", &Attributes { xattrs: block, ..attributes(0o010644) }).unwrap();
    b.add(b"8in-inode", &Attributes { xattrs: set, ..file(10) }).unwrap();
    b.add(b"8own-inode", &Attributes { xattrs: huge, ..file(0) }).unwrap();
    b.add(b"8own-inode-2", &Attributes { xattrs: huge, ..file(0) }).unwrap();
    b.add(b"9early", &Attributes { mtime: old, ctime: old, ..file(0) }).unwrap();
    b.add(b"9late", &Attributes { mtime: late, ctime: late, ..file(0) }).unwrap();
    b.add(b"9never", &Attributes { mtime: never, ctime: never, ..file(0) }).unwrap();
    let sparse = b.add(b"9sparse", &file(1 << 40)).unwrap();
    let range = |offset, length| DataRange { offset, length };
    b.set_sparse(sparse, &[range(0, 1), range(5000, 10), range(1 << 30, 300 << 10), range((1 << 40) - 1, 1)]).unwrap();
    let hole = b.add(b"9sparse-empty", &file(1 << 20)).unwrap();
    b.set_sparse(hole, &[]).unwrap();
    b.list(dir).unwrap();
    b.link(b"hard", long).unwrap();
    b.finish().unwrap()
}

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
    for depth in 0..3000 {
        if depth > 0 {
            b.list(at).unwrap();
        }
        at = b.add(b"d", &directory()).unwrap();
        b.add(b"f", &file(depth)).unwrap();
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
fn a_root_directory_that_needs_an_index() {
    let mut b = builder();
    for i in 0..5000 {
        b.add(format!("{i}-{i:04}").repeat(3).as_bytes(), &file(1)).unwrap_or_else(|_| InodeId::ROOT);
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
