//! Hostile offsets and lengths are errors.

use std::fs;
use std::sync::Arc;

use crate::common::*;
use inarch_block::{BlockMap, FileExtent, MapError, Overlay, OverlayError};
use inarch_tree::InodeId;

#[test]
fn ranges_beyond_the_device_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), [1; 9000]).unwrap();
    let overlay = Overlay::ephemeral(&std::env::temp_dir(), 100).unwrap();
    let device = device_of(&scan(dir.path()), dir.path(), 64, Some(overlay), 100);
    let end = device.capacity();
    for offset in
        [end, end - 1, end + 1, 1 << 51, 1 << 62, i64::MAX as u64, i64::MAX as u64 - 2, u64::MAX, u64::MAX - 1]
    {
        let invalid = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL), "{offset}");
        };
        invalid(read(&device, offset, 2).map(drop));
        invalid(write(&device, offset, &[1; 2]));
        for length in [2, end + 1, u64::MAX, u64::MAX - offset, 1 << 63] {
            invalid(device.discard(offset, length.max(2)));
            invalid(device.write_zeroes(offset, length.max(2), false));
        }
    }
    for length in [end + 1, u64::MAX] {
        assert!(device.discard(0, length).is_err());
    }
    assert_eq!(read(&device, FIRST_FILE * BLOCK, 9000).unwrap(), [1; 9000], "nothing was changed");
    assert!(device.events().errors > 50);
}

#[test]
fn beyond_the_overlay_a_device_reads_and_does_not_write() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), [1; 9000]).unwrap();
    let overlay = Overlay::ephemeral(&std::env::temp_dir(), 100).unwrap();
    let device = device_of(&scan(dir.path()), dir.path(), 64, Some(overlay), 1000);
    assert_eq!(device.capacity(), 1000 * BLOCK);
    assert_eq!(read(&device, 90 * BLOCK, 200 * BLOCK as usize).unwrap(), vec![0; 200 * BLOCK as usize]);
    write(&device, 99 * BLOCK, &[7; 4096]).unwrap();
    for offset in [99 * BLOCK + 1, 100 * BLOCK, 999 * BLOCK] {
        let error = write(&device, offset, &[7; 4096]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{offset}");
    }
    assert_eq!(read(&device, 99 * BLOCK, 8192).unwrap(), [[7; 4096], [0; 4096]].concat());
}

#[test]
fn empty_requests_do_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let overlay = Overlay::ephemeral(&std::env::temp_dir(), 100).unwrap();
    let device = device_of(&scan(dir.path()), dir.path(), 64, Some(overlay), 100);
    for offset in [0, 5, device.capacity()] {
        device.read_at(offset, &[]).unwrap();
        device.write_at(offset, &[]).unwrap();
        device.discard(offset, 0).unwrap();
        device.write_zeroes(offset, 0, true).unwrap();
    }
    assert_eq!(device.events().overlay_bytes, 0);
}

#[test]
fn a_device_without_overlay_refuses_changes() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), [1; 9000]).unwrap();
    let (_, device) = device(dir.path());
    let refused = |result: std::io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS));
    refused(write(&device, 0, &[1; 512]));
    refused(device.discard(0, 4096));
    refused(device.write_zeroes(0, 4096, true));
    device.flush().unwrap();
}

#[test]
fn an_overlay_larger_than_any_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for blocks in [u64::MAX, 1 << 52, (1 << 38) + 1] {
        let error = Overlay::ephemeral(dir.path(), blocks).unwrap_err();
        assert!(matches!(error, OverlayError::TooLarge(_)), "{error}");
        let error = Overlay::open_or_create(&dir.path().join("kept"), blocks, [0; 32], 0).unwrap_err();
        assert!(matches!(error, OverlayError::TooLarge(_)), "{error}");
    }
}

#[test]
fn a_map_refuses_extents_out_of_order_or_beyond_its_end() {
    let extent = |start, blocks| FileExtent { start, blocks, first: 0, inode: InodeId(1) };
    let map = |metadata, files| BlockMap::new(10, metadata, files, Arc::new(Numbered)).err();
    assert_eq!(map(vec![0..1, 2..3], vec![extent(1, 1), extent(3, 7)]), None);
    for files in [
        vec![extent(3, 8)],
        vec![extent(u64::MAX, 1)],
        vec![extent(u64::MAX - 1, u32::MAX)],
        vec![extent(3, 0)],
        vec![extent(3, 2), extent(4, 1)],
        vec![extent(4, 1), extent(3, 1)],
    ] {
        assert!(matches!(map(vec![], files.clone()), Some(MapError::Disorder("a file", _))), "{files:?}");
    }
    for metadata in [vec![9..11, 12..13], vec![0..2, 1..3], vec![4..5, 3..4], vec![3..3, 5..6]] {
        assert!(matches!(map(metadata.clone(), vec![]), Some(MapError::Disorder("metadata", _))), "{metadata:?}");
    }
}
