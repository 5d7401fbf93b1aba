//! The kernel of this host mounts an image and finds in it what the tree says.

use std::path::Path;
use std::sync::Arc;

use crate::common::mount::Mount;
use crate::common::{Scratch, builder, directory, file};
use crate::squashfs::*;
use inarch_format::{Algorithm, ImageOptions};
use inarch_tree::Tree;
use inarch_tree::scan::{ScanOptions, scan};

/// Writes a tree's image with each of `options`, mounts it and compares.
fn assert_mounts(tree: &Arc<Tree>, options: &[ImageOptions]) {
    let content = Arc::new(Pattern::new(tree));
    for options in options {
        let scratch = Scratch::new();
        let image = scratch.path("image");
        make(tree, content.clone(), &image, options);
        let Some(mount) = Mount::new(&image, "loop,ro") else { return };
        compare(tree, &*content, &mount.0);
    }
}

/// Options for blocks of so many bytes.
fn blocks_of(block_size: u32) -> ImageOptions {
    ImageOptions { block_size: Some(block_size), ..ImageOptions::default() }
}

#[test]
fn every_odd_thing_is_as_the_tree_says() {
    assert_mounts(&Arc::new(odd_tree()), &[ImageOptions::default(), blocks_of(4096)]);
}

#[test]
fn every_odd_thing_is_as_the_tree_says_when_it_is_compressed() {
    let options = [
        compressed(Algorithm::Zstd, Some(3), 128 << 10),
        compressed(Algorithm::Lz4, None, 1 << 20),
        compressed(Algorithm::Xz, Some(0), 16 << 10),
    ];
    assert_mounts(&Arc::new(odd_tree()), &options);
}

#[test]
fn an_empty_tree_mounts() {
    let tree = Arc::new(builder().finish().unwrap());
    assert_mounts(&tree, &[ImageOptions::default(), compressed(Algorithm::Zstd, None, 4096)]);
}

/// A listing of a megabyte with an index, and inodes whose numbers are far from each other.
#[test]
fn names_are_found_in_a_large_directory() {
    let mut b = builder();
    let dir = b.add(b"dir", &directory()).unwrap();
    let links = b.add(b"links", &directory()).unwrap();
    b.list(dir).unwrap();
    let mut inodes = Vec::new();
    for i in 0..20_000 {
        inodes.push(b.add(format!("{i:06}{}", "x".repeat(i % 41)).as_bytes(), &file((i % 50) as u64)).unwrap());
    }
    b.list(links).unwrap();
    for i in 0..1000 {
        b.link(format!("{i:04}").as_bytes(), inodes[i * 37_199 % 20_000]).unwrap();
    }
    let tree = Arc::new(b.finish().unwrap());
    assert_mounts(&tree, &[ImageOptions::default(), compressed(Algorithm::Zstd, Some(1), 128 << 10)]);
}

#[test]
fn a_directory_of_the_host_is_the_same_in_an_image() {
    let source = Path::new("/usr/share/perl5");
    let tree = Arc::new(scan(source, &ScanOptions::default()).unwrap().tree);
    let content = host_files(source, &tree);
    let scratch = Scratch::new();
    make(&tree, content.clone(), &scratch.path("image"), &ImageOptions::default());
    let Some(mount) = Mount::new(&scratch.path("image"), "loop,ro") else { return };
    compare(&tree, &*content, &mount.0);
}
