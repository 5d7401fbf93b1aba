//! What the tests of squashfs share: making images, ours and those of squashfs-tools, and comparing them with a tree.
#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use inarch_block::{BackingFile, Content, Cursor, Device, FileSink, HostFiles, read_content, write_image};
use inarch_confine::Parsing;
use inarch_format::squashfs::{Squashfs, open};
use inarch_format::{
    Algorithm, Compression, Format, FormatError, ImageOptions, Layout, Planned, ReadError, TreeAndContent,
};
use inarch_tree::{Attributes, DataRange, FileType, Inode, InodeId, Timestamp, Tree, Xattr};

use crate::common::mounted::{self, Held, parts};
use crate::common::odd::{acl, xattr};
use crate::common::{attributes, builder, directory, file, pattern};

/// Plans a tree.
pub fn try_plan(tree: &Arc<Tree>, options: &ImageOptions) -> Result<Planned, FormatError> {
    Squashfs.plan(tree, options)
}

/// Plans and writes a tree; gives the plan's notes.
pub fn make(tree: &Arc<Tree>, content: Arc<dyn Content>, image: &Path, options: &ImageOptions) -> Vec<String> {
    let planned = try_plan(tree, options).unwrap();
    let file = File::create(image).unwrap();
    match planned.layout {
        Layout::Blocks(map) => {
            let blocks = map.blocks();
            write_image(&Device::new(map, content, None, blocks), &file).unwrap();
        }
        Layout::Packed(pack) => {
            let length = pack.pack(&*content, &FileSink::new(&file), &()).unwrap();
            file.set_len(length).unwrap();
        }
        Layout::Stream(_) => panic!("squashfs is no archive"),
    }
    planned.notes
}

/// Options for an algorithm, its level if it is not to be the usual one, and blocks of so many bytes.
pub fn compressed(algorithm: Algorithm, level: Option<i32>, block_size: u32) -> ImageOptions {
    let compression = Some(Compression { algorithm, level });
    ImageOptions { compression, block_size: Some(block_size), ..ImageOptions::default() }
}

/// Content of no file: where the tree has data, bytes that compress a little and depend on the inode and the place.
pub struct Pattern {
    tree: Arc<Tree>,
    /// Random bytes, each three times.
    random: Vec<u8>,
}

/// Bytes of a file after which the pattern jumps to another place.
const SEGMENT: u64 = 1 << 14;

impl Pattern {
    pub fn new(tree: &Arc<Tree>) -> Pattern {
        let random = (0..1 << 16).flat_map(|at| [pattern(InodeId(0), at); 3]).collect();
        Pattern { tree: tree.clone(), random }
    }

    /// Fills `out` with the bytes of a file from `at` on.
    fn fill(&self, inode: InodeId, mut at: u64, mut out: &mut [u8]) {
        while !out.is_empty() {
            let segment = at / SEGMENT;
            let place = (3 * (u64::from(inode.0) * 37 + segment * 911) + at) as usize % self.random.len();
            let in_segment = ((segment + 1) * SEGMENT - at) as usize;
            let count = out.len().min(in_segment).min(self.random.len() - place);
            let (now, later) = out.split_at_mut(count);
            now.copy_from_slice(&self.random[place..place + count]);
            (out, at) = (later, at + count as u64);
        }
    }
}

impl Content for Pattern {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let whole = [DataRange { offset: 0, length: self.tree.inode(inode).size() }];
        let ranges = self.tree.sparse_ranges(inode).unwrap_or(&whole);
        let mut bytes = vec![0; count as usize];
        let first = ranges.partition_point(|range| range.offset + range.length <= offset);
        for range in ranges[first..].iter().take_while(|range| range.offset < offset + count) {
            let (start, end) = (range.offset.max(offset), (range.offset + range.length).min(offset + count));
            self.fill(inode, start, &mut bytes[(start - offset) as usize..(end - offset) as usize]);
        }
        out.copy_from(&bytes);
        Ok(())
    }
}

/// The content of a scanned directory's files.
pub fn host_files(source: &Path, tree: &Arc<Tree>) -> Arc<dyn Content> {
    Arc::new(HostFiles::new(File::open(source).unwrap().into(), tree.clone(), 100))
}

/// What a tool of squashfs-tools says.
pub fn run(tool: &str, args: &[&OsStr]) -> Output {
    Command::new(tool).args(args).output().expect("squashfs-tools is installed")
}

