//! A device reads the host's files correctly while they do not change.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use crate::common::*;
use inarch_block::{BlockMap, Device, FileExtent, HostFiles};
use inarch_tree::{Builder, InodeId};
use rustix::fs::{Mode, OFlags, mkdirat, openat};

#[test]
fn a_file_reads_as_its_bytes_and_its_tail_as_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [1usize, 4095, 4096, 4097, 100_000];
    for (i, size) in sizes.iter().enumerate() {
        fs::write(dir.path().join(format!("f{i}")), pattern(i as u64, *size)).unwrap();
    }
    let (tree, device) = device(dir.path());
    let mut model = vec![0; device.capacity() as usize];
    model[..8192].chunks_mut(8).enumerate().for_each(|(i, word)| {
        word.copy_from_slice(&(i as u64 / 512 + 1).to_le_bytes());
    });
    for (i, size) in sizes.iter().enumerate() {
        let at = offset_of(&tree, &format!("f{i}")) as usize;
        model[at..at + size].copy_from_slice(&pattern(i as u64, *size));
    }
    assert_eq!(read(&device, 0, model.len()).unwrap(), model, "one read over everything");
    for (offset, length) in [(0, 1), (1, 4096), (8191, 2), (4095, 60_000), (16384 + 4090, 9000)] {
        let mut out = vec![0xee; length];
        device.read_at(offset as u64, &slices(&mut out, 777)).unwrap();
        assert_eq!(out, model[offset..offset + length], "{length} bytes at {offset}");
    }
    let events = device.events();
    assert_eq!((events.reads, events.errors, events.changed.count), (6, 0, 0));
    assert!(events.file_bytes_read > 100_000 && events.metadata_bytes_read >= 8192 && events.zero_bytes_read >= 8192);
}

#[test]
fn more_buffers_than_one_system_call_takes() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), pattern(1, 50_000)).unwrap();
    let (tree, device) = device(dir.path());
    let mut out = vec![0; 50_000];
    device.read_at(offset_of(&tree, "f"), &slices(&mut out, 7)).unwrap();
    assert_eq!(out, pattern(1, 50_000));
}

#[test]
fn blocks_beyond_the_map_are_zeros() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), [7; 5000]).unwrap();
    let tree = scan(dir.path());
    let device = device_of(&tree, dir.path(), 64, None, 1 << 30);
    assert_eq!(device.capacity(), 1 << 42);
    assert!(device.read_only());
    let end = layout(&tree).blocks() * BLOCK;
    let out = read(&device, end - 1, 70_000).unwrap();
    assert!(out.iter().all(|byte| *byte == 0));
    assert_eq!(read(&device, device.capacity() - 10, 10).unwrap(), [0; 10]);
}

/// Descriptors this process has open on files beneath `root`.
fn open_beneath(root: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.starts_with(root) && link != root).count()
}

#[test]
fn many_files_need_few_descriptors() {
    const FILES: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    for i in 0..FILES {
        let sub = dir.path().join(format!("d{}", i / 1000));
        fs::create_dir_all(&sub).unwrap();
        fs::write(sub.join(format!("f{i:05}")), pattern(i as u64, 5000)).unwrap();
    }
    let tree = scan(dir.path());
    let blocks = layout(&tree).blocks();
    let device = device_of(&tree, dir.path(), 64, None, blocks);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (device, tree) = (&device, &tree);
            scope.spawn(move || {
                for extent in layout(tree).files().iter().skip(thread).step_by(4) {
                    // Less than the file, so that it is kept open.
                    let name = String::from_utf8(tree.path(extent.inode)).unwrap();
                    let seed = name[name.len() - 5..].parse().unwrap();
                    assert_eq!(read(device, extent.start * BLOCK, 4096).unwrap(), pattern(seed, 4096));
                }
            });
        }
    });
    let open = open_beneath(&dir.path().canonicalize().unwrap());
    assert!((1..=64).contains(&open), "{open} files are open");
    assert_eq!(device.events().changed.count, 0);
}

/// Makes directories until the path is longer than `PATH_MAX`, and a file at their end.
fn make_deep(root: &Path, name: &str, depth: usize) -> File {
    let mut at: OwnedFd = File::open(root).unwrap().into();
    for _ in 0..depth {
        mkdirat(&at, name, Mode::from_raw_mode(0o755)).unwrap();
        at = openat(&at, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    openat(&at, "f", OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(0o644)).unwrap().into()
}

#[test]
fn a_path_longer_than_a_system_call_takes() {
    let dir = tempfile::tempdir().unwrap();
    let name = "n".repeat(200);
    let mut file = make_deep(dir.path(), &name, 60);
    std::io::Write::write_all(&mut file, &pattern(3, 6000)).unwrap();
    let mut builder = Builder::new(&attributes(&fs::metadata(dir.path()).unwrap())).unwrap();
    let mut parent = InodeId::ROOT;
    for _ in 0..60 {
        builder.list(parent).unwrap();
        parent = builder.add(name.as_bytes(), &attributes(&fs::metadata(dir.path()).unwrap())).unwrap();
    }
    builder.list(parent).unwrap();
    let inode = builder.add(b"f", &attributes(&file.metadata().unwrap())).unwrap();
    let tree = Arc::new(builder.finish().unwrap());
    assert!(tree.path(inode).len() > 3 * 4096 - 500);
    let extent = FileExtent { start: 0, blocks: 2, first: 0, inode };
    let map = BlockMap::new(2, vec![], vec![extent], Arc::new(Numbered)).unwrap();
    let files = HostFiles::new(File::open(dir.path()).unwrap().into(), tree, 0);
    let device = Device::new(map, Arc::new(files), None, 2);
    assert_eq!(read(&device, 0, 6000).unwrap(), pattern(3, 6000));
}
