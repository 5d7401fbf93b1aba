//! The kernel of this host mounts a planned device, finds in it what the tree says, and can write to it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use crate::common::mount::{Mount, host_content, xattrs};
use crate::common::mounted::{compare_inode, compare_names};
use crate::common::odd::odd_tree;
use crate::common::*;
use inarch_format::ext4::{Options, plan};
use inarch_tree::scan::{ScanOptions, scan};
use inarch_tree::{FileType, InodeId, Timestamp, Tree};

/// The time ext4 shows for one: the nearest end of its range for times beyond it.
fn shown(time: Timestamp) -> (i64, i64) {
    let seconds = time.seconds.clamp(-(1 << 31), (1 << 34) - (1 << 31) - 1);
    (seconds, if seconds == time.seconds { i64::from(time.nanoseconds) } else { 0 })
}

/// Compares everything but content.
fn compare_attributes(tree: &Tree, id: InodeId, path: &Path) {
    let inode = tree.inode(id);
    let metadata = compare_inode(tree, id, path);
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), shown(inode.mtime()), "{path:?}");
    assert_eq!((metadata.ctime(), metadata.ctime_nsec()), shown(inode.ctime()), "{path:?}");
    assert_eq!((metadata.atime(), metadata.atime_nsec()), shown(inode.mtime()), "{path:?}");
    assert_eq!(xattrs(path), tree.xattrs(inode.xattrs()), "{path:?}");
    let links = u64::from(inode.links()) + u64::from(id == InodeId::ROOT);
    assert_eq!(metadata.nlink(), links, "{path:?}");
}

/// Compares a mounted directory with the tree's, and all below; calls `content` for each regular file.
fn compare(tree: &Tree, at: &Path, content: &mut impl FnMut(InodeId, &Path)) {
    compare_names(tree, at, Some("lost+found"), &mut |id, path| {
        compare_attributes(tree, id, path);
        if tree.inode(id).file_type() == FileType::Regular {
            content(id, path);
        }
    });
}

#[test]
fn every_odd_thing_is_as_the_tree_says() {
    let tree = Arc::new(odd_tree());
    for journal in [None, Some(8 << 20)] {
        let planned = plan(tree.clone(), &Options { journal, ..small() }).unwrap();
        let scratch = Scratch::new();
        dump(&planned.map, &scratch.path("image"), fill_pattern);
        let Some(mount) = Mount::new(&scratch.path("image"), "loop,ro") else { return };
        compare(&tree, &mount.0, &mut |id, path| {
            // The first and the last bytes; some files are a terabyte of hole.
            let file = fs::File::open(path).unwrap();
            let size = tree.inode(id).size();
            let mapped = |at: u64| match tree.sparse_ranges(id) {
                Some(ranges) => {
                    ranges.iter().any(|r| r.offset / 4096 <= at / 4096 && at / 4096 <= (r.offset + r.length - 1) / 4096)
                }
                None => true,
            };
            for at in (0..size.min(20_000)).step_by(7).chain((size / 2..size).take(100)).chain(size.checked_sub(1)) {
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                assert_eq!(byte[0], if mapped(at) { pattern(id, at) } else { 0 }, "{path:?} at {at}");
            }
        });
    }
}

/// A directory of this host with a bit of everything.
fn make_source(root: &Path) {
    for dir in ["a/b/c", "many", "empty"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for i in 0..3000 {
        fs::write(root.join(format!("many/file number {i}")), i.to_string().repeat(i % 50)).unwrap();
    }
    fs::write(root.join("a/large"), (0..5_000_000u32).map(|i| (i.wrapping_mul(i) >> 8) as u8).collect::<Vec<_>>())
        .unwrap();
    let sparse = fs::File::create(root.join("a/sparse")).unwrap();
    for i in 0..200 {
        (&sparse).write_all(b"x").unwrap();
        sparse.write_all_at(b"content", i * 1_000_000 + i).unwrap();
    }
    sparse.set_len(300_000_000).unwrap();
    fs::hard_link(root.join("a/large"), root.join("a/b/link to large")).unwrap();
    symlink("a/large", root.join("short link")).unwrap();
    symlink("x/".repeat(100), root.join("long link")).unwrap();
    fs::set_permissions(root.join("a/b"), fs::Permissions::from_mode(0o1750)).unwrap();
    std::os::unix::fs::chown(root.join("a/b/c"), Some(123_456), Some(654_321)).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("a"), "user.note", &[b'n'; 1000], flags).unwrap();
    rustix::fs::setxattr(root.join("a/large"), "trusted.t", b"", flags).unwrap();
    rustix::fs::setxattr(root.join("a/b"), "system.posix_acl_default", &crate::common::odd::acl(), flags).unwrap();
}