/// Makes an image by `mksquashfs`.
pub fn mksquashfs(source: &Path, image: &Path, args: &[&str]) {
    let _ = fs::remove_file(image);
    let mut all = vec![source.as_os_str(), image.as_os_str(), "-quiet".as_ref(), "-no-progress".as_ref()];
    all.extend(args.iter().map(|arg| OsStr::new(*arg)));
    let output = run("mksquashfs", &all);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Lets `unsquashfs` extract an image; fails unless it is content.
pub fn unsquash(image: &Path, to: &Path) {
    let args = ["-no-progress".as_ref(), "-dest".as_ref(), to.as_os_str(), image.as_os_str()];
    let output = run("unsquashfs", &args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.trim().is_empty(), "{} {errors}", output.status);
}

/// One of everything.
pub fn odd_tree() -> Tree {
    let mut b = builder();
    let capability: Vec<u8> = [0x0200_0001u32, 1 << 13, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    let set = b.intern_xattrs(vec![xattr("user.small", b"1"), xattr("security.capability", &capability)]);
    let lost = b.intern_xattrs(vec![xattr("user.kept", b"1"), xattr("system.posix_acl_access", &acl())]);
    let all_lost = b.intern_xattrs(vec![xattr("system.posix_acl_access", &acl())]);
    let larger = b.intern_xattrs(vec![xattr("trusted.larger", &[7; 500]), xattr("trusted.a", &[8; 500])]);
    let huge = b.intern_xattrs(vec![
        xattr("user.huge", &[9; 65_535]),
        xattr("user.large", &[10; 5000]),
        xattr("user.empty", b""),
        xattr(&format!("user.{}", "n".repeat(250)), b"2"),
    ]);
    let time = |seconds| Timestamp { seconds, nanoseconds: 0 };

    let long = b.add(&[b'0'; 255], &file(1)).unwrap();
    b.add(b"1bad\xFF\xFEutf8", &file(4096)).unwrap();
    b.add(b"2char", &Attributes { device: (1, 3), ..attributes(0o020666) }).unwrap();
    b.add(b"2with", &Attributes { device: (0, 0), xattrs: larger, ..attributes(0o020666) }).unwrap();
    b.add(b"3block", &Attributes { device: (259, 70_000), ..attributes(0o060660) }).unwrap();
    b.add(b"4fifo", &attributes(0o010644)).unwrap();
    b.add(b"5socket", &attributes(0o140755)).unwrap();
    b.add(b"5with", &Attributes { xattrs: larger, ..attributes(0o140755) }).unwrap();
    for (name, length) in [("6a", 1), ("6b", 60), ("6c", 4095)] {
        let link = b.add(name.as_bytes(), &attributes(0o120777)).unwrap();
        b.set_target(link, &vec![b't'; length]).unwrap();
    }
    let link = b.add(b"6with", &Attributes { xattrs: larger, ..attributes(0o120777) }).unwrap();
    b.set_target(link, &[b'u'; 2900]).unwrap();
    let dir = b.add(b"7dir", &Attributes { xattrs: set, ..directory() }).unwrap();
    let crowd = b.add(b"7dir of several blocks", &Attributes { xattrs: huge, ..directory() }).unwrap();
    b.add(b"8acl", &Attributes { xattrs: lost, ..file(10) }).unwrap();
    b.add(b"8acl-alone", &Attributes { xattrs: all_lost, ..file(10) }).unwrap();
    b.add(b"8attributes", &Attributes { xattrs: larger, ..file(10) }).unwrap();
    b.add(b"8attributes-2", &Attributes { xattrs: larger, ..directory() }).unwrap();
    b.add(b"8huge", &Attributes { xattrs: huge, ..file(0) }).unwrap();
    b.add(b"8huge-2", &Attributes { xattrs: huge, ..file(5000) }).unwrap();
    b.add(b"9early", &Attributes { mtime: time(-1), uid: u32::MAX - 1, ..file(0) }).unwrap();
    b.add(b"9late", &Attributes { mtime: time(1 << 32), gid: u32::MAX - 1, ..file(0) }).unwrap();
    b.add(b"9latest", &Attributes { mtime: time(u32::MAX.into()), ..file(0) }).unwrap();
    for size in [131_071, 131_072, 131_073, 262_144, 1_000_000] {
        b.add(format!("9of{size:07}").as_bytes(), &file(size)).unwrap();
    }
    let range = |offset, length| DataRange { offset, length };
    let sparse = b.add(b"9sparse", &file(1 << 36)).unwrap();
    b.set_sparse(sparse, &[range(0, 1), range(5000, 10), range(1 << 30, 300 << 10), range((1 << 36) - 1, 1)]).unwrap();
    let hole = b.add(b"9sparse-empty", &file(1 << 20)).unwrap();
    b.set_sparse(hole, &[]).unwrap();
    let many = b.add(b"9sparse-many", &Attributes { xattrs: larger, ..file(30_000_001) }).unwrap();
    b.set_sparse(many, &(0..100).map(|i| range(i * 300_000 + i % 7, 100 + i)).collect::<Vec<_>>()).unwrap();
    let end = b.add(b"9sparse-to-end", &file(1_000_000)).unwrap();
    b.set_sparse(end, &[range(300_000, 10)]).unwrap();
    b.list(dir).unwrap();
    b.link(b"hard", long).unwrap();
    b.list(crowd).unwrap();
    for i in 0..3000 {
        b.add(format!("{i:04}{}", "-".repeat(i % 100)).as_bytes(), &file(i as u64 / 10)).unwrap();
    }
    b.finish().unwrap()
}

/// The attributes of a set that squashfs holds.
pub fn held_xattrs(tree: &Tree, inode: &Inode) -> Vec<Xattr> {
    let held = |xattr: &&Xattr| !xattr.name.starts_with(b"system.");
    tree.xattrs(inode.xattrs()).iter().filter(held).cloned().collect()
}

/// Compares a directory of this host with the tree's, and all below.
pub fn compare(tree: &Tree, content: &dyn Content, at: &Path) {
    mounted::compare(tree, content, at, &|inode| Held {
        mtime: (inode.mtime().seconds.clamp(0, u32::MAX.into()), 0),
        xattrs: held_xattrs(tree, inode),
    });
}

/// Opens an image of this host by our reader.
pub fn try_open(image: &Path) -> Result<TreeAndContent, ReadError> {
    open(Parsing::unconfined(), Arc::new(BackingFile::new(File::open(image).unwrap(), image.to_owned()).unwrap()))
}

/// Compares what our reader found with a tree and what its files hold.
pub fn compare_opened(tree: &Tree, content: &dyn Content, found: &TreeAndContent) {
    assert_eq!(found.tree.inode_count(), tree.inode_count());
    let mut same = HashMap::from([(InodeId::ROOT, InodeId::ROOT)]);
    let mut directories = vec![InodeId::ROOT];
    while let Some(dir) = directories.pop() {
        let path = String::from_utf8_lossy(&tree.path(dir)).into_owned();
        let (names, found_names) = (tree.entries(dir), found.tree.entries(same[&dir]));
        assert!(names.clone().map(|entry| entry.name).eq(found_names.clone().map(|entry| entry.name)), "{path}");
        for (entry, other) in names.zip(found_names) {
            assert_eq!(*same.entry(entry.inode).or_insert(other.inode), other.inode, "{path}");
            if tree.inode(entry.inode).file_type() == FileType::Directory {
                directories.push(entry.inode);
            }
        }
    }
    for (id, inode) in tree.inodes() {
        let path = String::from_utf8_lossy(&tree.path(id)).into_owned();
        let other = found.tree.inode(same[&id]);
        let shape = |inode: &Inode| (inode.mode(), inode.uid(), inode.gid(), inode.size(), inode.device());
        assert_eq!(shape(inode), shape(other), "{path}");
        assert_eq!(inode.links(), other.links(), "{path}");
        assert_eq!(inode.mtime().seconds.clamp(0, u32::MAX.into()), other.mtime().seconds, "{path}");
        assert_eq!(held_xattrs(tree, inode), found.tree.xattrs(other.xattrs()), "{path}");
        assert_eq!(tree.symlink_target(id), found.tree.symlink_target(same[&id]), "{path}");
        parts(inode.size(), |start, length| {
            let (mut expected, mut read) = (vec![0; length], vec![0; length]);
            read_content(content, id, start, &mut expected).unwrap();
            read_content(&*found.content, same[&id], start, &mut read).unwrap_or_else(|e| panic!("{path}: {e}"));
            assert!(expected == read, "{path} differs in {length} bytes from {start}");
        });
    }
}
