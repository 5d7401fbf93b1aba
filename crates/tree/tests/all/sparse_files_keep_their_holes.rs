//! The data ranges of a sparse file are those of SEEK_DATA and SEEK_HOLE, rounded outward; a file without holes has
//! none.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use inarch_tree::scan::{ScanOptions, scan};

const MIB: u64 = 1 << 20;

/// Makes a file of `size` bytes with one byte of data at each place.
fn sparse(path: &Path, size: u64, data: &[u64]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for at in data {
        file.write_all_at(b"x", *at).unwrap();
    }
    file.sync_all().unwrap();
}

fn check(parent: &Path) {
    let root = tempfile::tempdir_in(parent).unwrap();
    let path = root.path();
    sparse(&path.join("all-hole"), 10 * MIB, &[]);
    sparse(&path.join("odd-end"), MIB + 5, &[MIB + 4]);
    sparse(&path.join("middle"), 3 * MIB, &[MIB + 100]);
    sparse(&path.join("neighbours"), MIB, &[0, 4096, 8192]);
    sparse(&path.join("small-hole"), 3 * 4096, &[0, 8192]);
    sparse(&path.join("vast"), 1 << 42, &[0, 1 << 41]);
    sparse(&path.join("tiny"), 1, &[0]);
    std::fs::write(path.join("dense"), vec![1; 100_000]).unwrap();
    let tree = scan(path, &ScanOptions::default()).unwrap().tree;
    let ranges = |name: &str| -> Option<Vec<(u64, u64)>> {
        let ranges = tree.sparse_ranges(tree.lookup(name.as_bytes()).unwrap())?;
        Some(ranges.iter().map(|range| (range.offset, range.length)).collect())
    };
    assert_eq!(ranges("all-hole"), Some(vec![]));
    assert_eq!(ranges("odd-end"), Some(vec![(MIB, 5)]));
    assert_eq!(ranges("middle"), Some(vec![(MIB, 4096)]));
    assert_eq!(ranges("neighbours"), Some(vec![(0, 12288)]));
    assert_eq!(ranges("small-hole"), Some(vec![(0, 4096), (8192, 4096)]));
    assert_eq!(ranges("vast"), Some(vec![(0, 4096), (1 << 41, 4096)]));
    assert_eq!((ranges("tiny"), ranges("dense")), (None, None));
}

#[test]
fn on_the_file_system_of_temporary_files() {
    check(&std::env::temp_dir());
}

#[test]
fn on_tmpfs() {
    check(Path::new("/dev/shm"));
}

#[test]
fn a_file_of_very_many_ranges_has_a_bounded_map() {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let count = 70_000;
    let data: Vec<u64> = (0..count).map(|i| i * 8192).collect();
    let size = count * 8192;
    let file = File::create(root.path().join("comb")).unwrap();
    file.set_len(size).unwrap();
    for at in &data {
        file.write_all_at(b"x", *at).unwrap();
    }
    let tree = scan(root.path(), &ScanOptions::default()).unwrap().tree;
    let ranges = tree.sparse_ranges(tree.lookup(b"comb").unwrap()).unwrap();
    assert_eq!(ranges.len(), 65_537);
    let last = ranges[65_536];
    assert_eq!((last.offset, last.offset + last.length), (65_536 * 8192, size), "the rest counts as data");
}
