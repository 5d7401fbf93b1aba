//! Images with compression: whatever the compressor, block size and number of threads, unsquashfs and our reader find in
//! them what was put in.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Scratch, attributes, builder, file};
use crate::squashfs::*;
use inarch_block::{Content, Cursor, FileSink, read_content};
use inarch_format::{Algorithm, Compression, ImageOptions, Layout, Progress};
use inarch_tree::scan::{ScanOptions, scan};
use inarch_tree::{Attributes, FileType, InodeId, Tree};

const ALGORITHMS: [Algorithm; 4] = [Algorithm::Gzip, Algorithm::Lz4, Algorithm::Xz, Algorithm::Zstd];

/// The lowest level, which is the fastest.
fn fastest(algorithm: Algorithm) -> Option<i32> {
    (algorithm != Algorithm::Lz4).then_some(1)
}

#[test]
fn our_reader_finds_every_odd_thing() {
    let tree = Arc::new(odd_tree());
    let content = Arc::new(Pattern::new(&tree));
    let scratch = Scratch::new();
    for (algorithm, block_size) in ALGORITHMS.into_iter().zip([128 << 10, 4096, 64 << 10, 1 << 20]) {
        let image = scratch.path("image");
        let notes = make(&tree, content.clone(), &image, &compressed(algorithm, fastest(algorithm), block_size));
        assert_eq!(notes.len(), 3, "{notes:?}");
        let opened = try_open(&image).unwrap();
        compare_opened(&tree, &*content, &opened);
        let holes = |tree: &Tree| {
            let id = tree.lookup(b"9sparse").unwrap();
            tree.sparse_ranges(id).map(|ranges| ranges.iter().map(|range| range.length).sum::<u64>())
        };
        assert!(holes(&opened.tree).unwrap() < 8 << 20);
    }
}

#[test]
fn unsquashfs_extracts_what_was_packed() {
    let source = Path::new("/usr/share/perl5");
    let tree = Arc::new(scan(source, &ScanOptions::default()).unwrap().tree);
    let content = host_files(source, &tree);
    let scratch = Scratch::new();
    for (i, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let image = scratch.path("image");
        make(&tree, content.clone(), &image, &compressed(algorithm, fastest(algorithm), 128 << 10));
        // Extracted by one of them each time; all of them are opened.
        let opened = try_open(&image).unwrap();
        if i % 2 == 0 {
            compare_opened(&tree, &*content, &opened);
        } else {
            let extracted = scratch.path(&format!("extracted{i}"));
            unsquash(&image, &extracted);
            compare(&tree, &*content, &extracted);
        }
    }
}

#[test]
fn the_number_of_threads_makes_no_difference() {
    let source = Path::new("/usr/share/perl5");
    let tree = Arc::new(scan(source, &ScanOptions::default()).unwrap().tree);
    let content = host_files(source, &tree);
    let scratch = Scratch::new();
    for (algorithm, block_size) in [(Algorithm::Zstd, 128 << 10), (Algorithm::Lz4, 4096), (Algorithm::Gzip, 1 << 20)] {
        let mut images = [1, 2, 7].map(|threads| {
            let image = scratch.path(&format!("image{threads}"));
            let options = ImageOptions { threads, ..compressed(algorithm, fastest(algorithm), block_size) };
            make(&tree, content.clone(), &image, &options);
            fs::read(&image).unwrap()
        });
        let first = std::mem::take(&mut images[0]);
        assert!(images[1..].iter().all(|image| *image == first), "{algorithm:?}");
    }
}

/// Bytes that do not compress, the same for files of the same hundreds.
struct Groups;

impl Content for Groups {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let byte = |at: u64| {
            let mixed = (at | u64::from(inode.0 / 100) << 32).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            ((mixed ^ mixed >> 31).wrapping_mul(0x94D0_49BB_1331_11EB) >> 56) as u8
        };
        out.copy_from(&(offset..offset + count).map(byte).collect::<Vec<_>>());
        Ok(())
    }
}

#[test]
fn files_of_the_same_content_are_stored_once() {
    // Four groups of a hundred files, each group with its content: the inodes 1 to 99, 100 to 199 and so on.
    for size in [1000u64, 100_000, 400_000] {
        let mut b = builder();
        (1..400).for_each(|i| {
            b.add(format!("{i:03}").as_bytes(), &file(size)).unwrap();
        });
        let tree = Arc::new(b.finish().unwrap());
        let scratch = Scratch::new();
        let image = scratch.path("image");
        make(&tree, Arc::new(Groups), &image, &compressed(Algorithm::Lz4, None, 128 << 10));
        let bytes = fs::metadata(&image).unwrap().len();
        assert!((4 * size..4 * size + 20_000).contains(&bytes), "{bytes} bytes");
        let opened = try_open(&image).unwrap();
        compare_opened(&tree, &Groups, &opened);
    }
}

