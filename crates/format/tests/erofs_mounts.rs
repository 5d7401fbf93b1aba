//! The kernel of this host mounts a planned image and finds in it what the tree says; `fsck.erofs` finds it clean.

mod common;
mod erofs;

use std::sync::Arc;

use common::mount::Mount;
use common::*;
use erofs::{Pattern, assert_clean, compare, make, odd_tree};

#[test]
fn every_odd_thing_is_as_the_tree_says() {
    let tree = Arc::new(odd_tree());
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let content = Arc::new(Pattern(tree.clone()));
    make(&tree, content.clone(), &image);
    let Some(mount) = Mount::new(&image, "loop,ro") else { return };
    compare(&tree, &*content, &mount.0);
    drop(mount);
    assert_clean(&image);
}
