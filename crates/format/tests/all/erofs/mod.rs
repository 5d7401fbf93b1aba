//! What the tests of EROFS share: planning and writing images, asking erofs-utils, and comparing with a mount.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use inarch_block::{Backing, BlockMap, Content, Cursor, Device, HostFiles, read_content, write_image};
use inarch_format::erofs::Erofs;
use inarch_format::{Format, FormatError, ImageOptions, Layout};
use inarch_tree::{Attributes, DataRange, FileType, Inode, InodeId, Timestamp, Tree};

use crate::common::mounted::{self, Held, parts};
use crate::common::odd::{acl, xattr};
use crate::common::{attributes, builder, directory, file, pattern};

/// Plans a tree.
pub fn try_plan(tree: &Arc<Tree>, options: &ImageOptions) -> Result<BlockMap, FormatError> {
    match Erofs.plan(tree, options)?.layout {
        Layout::Blocks(map) => Ok(map),
        _ => panic!("a map of blocks was planned before"),
    }
}

/// Plans a tree that has a plan.
pub fn planned(tree: &Arc<Tree>) -> BlockMap {
    try_plan(tree, &ImageOptions::default()).unwrap()
}

/// Writes a map as an image.
pub fn write(map: BlockMap, content: Arc<dyn Content>, image: &Path) {
    let blocks = map.blocks();
    let device = Device::new(map, content, None, blocks);
    write_image(&device, &File::create(image).unwrap()).unwrap();
}

/// Plans and writes a tree, with short files behind their inodes or in blocks of their own.
pub fn make(tree: &Arc<Tree>, content: Arc<dyn Content>, image: &Path, inline_files: bool) {
    write(try_plan(tree, &ImageOptions { inline_files, ..ImageOptions::default() }).unwrap(), content, image);
}

/// Content of no file: pseudo-random bytes where the tree has data.
pub struct Pattern(pub Arc<Tree>);

impl Content for Pattern {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let size = self.0.inode(inode).size();
        let whole = [DataRange { offset: 0, length: size }];
        let ranges = self.0.sparse_ranges(inode).unwrap_or(&whole);
        let mut bytes = vec![0; count as usize];
        let first = ranges.partition_point(|range| range.offset + range.length <= offset);
        for range in ranges[first..].iter().take_while(|range| range.offset < offset + count) {
            for at in range.offset.max(offset)..(range.offset + range.length).min(offset + count) {
                bytes[(at - offset) as usize] = pattern(inode, at);
            }
        }
        out.copy_from(&bytes);
        Ok(())
    }
}

/// The content of a scanned directory's files.
pub fn host_files(source: &Path, tree: &Arc<Tree>) -> Arc<dyn Content> {
    Arc::new(HostFiles::new(File::open(source).unwrap().into(), tree.clone(), 100))
}

/// What `fsck.erofs` says of an image, its files read too; those of compressed images are decompressed.
pub fn fsck(image: &Path) -> Output {
    Command::new("fsck.erofs").args(["-d3", "--extract"]).arg(image).output().expect("erofs-utils is installed")
}

/// Fails unless `fsck.erofs` is content.
pub fn assert_clean(image: &Path) {
    let output = fsck(image);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let clean = text.contains("No errors found") && !text.contains("<E>") && !text.contains("<W>");
    assert!(output.status.success() && clean, "{} {text}", output.status);
}

