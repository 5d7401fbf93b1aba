//! Comparing a mounted image with the tree that it was made of.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use inarch_block::{Content, read_content};
use inarch_tree::{FileType, Inode, InodeId, Tree, Xattr};

use super::mount::xattrs;

/// What a format holds of an inode.
pub struct Held {
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// In the order of their names.
    pub xattrs: Vec<Xattr>,
}

/// Compares everything but content.
fn compare_attributes(tree: &Tree, id: InodeId, path: &Path, held: &dyn Fn(&Inode) -> Held) {
    let inode = tree.inode(id);
    let held = held(inode);
    let metadata = compare_inode(tree, id, path);
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), held.mtime, "{path:?}");
    // The kernel does not even list attributes where a squashfs image has none at all.
    let none_at_all = rustix::fs::llistxattr(path, &mut [0u8; 1]) == Err(rustix::io::Errno::OPNOTSUPP);
    assert!(if none_at_all { held.xattrs.is_empty() } else { xattrs(path) == held.xattrs }, "{path:?}");
    assert_eq!(metadata.nlink(), u64::from(inode.links()), "{path:?}");
}

/// Compares what every format holds alike: type and permissions, owners, size, target and device.
pub fn compare_inode(tree: &Tree, id: InodeId, path: &Path) -> Metadata {
    let inode = tree.inode(id);
    let metadata = fs::symlink_metadata(path).unwrap();
    assert_eq!(metadata.mode(), inode.mode(), "{path:?}");
    assert_eq!((metadata.uid(), metadata.gid()), (inode.uid(), inode.gid()), "{path:?}");
    match inode.file_type() {
        FileType::Regular => assert_eq!(metadata.len(), inode.size(), "{path:?}"),
        FileType::Symlink => {
            assert_eq!(fs::read_link(path).unwrap().as_os_str().as_bytes(), tree.symlink_target(id), "{path:?}");
        }
        FileType::CharDevice | FileType::BlockDevice => {
            let (major, minor) = inode.device();
            assert_eq!(metadata.rdev(), rustix::fs::makedev(major, minor), "{path:?}");
        }
        _ => {}
    }
    metadata
}

/// Calls `check` with parts of a file that cover it, or much of it if it is large.
pub fn parts(size: u64, mut check: impl FnMut(u64, usize)) {
    const STEP: u64 = 1 << 20;
    let large = size > 64 * STEP;
    let starts: Vec<u64> = if large {
        (0..size).step_by((size / 7) as usize).chain([1 << 30, size - STEP, size / 2]).collect()
    } else {
        (0..size).step_by(STEP as usize).collect()
    };
    for start in starts.into_iter().filter(|start| *start < size) {
        check(start, STEP.min(size - start) as usize);
    }
}

/// Compares what a path holds with a tree's file.
fn compare_content(tree: &Tree, id: InodeId, content: &dyn Content, path: &Path) {
    let opened = File::open(path).unwrap();
    parts(tree.inode(id).size(), |start, length| {
        let (mut expected, mut found) = (vec![0; length], vec![0; length]);
        read_content(content, id, start, &mut expected).unwrap();
        opened.read_exact_at(&mut found, start).unwrap_or_else(|error| panic!("{path:?} at {start}: {error}"));
        assert!(expected == found, "{path:?} differs in {length} bytes from {start}");
    });
}

/// Compares a mounted directory with the tree's, and all below: attributes as the format holds them (`held`), and content.
pub fn compare(tree: &Tree, content: &dyn Content, at: &Path, held: &dyn Fn(&Inode) -> Held) {
    compare_names(tree, at, None, &mut |id, path| {
        compare_attributes(tree, id, path, held);
        if tree.inode(id).file_type() == FileType::Regular {
            compare_content(tree, id, content, path);
        }
    });
}

/// Compares the names in a mounted directory with the tree's, and in all below, and which of them are one file; calls `check` for each. In
/// the root the name `beside` is the format's own.
pub fn compare_names(tree: &Tree, at: &Path, beside: Option<&str>, check: &mut dyn FnMut(InodeId, &Path)) {
    let mut numbers = HashMap::new();
    let mut directories = vec![InodeId::ROOT];
    check(InodeId::ROOT, at);
    while let Some(dir) = directories.pop() {
        let path = at.join(OsStr::from_bytes(&tree.path(dir)));
        let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.retain(|name| dir != InodeId::ROOT || beside.is_none_or(|beside| name != beside));
        names.sort();
        assert!(names.iter().map(|name| name.as_bytes()).eq(tree.entries(dir).map(|entry| entry.name)), "{path:?}");
        for entry in tree.entries(dir) {
            let path = path.join(OsStr::from_bytes(entry.name));
            check(entry.inode, &path);
            let number = fs::symlink_metadata(&path).unwrap().ino();
            assert_eq!(*numbers.entry(entry.inode).or_insert(number), number, "{path:?} is not the same file");
            if tree.inode(entry.inode).file_type() == FileType::Directory {
                directories.push(entry.inode);
            }
        }
    }
}
