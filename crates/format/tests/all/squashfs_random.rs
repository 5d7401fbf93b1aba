//! Random trees: packed, read back, read by `unsquashfs`, and mounted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::forest::{Node, forest, grow};
use crate::common::mount::Mount;
use crate::common::{Scratch, builder, rounds};
use crate::squashfs::*;
use inarch_format::{Algorithm, Compression, ImageOptions};
use proptest::prelude::*;

/// Cases that the kernel and `unsquashfs` read too; the others are only read back.
const MOUNTED: u32 = 5;

static CASE: AtomicU32 = AtomicU32::new(0);

fn options() -> impl Strategy<Value = ImageOptions> {
    // Not by xz, whose few megabytes a block take their time; other tests have it.
    let fast = [None, Some((Algorithm::Gzip, Some(1))), Some((Algorithm::Lz4, None)), Some((Algorithm::Zstd, Some(1)))];
    (prop::sample::select(fast.to_vec()), 12..=20u32, 0..4usize).prop_map(|(compression, bits, threads)| ImageOptions {
        compression: compression.map(|(algorithm, level)| Compression { algorithm, level }),
        block_size: Some(1 << bits),
        threads,
        ..ImageOptions::default()
    })
}

fn check(entries: Vec<(Vec<u8>, Node)>, options: &ImageOptions) {
    let mut b = builder();
    grow(&mut b, entries, &mut Vec::new());
    let tree = Arc::new(b.finish().unwrap());
    let content = Arc::new(Pattern::new(&tree));
    // In memory: an unmount waits until the image is on its disk.
    let scratch = Scratch::within("/dev/shm");
    let image = scratch.path("image");
    make(&tree, content.clone(), &image, options);
    compare_opened(&tree, &*content, &try_open(&image).unwrap());
    if CASE.fetch_add(1, Ordering::Relaxed) < MOUNTED
        && let Some(mount) = Mount::new(&image, "loop,ro")
    {
        compare(&tree, &*content, &mount.0);
        unsquash(&image, &scratch.path("extracted"));
        compare(&tree, &*content, &scratch.path("extracted"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(8), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_trees_come_back(entries in forest(), options in options()) {
        check(entries, &options);
    }
}
