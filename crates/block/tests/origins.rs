//! A device says where its bytes come from, without reading them.

mod common;

use std::fs;

use common::*;
use inarch_block::{Origin, Overlay};

#[test]
fn written_zeroed_and_untouched_parts_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), pattern(1, 40_000)).unwrap();
    let tree = scan(dir.path());
    let overlay = Overlay::ephemeral(dir.path(), 64).unwrap();
    let device = device_of(&tree, dir.path(), 4, Some(overlay), 1 << 10);
    let file = offset_of(&tree, "file");
    let inode = tree.lookup(b"file").unwrap();
    let within = |offset| Origin::File { inode, offset };
    let blocks = 10 * BLOCK;

    assert_eq!(device.origin(0), (Origin::Metadata, BLOCK));
    assert_eq!(device.origin(2 * BLOCK + 5), (Origin::Zeros, 2 * BLOCK - 5));
    assert_eq!(device.origin(file), (within(0), blocks));
    assert_eq!(device.origin(file + 5000), (within(5000), blocks - 5000));

    write(&device, file + 2 * BLOCK + 7, b"x").unwrap();
    device.discard(file + 4 * BLOCK, BLOCK).unwrap();
    assert_eq!(device.origin(file), (within(0), 2 * BLOCK));
    assert_eq!(device.origin(file + 2 * BLOCK), (Origin::Overlay, BLOCK));
    assert_eq!(device.origin(file + 3 * BLOCK), (within(3 * BLOCK), BLOCK));
    assert_eq!(device.origin(file + 4 * BLOCK), (Origin::Zeros, BLOCK));
    assert_eq!(device.origin(file + 5 * BLOCK), (within(5 * BLOCK), 5 * BLOCK));
    assert_eq!(device.origin(device.capacity()).0, Origin::Zeros);
    assert_eq!(device.origin(u64::MAX), (Origin::Zeros, 1));
}