/// A file that cannot be read, and one after which all is cancelled.
struct Broken(AtomicU64);

impl Content for Broken {
    fn read(&self, inode: InodeId, _: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        out.fill_zeros(count);
        if inode.0 == 500 { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }
}

impl Progress for Broken {
    fn advance(&self, _: u64, _: u64) {}

    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 100
    }
}

#[test]
fn errors_and_cancelling_end_it() {
    let mut b = builder();
    (0..100_000).for_each(|i| {
        b.add(format!("{i:06}").as_bytes(), &file(200_000)).unwrap();
    });
    let tree = Arc::new(b.finish().unwrap());
    let Layout::Packed(pack) = try_plan(&tree, &compressed(Algorithm::Zstd, None, 128 << 10)).unwrap().layout else {
        panic!("it is compressed");
    };
    let scratch = Scratch::new();
    let out = File::create(scratch.path("image")).unwrap();
    let content = Broken(AtomicU64::new(0));
    let error = pack.pack(&content, &FileSink::new(&out), &()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    let content = Broken(AtomicU64::new(0));
    let error = pack.pack(&content, &FileSink::new(&out), &content).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
    // Nothing that was not finished looks like an image.
    assert!(try_open(&scratch.path("image")).is_err());
}

fn reason(tree: Tree, options: &ImageOptions) -> String {
    match try_plan(&Arc::new(tree), options) {
        Ok(_) => panic!("it was planned"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_squashfs_cannot_hold_is_refused_by_name() {
    let both = [ImageOptions::default(), compressed(Algorithm::Zstd, None, 4096)];
    for options in &both {
        let mut b = builder();
        b.add(b"node", &Attributes { device: (4096, 0), ..attributes(0o020666) }).unwrap();
        assert!(reason(b.finish().unwrap(), options).contains("/node: squashfs cannot store the device number 4096:0"));
        let mut b = builder();
        (0..65_536).for_each(|i| {
            b.add(format!("{i:06}").as_bytes(), &Attributes { uid: i, gid: 1000, ..file(0) }).unwrap();
        });
        assert!(reason(b.finish().unwrap(), options).starts_with("squashfs: /065535: "));
        let mut b = builder();
        b.add(b"huge", &file((1 << 44) + 1)).unwrap();
        assert!(reason(b.finish().unwrap(), options).starts_with("squashfs: /huge: 17592186044417 bytes"));
    }
    let empty = || builder().finish().unwrap();
    let of = |block_size| ImageOptions { block_size: Some(block_size), ..ImageOptions::default() };
    assert!(reason(empty(), &of(5000)).contains("5000"));
    assert!(reason(empty(), &of(2 << 20)).contains("2097152"));
    assert!(reason(empty(), &ImageOptions { label: "x".into(), ..ImageOptions::default() }).contains("label"));
    assert!(reason(empty(), &ImageOptions { uuid: Some([0; 16]), ..ImageOptions::default() }).contains("UUID"));
    assert!(reason(empty(), &ImageOptions { size: Some(4096), ..ImageOptions::default() }).contains("8192"));
    let levelled = Compression { algorithm: Algorithm::Lz4, level: Some(9) };
    let options = ImageOptions { compression: Some(levelled), ..ImageOptions::default() };
    assert!(reason(empty(), &options).contains("lz4"));
}

#[test]
fn notes_and_sizes_are_as_asked() {
    let tree = Arc::new(builder().finish().unwrap());
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let options = ImageOptions { size: Some(1 << 20), epoch: Some(77), ..ImageOptions::default() };
    // The root of that tree has a time between two seconds.
    let notes = make(&tree, Arc::new(Groups), &image, &options);
    assert_eq!(notes, ["times are cut to whole seconds, as squashfs has no others"]);
    assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 20);
    assert_eq!(fs::read(&image).unwrap()[8..12], [77, 0, 0, 0]);
    let opened = try_open(&image).unwrap();
    assert_eq!(opened.tree.inode(InodeId::ROOT).file_type(), FileType::Directory);
    assert!(read_content(&*opened.content, InodeId::ROOT, 0, &mut [0; 10]).is_ok());
}
