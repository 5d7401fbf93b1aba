//! What the tests of ext4 share: making trees and images, and asking e2fsprogs about them.
#![allow(dead_code, reason = "each test file uses a part")]

pub mod archive;
pub mod compare;
pub mod forest;
pub mod mount;
pub mod mounted;
pub mod odd;
pub mod view;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, BlockMap, Run};
use inarch_format::ext4::{Options, Plan, plan};
use inarch_format::{Reader, format_by_name, readers};
use inarch_tree::{Attributes, Builder, InodeId, Timestamp, Tree};

/// How often something random is tried. `scripts/soak` multiplies it by `INARCH_TEST_ROUNDS`.
pub fn rounds(number: u32) -> u32 {
    let factor = std::env::var("INARCH_TEST_ROUNDS").ok().and_then(|text| text.parse().ok());
    number * factor.unwrap_or(1)
}

/// The reader of that name.
pub fn reader(name: &str) -> &'static Reader {
    readers().iter().find(|reader| reader.name == name).unwrap()
}

/// The readers of what is written here, too.
pub fn written() -> impl Iterator<Item = &'static Reader> {
    readers().iter().filter(|reader| format_by_name(reader.name).is_some())
}

/// Attributes of a mode, with a time of its own.
pub fn attributes(mode: u32) -> Attributes {
    let time = Timestamp { seconds: 1_600_000_000, nanoseconds: 123_456_789 };
    Attributes { mode, uid: 1000, gid: 70_000, mtime: time, ctime: time, ..Attributes::default() }
}

/// A regular file's.
pub fn file(size: u64) -> Attributes {
    Attributes { size, ..attributes(0o100644) }
}

/// A directory's.
pub fn directory() -> Attributes {
    attributes(0o040755)
}

/// A builder whose root is listed.
pub fn builder() -> Builder {
    let mut builder = Builder::new(&directory()).unwrap();
    builder.list(InodeId::ROOT).unwrap();
    builder
}

/// Options with little free space, so that images stay small.
pub fn small() -> Options {
    Options { free_bytes: 16 << 20, free_inodes: 1000, ..Options::default() }
}

/// Plans a tree.
pub fn planned(tree: Tree, options: &Options) -> Plan {
    plan(Arc::new(tree), options).unwrap()
}

/// Content of no file: pseudo-random bytes that depend on the inode and the offset.
pub fn pattern(inode: InodeId, offset: u64) -> u8 {
    let x = (u64::from(inode.0) << 40 ^ offset ^ 0x9E37).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x >> 56) as u8
}

/// Fills a block of a file's content with [`pattern`].
pub fn fill_pattern(inode: InodeId, block: u64, out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = pattern(inode, block * BLOCK_SIZE as u64 + i as u64);
    }
}

/// Writes a device as a sparse file; `read` fills a block of a file's content, which is zeros before.
pub fn dump(map: &BlockMap, path: &Path, mut read: impl FnMut(InodeId, u64, &mut [u8])) {
    let image = File::create(path).unwrap();
    image.set_len(map.blocks() * BLOCK_SIZE as u64).unwrap();
    let mut at = 0;
    let mut block = [0; BLOCK_SIZE];
    while at < map.blocks() {
        let (run, count) = map.lookup(at);
        let count = count.min(map.blocks() - at);
        for i in 0..count {
            match run {
                Run::Zeros => break,
                Run::Metadata => map.render(at + i, &mut block),
                Run::File { inode, block: first } => {
                    block.fill(0);
                    read(inode, first + i, &mut block);
                }
            }
            if block != [0; BLOCK_SIZE] {
                image.write_all_at(&block, (at + i) * BLOCK_SIZE as u64).unwrap();
            }
        }
        at += count;
    }
}

/// Leaves file content as zeros.
pub fn no_content(_: InodeId, _: u64, _: &mut [u8]) {}

/// A directory for images, removed when dropped.
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    /// A directory inside `parent`.
    pub fn within(parent: &str) -> Scratch {
        Scratch(tempfile::tempdir_in(parent).unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// What `e2fsck -fn` says of an image.
pub fn e2fsck(image: &Path) -> Output {
    Command::new("e2fsck").args(["-f", "-n"]).arg(image).env("LC_ALL", "C").output().expect("e2fsprogs is installed")
}

/// Fails unless `e2fsck -fn` finds nothing to say beyond its five passes.
pub fn assert_clean(image: &Path) {
    let output = e2fsck(image);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let odd = |line: &&str| {
        !(line.is_empty() || line.starts_with("Pass ") || line.starts_with("e2fsck ") || line.contains(" files ("))
    };
    let odd: Vec<_> = text.lines().filter(odd).take(20).collect();
    assert!(output.status.success() && odd.is_empty(), "{} {odd:#?}", output.status);
}

/// Plans a tree, dumps it without content, and checks it.
pub fn assert_clean_plan(tree: Tree, options: &Options) -> Plan {
    let scratch = Scratch::new();
    let plan = planned(tree, options);
    dump(&plan.map, &scratch.path("image"), no_content);
    assert_clean(&scratch.path("image"));
    plan
}

/// What a request of debugfs prints.
pub fn debugfs(image: &Path, request: &str) -> String {
    let output = Command::new("debugfs").args(["-R", request]).arg(image).output().expect("e2fsprogs is installed");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
