//! The kernel of this host mounts a planned image and finds in it what the tree says; `fsck.erofs` finds it clean.

use std::path::Path;
use std::sync::Arc;

use crate::common::mount::Mount;
use crate::common::*;
use crate::erofs::{Pattern, assert_clean, compare, host_files, make, odd_tree};
use inarch_tree::scan::{ScanOptions, scan};

#[test]
fn every_odd_thing_is_as_the_tree_says() {
    let tree = Arc::new(odd_tree());
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let content = Arc::new(Pattern(tree.clone()));
    for inline_files in [false, true] {
        make(&tree, content.clone(), &image, inline_files);
        let Some(mount) = Mount::new(&image, "loop,ro") else { return };
        compare(&tree, &*content, &mount.0);
        drop(mount);
        assert_clean(&image);
    }
}

#[test]
fn a_large_directory_of_this_host_is_the_same_when_mounted() {
    let source = Path::new("/usr/share/perl");
    if !source.is_dir() {
        eprintln!(
            "skipped: a_large_directory_of_this_host_is_the_same_when_mounted: comparing a large directory: there is no {source:?}"
        );
        return;
    }
    let tree = Arc::new(scan(source, &ScanOptions::default()).unwrap().tree);
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let content = host_files(source, &tree);
    make(&tree, content.clone(), &image, true);
    let Some(mount) = Mount::new(&image, "loop,ro") else { return };
    compare(&tree, &*content, &mount.0);
}
