//! Whether two trees are the same, content included; and what the kernel makes of an image.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ext4_view::Ext4;
use inarch_block::{BackingFile, Content, HostFiles, read_content};
use inarch_confine::Parsing;
use inarch_format::ext4::{Ext4Image, LostAndFound, ReadOptions, open_image};
use inarch_tree::scan::{ScanOptions, scan};
use inarch_tree::{DataRange, FileType, InodeId, Tree, Xattr};

use crate::common::mount::Mount;
use crate::common::view;

/// Opens an image, `lost+found` and all.
pub fn open(image: &Path) -> Ext4Image {
    let file = BackingFile::new(File::open(image).unwrap(), image.into()).unwrap();
    let options = ReadOptions { lost_and_found: LostAndFound::Keep, ..ReadOptions::default() };
    open_image(Parsing::unconfined(), Arc::new(file), &options).unwrap()
}

/// Compares what we read of an image with the kernel's read-only mount of it; the notes of our reader.
pub fn assert_as_mounted(image: &Path, options: &str) -> Vec<String> {
    let ours = open(image);
    let Some(mount) = Mount::new(image, options) else { return ours.opened.notes };
    let theirs = Arc::new(scan(&mount.0, &ScanOptions::default()).unwrap().tree);
    let files = HostFiles::new(File::open(&mount.0).unwrap().into(), theirs.clone(), 16);
    assert_same(&ours.opened.tree, &*ours.opened.content, &theirs, &files);
    assert_numbers(&ours, &theirs);
    drop(files);
    ours.opened.notes
}

/// Compares what we read of an image with what the crate ext4-view does.
pub fn assert_as_viewed(image: &Path) {
    let Ext4Image { opened, .. } = open(image);
    let fs = Ext4::load(Box::new(std::fs::read(image).unwrap())).unwrap();
    let content = |id| {
        let mut bytes = vec![0; opened.tree.inode(id).size() as usize];
        read_content(&*opened.content, id, 0, &mut bytes).unwrap();
        bytes
    };
    view::assert_same(&opened.tree, &fs, &content);
}

/// Every inode has the number that the kernel gives it.
fn assert_numbers(ours: &Ext4Image, theirs: &Tree) {
    let tree = &ours.opened.tree;
    for (id, inode) in tree.inodes() {
        let path = tree.path(id);
        let there = theirs.inode(theirs.lookup(&path).unwrap());
        assert_eq!(inode.source_ino(), there.source_ino(), "{}", String::from_utf8_lossy(&path));
        assert_eq!(ours.find(ours.ino(id)), Some(id));
    }
}

/// Fails unless both trees have the same names, attributes, hard links, holes and content.
pub fn assert_same(a: &Tree, a_content: &dyn Content, b: &Tree, b_content: &dyn Content) {
    let mut pairs = HashMap::new();
    let mut directories = vec![(InodeId::ROOT, InodeId::ROOT)];
    assert_attributes(a, InodeId::ROOT, b, InodeId::ROOT);
    while let Some((in_a, in_b)) = directories.pop() {
        let names = |tree: &Tree, dir| tree.entries(dir).map(|entry| lossy(entry.name)).collect::<Vec<_>>();
        assert_eq!(names(a, in_a), names(b, in_b), "names in {:?}", lossy(&a.path(in_a)));
        for (in_a, in_b) in a.entries(in_a).zip(b.entries(in_b)) {
            let (in_a, in_b) = (in_a.inode, in_b.inode);
            let known = pairs.insert(in_a, in_b);
            assert!(known.is_none_or(|known| known == in_b), "{:?} is linked otherwise", lossy(&a.path(in_a)));
            if known.is_some() {
                continue;
            }
            assert_attributes(a, in_a, b, in_b);
            match a.inode(in_a).file_type() {
                FileType::Directory => directories.push((in_a, in_b)),
                FileType::Regular => assert_content(a, in_a, a_content, b, in_b, b_content),
                _ => {}
            }
        }
    }
    assert_eq!(a.inode_count(), b.inode_count());
}

fn assert_attributes(a: &Tree, in_a: InodeId, b: &Tree, in_b: InodeId) {
    let path = lossy(&a.path(in_a));
    let (x, y) = (a.inode(in_a), b.inode(in_b));
    assert_eq!(format!("{:o}", x.mode()), format!("{:o}", y.mode()), "{path:?}");
    assert_eq!((x.uid(), x.gid(), x.size()), (y.uid(), y.gid(), y.size()), "{path:?}");
    assert_eq!((x.mtime(), x.ctime()), (y.mtime(), y.ctime()), "{path:?}");
    assert_eq!((x.device(), x.links()), (y.device(), y.links()), "{path:?}");
    // XFS shows root its own form of access control lists, too.
    let is_own = |xattr: &&Xattr| xattr.name.starts_with(b"trusted.SGI_ACL_");
    let theirs = b.xattrs(y.xattrs()).iter().filter(|xattr| !is_own(xattr));
    assert!(a.xattrs(x.xattrs()).iter().eq(theirs), "extended attributes of {path:?} differ");
    assert_eq!(lossy(a.symlink_target(in_a)), lossy(b.symlink_target(in_b)), "{path:?}");
}

/// Compares where data is, and what it is: all of it up to 64 MiB, its first and last bytes beyond that.
fn assert_content(a: &Tree, in_a: InodeId, a_content: &dyn Content, b: &Tree, in_b: InodeId, b_content: &dyn Content) {
    let path = lossy(&a.path(in_a));
    let (ours, theirs) = (data(a, in_a), data(b, in_b));
    // A scan takes a file of as many blocks as its size wants for one without holes.
    if b.sparse_ranges(in_b).is_some() {
        assert!(ours == theirs, "data of {path:?}: {} and {} ranges", ours.len(), theirs.len());
    }
    for range in theirs {
        let (mut at, end) = (range.offset, range.offset + range.length);
        while at < end {
            let length = (end - at).min(1 << 20) as usize;
            let (mut x, mut y) = (vec![1; length], vec![2; length]);
            read_content(a_content, in_a, at, &mut x).unwrap_or_else(|error| panic!("{path:?} at {at}: {error}"));
            read_content(b_content, in_b, at, &mut y).unwrap();
            assert!(x == y, "{path:?} differs between {at} and {}", at + length as u64);
            at += length as u64;
            if at - range.offset == 32 << 20 {
                at = at.max(end.saturating_sub(32 << 20));
            }
        }
    }
}

/// Where a file has data in blocks of 4 KiB, neighbours joined.
fn data(tree: &Tree, file: InodeId) -> Vec<DataRange> {
    let size = tree.inode(file).size();
    let whole = [DataRange { offset: 0, length: size }];
    let ranges = tree.sparse_ranges(file).unwrap_or(if size > 0 { &whole } else { &[] });
    let mut joined: Vec<DataRange> = Vec::new();
    for range in ranges {
        let start = range.offset & !4095;
        let end = (range.offset + range.length).next_multiple_of(4096).min(size);
        match joined.last_mut().filter(|last| last.offset + last.length >= start) {
            Some(last) => last.length = end - last.offset,
            None => joined.push(DataRange { offset: start, length: end - start }),
        }
    }
    joined
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
