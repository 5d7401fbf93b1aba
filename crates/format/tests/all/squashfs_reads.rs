//! Our reader finds in images, ours and those of mksquashfs, what was put into them.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use crate::common::Scratch;
use crate::common::mount::xattrs;
use crate::squashfs::*;
use inarch_block::{Content, read_content};
use inarch_format::{ImageOptions, ReadError};
use inarch_tree::scan::{ScanOptions, scan};
use inarch_tree::{FileType, Tree};
use rustix::fs::{Mode, XattrFlags, mknodat};

#[test]
fn our_own_images_come_back() {
    let tree = Arc::new(odd_tree());
    let content = Arc::new(Pattern::new(&tree));
    for block_size in [4096, 128 << 10, 1 << 20] {
        let scratch = Scratch::new();
        let image = scratch.path("image");
        make(&tree, content.clone(), &image, &ImageOptions { block_size: Some(block_size), ..ImageOptions::default() });
        let opened = try_open(&image).unwrap();
        compare_opened(&tree, &*content, &opened);
        assert!(opened.notes.is_empty());
    }
}

/// Bytes that compress to about half.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b'a' + (state % 16) as u8
    };
    (0..length).map(|_| step()).collect()
}

/// A directory with files of all sizes and kinds.
fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("sub/deeper")).unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    for (i, size) in [0, 1, 100, 4095, 4096, 5000, 70_000, 131_072, 131_073, 262_144, 700_001].into_iter().enumerate() {
        fs::write(dir.join(format!("of{size}")), noise(i as u64, size)).unwrap();
    }
    fs::write(dir.join("again"), noise(6, 70_000)).unwrap();
    fs::write(dir.join("sub/again"), noise(10, 700_001)).unwrap();
    fs::write(dir.join("zeros"), vec![0; 300_000]).unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    sparse.write_all_at(&noise(77, 5000), 3_000_000).unwrap();
    sparse.write_all_at(&noise(78, 5000), 6_000_000).unwrap();
    drop(sparse);
    fs::hard_link(dir.join("of5000"), dir.join("sub/hard")).unwrap();
    symlink("of5000", dir.join("link")).unwrap();
    symlink("t".repeat(2000), dir.join("sub/long-link")).unwrap();
    for i in 0..2000 {
        let mut file = File::create(dir.join(format!("sub/deeper/{i:04}{}", "n".repeat(i % 60)))).unwrap();
        file.write_all(&noise(i as u64, i % 300)).unwrap();
    }
    fs::set_permissions(dir.join("of1"), fs::Permissions::from_mode(0o4711)).unwrap();
    rustix::fs::setxattr(dir.join("of100"), "user.one", b"value", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(dir.join("of1"), "user.large", &[b'v'; 3000], XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(dir.join("sub"), "user.large", &[b'v'; 3000], XattrFlags::empty()).unwrap();
    if rustix::process::geteuid().is_root() {
        let node = |name: &str, kind, device| {
            mknodat(rustix::fs::CWD, dir.join(name), kind, Mode::from(0o640), device).unwrap();
        };
        node("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
        node("disk", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(259, 70_000));
        node("pipe", rustix::fs::FileType::Fifo, 0);
        node("door", rustix::fs::FileType::Socket, 0);
        std::os::unix::fs::chown(dir.join("of4096"), Some(1000), Some(70_000)).unwrap();
        rustix::fs::setxattr(dir.join("link"), "trusted.of-a-file", b"1", XattrFlags::empty()).unwrap();
    } else {
        let test = std::thread::current();
        let test = test.name().unwrap_or("a test");
        eprintln!("skipped: {test}: device nodes, foreign owners and trusted attributes: they need root");
    }
}

/// A filled directory, as a tree with its content.
fn filled(scratch: &Scratch) -> (Arc<Tree>, Arc<dyn Content>) {
    let source = scratch.path("source");
    fill(&source);
    let tree = Arc::new(scan(&source, &ScanOptions::default()).unwrap().tree);
    let content = host_files(&source, &tree);
    assert_eq!(xattrs(&source.join("of100")).len(), 1);
    (tree, content)
}

#[test]
fn images_of_mksquashfs_come_back() {
    let scratch = Scratch::within("/tmp");
    let (tree, content) = filled(&scratch);
    let image = scratch.path("image");
    let variants: [&[&str]; 20] = [
        &["-comp", "gzip"],
        &["-comp", "gzip", "-Xcompression-level", "1", "-Xwindow-size", "10"],
        &["-comp", "lz4"],
        &["-comp", "lz4", "-Xhc", "-b", "4096"],
        &["-comp", "zstd"],
        &["-comp", "zstd", "-Xcompression-level", "22", "-b", "1M"],
        &["-comp", "xz"],
        &["-comp", "xz", "-Xbcj", "x86", "-Xdict-size", "50%"],
        &["-noI", "-noD", "-noF", "-noX", "-noId"],
        &["-noI"],
        &["-noD"],
        &["-noF"],
        &["-noX"],
        &["-no-fragments"],
        &["-always-use-fragments", "-b", "4096"],
        &["-tailends"],
        &["-no-duplicates"],
        &["-no-exports", "-no-sparse"],
        &["-b", "8192", "-comp", "zstd", "-nopad"],
        &["-noI", "-noD", "-noF", "-noX", "-noId", "-no-fragments", "-b", "4096"],
    ];
    for args in variants {
        mksquashfs(&scratch.path("source"), &image, args);
        let opened = try_open(&image).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        compare_opened(&tree, &*content, &opened);
    }
    mksquashfs(&scratch.path("source"), &image, &["-no-xattrs"]);
    let opened = try_open(&image).unwrap();
    assert!(opened.tree.inodes().all(|(_, inode)| opened.tree.xattrs(inode.xattrs()).is_empty()));
    mksquashfs(&scratch.path("source"), &image, &["-comp", "lzo"]);
    match try_open(&image) {
        Err(ReadError::Format { reason, .. }) => assert!(reason.contains("lzo"), "{reason}"),
        _ => panic!("lzo is not supported"),
    }
}

/// Holes are known without reading, and stored blocks are lent from the image.
#[test]
fn holes_and_stored_blocks_are_known() {
    let scratch = Scratch::within("/tmp");
    let (_, _) = filled(&scratch);
    let image = scratch.path("image");
    mksquashfs(&scratch.path("source"), &image, &["-noD", "-noF"]);
    let opened = try_open(&image).unwrap();
    let sparse = opened.tree.lookup(b"sparse").unwrap();
    let ranges = opened.tree.sparse_ranges(sparse).unwrap();
    assert_eq!(ranges.iter().map(|range| range.offset).collect::<Vec<_>>(), [22 << 17, 45 << 17]);
    let bytes = fs::read(&image).unwrap();
    let mut lent_bytes = 0;
    for (id, inode) in opened.tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular) {
        let mut expected = vec![0; inode.size() as usize];
        read_content(&*opened.content, id, 0, &mut expected).unwrap();
        let mut found = vec![0; inode.size() as usize];
        let all = opened.content.lend(id, 0, inode.size(), &mut |_, lent| {
            let (to, from) = (lent.offset as usize, lent.at as usize);
            found[to..to + lent.length as usize].copy_from_slice(&bytes[from..from + lent.length as usize]);
            lent_bytes += lent.length;
            Ok(())
        });
        assert!(all.unwrap() && found == expected, "{:?}", opened.tree.path(id));
    }
    assert!(lent_bytes > 2_000_000);
    mksquashfs(&scratch.path("source"), &image, &["-comp", "gzip"]);
    let opened = try_open(&image).unwrap();
    let file = opened.tree.lookup(b"of700001").unwrap();
    assert!(!opened.content.lend(file, 0, 700_001, &mut |_, _| panic!("it is compressed")).unwrap());
}

/// Any part of a file, from any byte to any other.
#[test]
fn parts_of_files_are_the_right_ones() {
    let scratch = Scratch::within("/tmp");
    let (_, _) = filled(&scratch);
    let image = scratch.path("image");
    mksquashfs(&scratch.path("source"), &image, &["-comp", "zstd", "-b", "4096", "-tailends"]);
    let opened = try_open(&image).unwrap();
    for name in ["of700001", "of5000", "sparse", "zeros"] {
        let expected = fs::read(scratch.path("source").join(name)).unwrap();
        let id = opened.tree.lookup(name.as_bytes()).unwrap();
        for i in 0..300usize {
            let start = i * 7_919_317 % (expected.len() + 100);
            let length = i * i * 31 % 40_000;
            let mut found = vec![1; length];
            read_content(&*opened.content, id, start as u64, &mut found).unwrap();
            let mut wanted = expected.get(start..).unwrap_or_default().to_vec();
            wanted.resize(length, 0);
            assert!(found == wanted, "{name}: {length} bytes from {start}");
        }
    }
}
