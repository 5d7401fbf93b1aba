//! The files of a volume that is a tree.

use std::fs;
use std::os::unix::fs::symlink;

use inarch_block::HostFiles;
use inarch_tree::scan;

use super::*;
use crate::listing::Listing;

const ME: Context<'static> = Context::SERVER;

fn layer(directory: &std::path::Path) -> VolumeFiles {
    let scan = scan::scan(directory, &scan::ScanOptions::default()).unwrap();
    let tree = Arc::new(scan.tree);
    let content = HostFiles::new(scan.root, Arc::clone(&tree), 16);
    VolumeFiles::of_tree(tree, Arc::new(content), Box::new(|_| {}))
}

#[test]
fn a_tree_reads_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("d")).unwrap();
    for number in 0..100 {
        fs::write(directory.path().join(format!("d/{number}")), format!("content {number}")).unwrap();
    }
    symlink("d/1", directory.path().join("link")).unwrap();
    let layer = layer(directory.path());
    let d = layer.lookup(&ME, NodeId::ROOT, b"d").unwrap();
    assert_eq!(layer.parent(&ME, d.node).unwrap().node, NodeId::ROOT);
    let seen = Listing::whole(&layer, d.node, (7, true));
    assert_eq!(seen.len(), 102);
    for (name, entry) in seen.iter().skip(2) {
        let node = entry.unwrap().node;
        assert_eq!(layer.lookup(&ME, d.node, name.as_bytes()).unwrap().node, node);
        assert_eq!(layer.open(&ME, node, libc::O_RDONLY as u32).unwrap_err(), Errno::NOSYS);
        let mut buffer = [0; 100];
        let slices = [VolatileSlice::from(&mut buffer[..])];
        let count = layer.read(&ME, node, HandleId::default(), 3, &slices).unwrap();
        assert_eq!(buffer[..count], format!("content {name}").as_bytes()[3..]);
    }
    let link = layer.lookup(&ME, NodeId::ROOT, b"link").unwrap().node;
    assert_eq!(layer.read_link(&ME, link).unwrap(), b"d/1");
    assert_eq!(layer.attributes(&ME, link, None).unwrap().size, 3);
    assert_eq!(layer.lookup(&ME, d.node, b"100").unwrap_err(), Errno::NOENT);
    assert_eq!(layer.statistics(&ME, d.node).unwrap().files, 103);
}

#[test]
fn holes_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let file = fs::File::create(directory.path().join("sparse")).unwrap();
    let part = 1 << 20;
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; part], part as u64).unwrap();
    file.set_len(4 * part as u64).unwrap();
    let layer = layer(directory.path());
    let node = layer.lookup(&ME, NodeId::ROOT, b"sparse").unwrap().node;
    let seek = |offset: usize, whence: i32| {
        layer.seek(&ME, node, HandleId::default(), offset as u64, whence as u32).map(|offset| offset as usize)
    };
    if seek(0, libc::SEEK_HOLE) == Ok(4 * part) {
        return println!("skipped: holes_are_told: no holes on the file system of temporary files");
    }
    assert_eq!((seek(0, libc::SEEK_DATA), seek(0, libc::SEEK_HOLE)), (Ok(part), Ok(0)));
    assert_eq!((seek(part + 1, libc::SEEK_DATA), seek(part, libc::SEEK_HOLE)), (Ok(part + 1), Ok(2 * part)));
    assert_eq!((seek(2 * part, libc::SEEK_DATA), seek(3 * part, libc::SEEK_HOLE)), (Err(Errno::NXIO), Ok(3 * part)));
    assert_eq!(seek(4 * part, libc::SEEK_HOLE), Err(Errno::NXIO));
}

#[test]
fn strange_numbers_and_changes_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a"), "a").unwrap();
    let layer = layer(directory.path());
    let a = layer.lookup(&ME, NodeId::ROOT, b"a").unwrap().node;
    for (node, errno) in [(0, Errno::STALE), (2, Errno::UCLEAN), (5, Errno::UCLEAN), (u64::MAX, Errno::UCLEAN)] {
        assert_eq!(layer.attributes(&ME, NodeId(node), None).unwrap_err(), errno);
    }
    for node in [1 << 32, (1 << 32) + 2, (1 << 32) + 3] {
        assert_eq!(layer.attributes(&ME, NodeId(node), None).unwrap_err(), Errno::UCLEAN);
    }
    assert_eq!(layer.lookup(&ME, a, b"x").unwrap_err(), Errno::NOTDIR);
    assert_eq!(layer.lookup(&ME, NodeId::ROOT, b"..").unwrap_err(), Errno::INVAL);
    assert_eq!(layer.open(&ME, a, libc::O_WRONLY as u32).unwrap_err(), Errno::ROFS);
    assert_eq!(layer.open(&ME, NodeId::ROOT, 0).unwrap_err(), Errno::ISDIR);
    let end = Listing::of(&layer, &ME, (NodeId::ROOT, HandleId::default()), u64::MAX, (9, true)).unwrap();
    assert!(end.entries.is_empty());
    assert_eq!(layer.read(&ME, a, HandleId::default(), u64::MAX, &[]), Ok(0));
}