/// What `dump.erofs` says of an image.
pub fn dump_erofs(image: &Path, args: &[&str]) -> String {
    let output = Command::new("dump.erofs").args(args).arg(image).output().expect("erofs-utils is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One of everything that EROFS can hold.
pub fn odd_tree() -> Tree {
    let mut b = builder();
    let capability: Vec<u8> = [0x0200_0001u32, 1 << 13, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    let set = b.intern_xattrs(vec![
        xattr("user.small", b"1"),
        xattr("security.capability", &capability),
        xattr("system.posix_acl_access", &acl()),
    ]);
    let larger = b.intern_xattrs(vec![xattr("trusted.larger", &[7; 500]), xattr("trusted.a", &[8; 500])]);
    let long_name = format!("user.{}", "n".repeat(250));
    let huge = b.intern_xattrs(vec![
        xattr("user.huge", &[9; 65_535]),
        xattr("user.large", &[10; 5000]),
        xattr("user.empty", b""),
        xattr(&long_name, b"2"),
    ]);
    let alone = b.intern_xattrs(vec![xattr("trusted.alone", &[11; 9000]), xattr("security.beside", &[12; 3])]);
    let old = Timestamp { seconds: -1_000_000_000, nanoseconds: 999_999_999 };
    let late = Timestamp { seconds: 13_569_465_600, nanoseconds: 1 };

    b.add(b"!before the dots", &file(3)).unwrap();
    b.add(b"--", &file(4)).unwrap();
    b.add(b".!between them", &file(5)).unwrap();
    b.add(b".-", &attributes(0o010644)).unwrap();
    b.add(b"..after", &file(6)).unwrap();
    let long = b.add(&[b'0'; 255], &file(1)).unwrap();
    b.add(b"1bad\xFF\xFEutf8", &file(4096)).unwrap();
    b.add(b"2char", &Attributes { device: (1, 3), ..attributes(0o020666) }).unwrap();
    b.add(b"3block", &Attributes { device: (259, 70_000), ..attributes(0o060660) }).unwrap();
    b.add(b"5socket", &attributes(0o140755)).unwrap();
    for (name, length) in [("6a", 1), ("6b", 59), ("6c", 1000), ("6d", 3000), ("6e", 3072), ("6f", 3073), ("6g", 4095)]
    {
        let link = b.add(name.as_bytes(), &attributes(0o120777)).unwrap();
        b.set_target(link, &vec![b't'; length]).unwrap();
    }
    let link = b.add(b"6with", &Attributes { xattrs: larger, ..attributes(0o120777) }).unwrap();
    b.set_target(link, &[b'u'; 2900]).unwrap();
    let link = b.add(b"6with huge", &Attributes { xattrs: alone, ..attributes(0o120777) }).unwrap();
    b.set_target(link, b"v").unwrap();
    let dir = b.add(b"7dir", &Attributes { xattrs: set, ..directory() }).unwrap();
    let crowd = b.add(b"7dir of several blocks", &Attributes { xattrs: alone, ..directory() }).unwrap();
    b.add(b"8attributes", &Attributes { xattrs: larger, ..file(10) }).unwrap();
    b.add(b"8attributes-2", &Attributes { xattrs: larger, ..directory() }).unwrap();
    b.add(b"8few", &Attributes { xattrs: set, ..file(10) }).unwrap();
    b.add(b"8huge", &Attributes { xattrs: huge, ..file(0) }).unwrap();
    b.add(b"8huge-2", &Attributes { xattrs: huge, ..file(5000) }).unwrap();
    b.add(b"9early", &Attributes { mtime: old, ctime: old, uid: u32::MAX - 1, ..file(0) }).unwrap();
    b.add(b"9late", &Attributes { mtime: late, ctime: late, gid: u32::MAX - 1, ..file(0) }).unwrap();
    let range = |offset, length| DataRange { offset, length };
    let sparse = b.add(b"9sparse", &file(1 << 40)).unwrap();
    b.set_sparse(sparse, &[range(0, 1), range(5000, 10), range(1 << 30, 300 << 10), range((1 << 40) - 1, 1)]).unwrap();
    let hole = b.add(b"9sparse-empty", &file(1 << 20)).unwrap();
    b.set_sparse(hole, &[]).unwrap();
    let many = b.add(b"9sparse-many", &Attributes { xattrs: alone, ..file(50_000_001) }).unwrap();
    b.set_sparse(many, &(0..5000).map(|i| range(i * 10_000 + i % 7, 100 + i)).collect::<Vec<_>>()).unwrap();
    let one_hole = b.add(b"9sparse-one", &file(3 << 20)).unwrap();
    b.set_sparse(one_hole, &[range(0, 1 << 20), range(2 << 20, 1 << 20)]).unwrap();
    let whole = b.add(b"9sparse-whole", &file(9000)).unwrap();
    b.set_sparse(whole, &[range(0, 4000), range(4100, 1), range(8192, 808)]).unwrap();
    b.list(dir).unwrap();
    b.link(b"hard", long).unwrap();
    b.list(crowd).unwrap();
    for i in 0..1000 {
        b.add(format!("{i:04}{}", "-".repeat(i % 100)).as_bytes(), &file(i as u64 * 10)).unwrap();
    }
    b.finish().unwrap()
}

/// Compares a mounted directory with the tree's, and all below.
pub fn compare(tree: &Tree, content: &dyn Content, at: &Path) {
    mounted::compare(tree, content, at, &|inode| Held {
        mtime: (inode.mtime().seconds, inode.mtime().nanoseconds.into()),
        xattrs: tree.xattrs(inode.xattrs()).to_vec(),
    });
}

/// Fails unless two trees with their content are the same, names and all, but for times of attributes.
pub fn assert_same(tree: &Tree, content: &dyn Content, other: &Tree, other_content: &dyn Content) {
    assert_eq!(tree.inode_count(), other.inode_count());
    let mut pairs = HashMap::from([(InodeId::ROOT, InodeId::ROOT)]);
    let mut directories = vec![(InodeId::ROOT, InodeId::ROOT)];
    assert_same_inode(tree, InodeId::ROOT, other, InodeId::ROOT);
    while let Some((dir, other_dir)) = directories.pop() {
        assert_eq!(tree.entries(dir).len(), other.entries(other_dir).len(), "{:?}", tree.path(dir));
        for (entry, other_entry) in tree.entries(dir).zip(other.entries(other_dir)) {
            assert_eq!(entry.name, other_entry.name);
            let path = String::from_utf8_lossy(&tree.path(entry.inode)).into_owned();
            match pairs.insert(entry.inode, other_entry.inode) {
                Some(before) => assert_eq!(before, other_entry.inode, "{path} is not the same file"),
                None => {
                    assert_same_inode(tree, entry.inode, other, other_entry.inode);
                    if tree.inode(entry.inode).file_type() == FileType::Directory {
                        directories.push((entry.inode, other_entry.inode));
                    }
                    parts(tree.inode(entry.inode).size(), |start, length| {
                        let (mut expected, mut found) = (vec![0; length], vec![1; length]);
                        read_content(content, entry.inode, start, &mut expected).unwrap();
                        read_content(other_content, other_entry.inode, start, &mut found).unwrap();
                        assert!(expected == found, "{path} differs in {length} bytes from {start}");
                    });
                }
            }
        }
    }
}

fn assert_same_inode(tree: &Tree, id: InodeId, other: &Tree, other_id: InodeId) {
    let (a, b) = (tree.inode(id), other.inode(other_id));
    let path = String::from_utf8_lossy(&tree.path(id)).into_owned();
    let known = |inode: &Inode| {
        let owner = (inode.uid(), inode.gid(), inode.links());
        (inode.mode(), owner, inode.size(), inode.device(), inode.mtime())
    };
    assert_eq!(known(a), known(b), "{path}");
    assert_eq!(tree.xattrs(a.xattrs()), other.xattrs(b.xattrs()), "{path}");
    assert_eq!(tree.symlink_target(id), other.symlink_target(other_id), "{path}");
}

/// An image in memory.
pub struct Bytes(pub Vec<u8>);

impl Backing for Bytes {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let range = offset as usize..(offset + count) as usize;
        out.copy_from(self.0.get(range).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
