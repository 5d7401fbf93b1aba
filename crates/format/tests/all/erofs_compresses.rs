//! Images compressed by LZ4: read back, checked by `fsck.erofs`, and mounted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::mount::Mount;
use crate::common::odd::xattr;
use crate::common::*;
use crate::erofs::{Pattern, assert_clean, assert_same, compare, odd_tree};
use inarch_block::{BackingFile, Content, Cursor};
use inarch_confine::Parsing;
use inarch_format::erofs::{Erofs, open};
use inarch_format::{Algorithm, Compression, Format, ImageOptions, Layout, Progress, Sink};
use inarch_tree::{Attributes, DataRange, InodeId, Tree};

/// Content that compresses in some places and not in others, by 40 KiB each.
struct Mixed(Pattern);

impl Content for Mixed {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let size = self.0.0.inode(inode).size();
        if self.0.0.sparse_ranges(inode).is_some() {
            return self.0.read(inode, offset, count, out);
        }
        let byte = |at: u64| match at / 40_960 % 3 {
            _ if at >= size => 0,
            0 => pattern(inode, at),
            1 => pattern(inode, at / 1000),
            _ => b"the quick brown fox "[(at % 20) as usize],
        };
        out.copy_from(&(offset..offset + count).map(byte).collect::<Vec<_>>());
        Ok(())
    }
}

struct Image(File);

impl Sink for Image {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
}

#[derive(Default)]
struct Counted {
    bytes: AtomicU64,
    files: AtomicU64,
    cancel: bool,
}

impl Progress for Counted {
    fn advance(&self, bytes: u64, files: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.files.fetch_add(files, Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.cancel
    }
}

fn options(threads: usize) -> ImageOptions {
    let compression = Some(Compression { algorithm: Algorithm::Lz4, level: None });
    ImageOptions { compression, threads, inline_files: true, ..ImageOptions::default() }
}

fn pack(
    tree: &Arc<Tree>,
    content: &dyn Content,
    image: &Path,
    options: &ImageOptions,
    progress: &Counted,
) -> io::Result<u64> {
    let Layout::Packed(pack) = Erofs.plan(tree, options).unwrap().layout else { panic!("it is to be compressed") };
    let file = File::create(image).unwrap();
    let length = pack.pack(content, &Image(file.try_clone().unwrap()), progress)?;
    file.set_len(length).unwrap();
    Ok(length)
}

/// Files of sizes around every change of shape.
fn sizes() -> Tree {
    let mut b = builder();
    let set = b.intern_xattrs(vec![xattr("user.a", b"12345")]);
    for size in [0, 1, 4095, 4096, 4097, 8192, 8193, 40_960, 65_535, 65_536, 65_537, 69_632, 131_073, 5_000_000] {
        b.add(format!("{size:08}").as_bytes(), &file(size)).unwrap();
        b.add(format!("{size:08} with").as_bytes(), &Attributes { xattrs: set, ..file(size) }).unwrap();
    }
    let sparse = b.add(b"sparse", &file(1 << 20)).unwrap();
    b.set_sparse(sparse, &[DataRange { offset: 500_000, length: 70_000 }]).unwrap();
    b.finish().unwrap()
}

#[test]
fn packed_images_come_back() {
    for tree in [sizes(), odd_tree(), builder().finish().unwrap()] {
        let tree = Arc::new(tree);
        let content = Mixed(Pattern(tree.clone()));
        let scratch = Scratch::new();
        let image = scratch.path("image");
        let progress = Counted::default();
        pack(&tree, &content, &image, &options(0), &progress).unwrap();
        let backing = BackingFile::new(File::open(&image).unwrap(), image.clone()).unwrap();
        let opened = open(Parsing::unconfined(), Arc::new(backing)).unwrap();
        assert_same(&tree, &content, &opened.tree, &*opened.content);
        assert_clean(&image);
        let Some(mount) = Mount::new(&image, "loop,ro") else { return };
        compare(&tree, &content, &mount.0);
    }
}

#[test]
fn compression_saves_blocks_and_tells_of_its_progress() {
    let tree = Arc::new(sizes());
    let content = Mixed(Pattern(tree.clone()));
    let scratch = Scratch::new();
    let progress = Counted::default();
    let length = pack(&tree, &content, &scratch.path("image"), &options(1), &progress).unwrap();
    let bytes: u64 = tree.inodes().map(|(_, inode)| inode.size()).sum();
    assert!(length < bytes / 2, "{length} of {bytes}");
    let data = bytes - (1 << 20) + 73_728;
    assert_eq!(progress.bytes.load(Ordering::Relaxed), data);
    // All but the two empty ones.
    assert_eq!(progress.files.load(Ordering::Relaxed), 27);
}

#[test]
fn the_number_of_threads_does_not_show() {
    let tree = Arc::new(sizes());
    let content = Mixed(Pattern(tree.clone()));
    let scratch = Scratch::new();
    for threads in [1, 4] {
        let image = scratch.path(&format!("image{threads}"));
        pack(&tree, &content, &image, &options(threads), &Counted::default()).unwrap();
    }
    assert!(std::fs::read(scratch.path("image1")).unwrap() == std::fs::read(scratch.path("image4")).unwrap());
}

/// Content that cannot be read.
struct Broken;

impl Content for Broken {
    fn read(&self, _: InodeId, _: u64, _: u64, _: &mut Cursor<'_, '_>) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(5))
    }
}

#[test]
fn errors_and_interruptions_end_it() {
    let tree = Arc::new(sizes());
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let error = pack(&tree, &Broken, &image, &options(2), &Counted::default()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    let cancelled = Counted { cancel: true, ..Counted::default() };
    let error = pack(&tree, &Mixed(Pattern(tree.clone())), &image, &options(2), &cancelled).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
}
