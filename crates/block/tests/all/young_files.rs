//! A snapshot is a snapshot on a file system with coarse times, too: a write in the same clock step as the scan gives
//! no mixture.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use crate::common::*;
use inarch_block::{Backing, BackingFile, read_backing};

/// A file system with whole seconds, like many an old ext4: its inodes have 128 bytes.
fn whole_seconds(test: &str, image: &tempfile::NamedTempFile) -> Option<Mounted> {
    image.as_file().set_len(8 << 20).unwrap();
    let made = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-I", "128"]).arg(image.path()).output();
    if !made.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {test}: ext4 cannot be made here: {made:?}");
        return None;
    }
    Mounted::new(test, &["-o", "loop", image.path().to_str().unwrap()])
}

#[test]
fn a_write_in_the_second_of_the_scan_is_an_error() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let Some(disk) = whole_seconds("a_write_in_the_second_of_the_scan_is_an_error", &image) else { return };
    let path = disk.0.path().join("f");
    std::fs::write(&path, pattern(1, 9000)).unwrap();
    let (tree, device) = device(disk.0.path());
    let offset = offset_of(&tree, "f");
    assert_eq!(read(&device, offset, 4096).unwrap(), pattern(1, 4096));
    File::options().write(true).open(&path).unwrap().write_all_at(&pattern(2, 9000), 0).unwrap();
    read(&device, offset + 4096, 4096).unwrap_err();
    assert_eq!(device.events().changed.count, 1);
}

#[test]
fn an_archive_written_in_the_second_that_it_was_opened_in_is_an_error() {
    let test = "an_archive_written_in_the_second_that_it_was_opened_in_is_an_error";
    let image = tempfile::NamedTempFile::new().unwrap();
    let Some(disk) = whole_seconds(test, &image) else { return };
    let path = disk.0.path().join("f");
    std::fs::write(&path, pattern(1, 9000)).unwrap();
    let backing: Arc<dyn Backing> = Arc::new(BackingFile::new(File::open(&path).unwrap(), path.clone()).unwrap());
    let mut out = vec![0; 4096];
    read_backing(&*backing, 0, &mut out).unwrap();
    assert_eq!(out, pattern(1, 4096));
    File::options().write(true).open(&path).unwrap().write_all_at(&pattern(2, 9000), 0).unwrap();
    read_backing(&*backing, 4096, &mut out).unwrap_err();
    assert!(backing.changed().is_some());
}
