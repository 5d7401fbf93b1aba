//! A device reports where its bytes come from, without reading them.

use std::fs;

use crate::common::*;
use inarch_block::{Backing, Origin, Overlay};
use rustix::io::pread;

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

#[test]
fn what_a_guest_wrote_is_lent_from_the_overlays_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), pattern(1, 40_000)).unwrap();
    let tree = scan(dir.path());
    let overlay = Overlay::open_or_create(&dir.path().join("overlay"), 64, [7; 32], 0).unwrap();
    let device = device_of(&tree, dir.path(), 4, Some(overlay), 1 << 10);
    let file = offset_of(&tree, "file");
    write(&device, file + BLOCK, &pattern(2, 3 * BLOCK as usize)).unwrap();
    device.discard(file + 2 * BLOCK, BLOCK).unwrap();

    // The overlay does not lend what is below it.
    for (start, count, lends) in
        [(0, BLOCK, false), (BLOCK, 3 * BLOCK, true), (BLOCK, 3 * BLOCK + 1, false), (BLOCK, 0, true)]
    {
        assert_eq!(device.lends(file + start, count), lends, "{start}, {count}");
    }
    let (from, to) = (file + BLOCK + 5, file + 4 * BLOCK - 5);
    let mut lent = Vec::new();
    let mut take = |overlay: std::os::fd::BorrowedFd<'_>, part: inarch_block::Lent| {
        let (mut lies, mut reads) = (vec![0; part.length as usize], vec![0; part.length as usize]);
        assert_eq!(pread(overlay, &mut lies, part.at)?, lies.len());
        inarch_block::read_backing(&device, part.offset, &mut reads)?;
        assert!(lies == reads);
        lent.push(part.offset..part.offset + part.length);
        Ok(())
    };
    device.lend(from, to - from, &mut take).unwrap();
    assert_eq!(lent, [from..file + 2 * BLOCK, file + 3 * BLOCK..to]);
    assert!(device.lend(file, BLOCK, &mut |_, _| Ok(())).is_err());
}