#[test]
fn a_scanned_directory_is_the_same_when_mounted() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a_scanned_directory_is_the_same_when_mounted: mounting an image needs root");
        return;
    }
    make_source(&source);
    let tree = Arc::new(scan(&source, &ScanOptions::default()).unwrap().tree);
    let planned = plan(tree.clone(), &small()).unwrap();
    dump(&planned.map, &scratch.path("image"), host_content(&source, &tree));
    assert_clean(&scratch.path("image"));
    let Some(mount) = Mount::new(&scratch.path("image"), "loop,ro") else { return };
    compare(&tree, &mount.0, &mut |_, path| {
        let original = source.join(path.strip_prefix(&mount.0).unwrap());
        assert!(fs::read(path).unwrap() == fs::read(&original).unwrap(), "{path:?} differs in content");
    });
}

/// Creates, renames, changes and deletes below `at`, as a build would.
fn write_much(at: &Path) {
    for dir in ["crowd", "small", ""] {
        let dir = at.join(dir);
        for i in 0..10_000 {
            fs::write(dir.join(format!("new-{i}")), i.to_string()).unwrap();
        }
        for i in (0..10_000).step_by(2) {
            fs::remove_file(dir.join(format!("new-{i}"))).unwrap();
        }
        for i in (1..10_000).step_by(4) {
            fs::rename(dir.join(format!("new-{i}")), dir.join(format!("moved-{i:0200}"))).unwrap();
        }
    }
    for i in (0..30_000).step_by(3) {
        fs::remove_file(at.join(format!("crowd/{i:05}"))).unwrap();
    }
    fs::write(at.join("crowd/00001"), vec![1; 30 << 20]).unwrap();
    fs::create_dir_all(at.join("deep/er/and/deeper")).unwrap();
    rustix::fs::setxattr(at.join("crowd"), "user.x", &[1; 3000], rustix::fs::XattrFlags::empty()).unwrap();
}

#[test]
fn what_a_kernel_writes_leaves_it_clean() {
    for journal in [None, Some(16 << 20)] {
        let mut b = builder();
        let crowd = b.add(b"crowd", &directory()).unwrap();
        b.add(b"small", &directory()).unwrap();
        b.list(crowd).unwrap();
        for i in 0..30_000 {
            b.add(format!("{i:05}").as_bytes(), &file(i % 10_000)).unwrap();
        }
        let options = Options { journal, free_bytes: 400 << 20, free_inodes: 50_000, ..Options::default() };
        let planned = planned(b.finish().unwrap(), &options);
        let scratch = Scratch::new();
        let image = scratch.path("image");
        dump(&planned.map, &image, no_content);
        let Some(mount) = Mount::new(&image, "loop") else { return };
        write_much(&mount.0);
        drop(mount);
        assert_clean(&image);
        let mount = Mount::new(&image, "loop,ro").unwrap();
        assert_eq!(fs::read_to_string(mount.0.join("small/new-9999")).unwrap(), "9999");
        assert_eq!(fs::read_dir(mount.0.join("crowd")).unwrap().count(), 20_000 + 5_000);
    }
}

#[test]
fn all_free_space_can_be_written() {
    let options = Options { free_bytes: 64 << 20, ..small() };
    let scratch = Scratch::new();
    let image = scratch.path("image");
    dump(&planned(builder().finish().unwrap(), &options).map, &image, no_content);
    let Some(mount) = Mount::new(&image, "loop") else { return };
    let mut file = fs::File::create(mount.0.join("fill")).unwrap();
    let mut written = 0;
    while let Ok(count @ 1..) = file.write(&[7; 65_536]) {
        written += count;
    }
    // The kernel keeps 4096 clusters or 2 % back for itself, and the file needs an extent block or two.
    assert!(written > 60 << 20, "{written} bytes");
    drop(file);
    drop(mount);
    assert_clean(&image);
}
