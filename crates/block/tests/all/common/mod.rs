//! A small device over a directory: two blocks of metadata, two of zeros, then every file at the next block.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, BlockMap, Device, FileExtent, HostFiles, Metadata, Overlay};
use inarch_tree::{Attributes, Builder, FileType, InodeId, Timestamp, Tree};
use vm_memory::VolatileSlice;

pub const BLOCK: u64 = BLOCK_SIZE as u64;
/// The block where the first file starts.
pub const FIRST_FILE: u64 = 4;

/// Renders each block as its number, over and over.
pub struct Numbered;

impl Metadata for Numbered {
    fn render(&self, block: u64, out: &mut [u8; BLOCK_SIZE]) {
        out.chunks_mut(8).for_each(|word| word.copy_from_slice(&(block + 1).to_le_bytes()));
    }
}

pub fn attributes(metadata: &fs::Metadata) -> Attributes {
    Attributes {
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: if metadata.is_file() { metadata.size() } else { 0 },
        mtime: Timestamp { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() as u32 },
        ctime: Timestamp { seconds: metadata.ctime(), nanoseconds: metadata.ctime_nsec() as u32 },
        source_ino: metadata.ino(),
        ..Attributes::default()
    }
}

fn list(builder: &mut Builder, id: InodeId, path: &Path) {
    let mut names: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    builder.list(id).unwrap();
    let mut directories = Vec::new();
    for name in names {
        let path = path.join(&name);
        let metadata = fs::symlink_metadata(&path).unwrap();
        let id = builder.add(name.as_bytes(), &attributes(&metadata)).unwrap();
        if metadata.is_dir() {
            directories.push((id, path));
        }
    }
    directories.into_iter().for_each(|(id, path)| list(builder, id, &path));
}

/// The tree of a directory of files and directories.
pub fn scan(root: &Path) -> Arc<Tree> {
    let mut builder = Builder::new(&attributes(&fs::metadata(root).unwrap())).unwrap();
    list(&mut builder, InodeId::ROOT, root);
    Arc::new(builder.finish().unwrap())
}

/// Where each file starts, and the map.
pub fn layout(tree: &Tree) -> BlockMap {
    let mut start = FIRST_FILE;
    let mut files = Vec::new();
    for (inode, attributes) in tree.inodes() {
        let blocks = attributes.size().div_ceil(BLOCK);
        if attributes.file_type() == FileType::Regular && blocks > 0 {
            files.push(FileExtent { start, blocks: blocks as u32, first: 0, inode });
            start += blocks;
        }
    }
    BlockMap::new(start, vec![0..1, 1..2], files, Arc::new(Numbered)).unwrap()
}

/// The byte offset of a file on the device.
pub fn offset_of(tree: &Tree, path: &str) -> u64 {
    let inode = tree.lookup(path.as_bytes()).unwrap();
    layout(tree).files().iter().find(|extent| extent.inode == inode).unwrap().start * BLOCK
}

pub fn device_of(tree: &Arc<Tree>, root: &Path, max_open: usize, overlay: Option<Overlay>, capacity: u64) -> Device {
    let files = HostFiles::new(File::open(root).unwrap().into(), Arc::clone(tree), max_open);
    Device::new(layout(tree), Arc::new(files), overlay, capacity)
}

/// A read-only device of a directory, as large as its map.
pub fn device(root: &Path) -> (Arc<Tree>, Device) {
    let tree = scan(root);
    let capacity = layout(&tree).blocks();
    let device = device_of(&tree, root, 64, None, capacity);
    (tree, device)
}

pub fn read(device: &Device, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut out = vec![0xee; length];
    device.read_at(offset, &[out.as_mut_slice().into()])?;
    Ok(out)
}

pub fn write(device: &Device, offset: u64, data: &[u8]) -> io::Result<()> {
    let mut data = data.to_vec();
    device.write_at(offset, &[data.as_mut_slice().into()])
}

/// Cuts a buffer into slices of at most `size` bytes, with an empty one among them.
pub fn slices(buffer: &mut [u8], size: usize) -> Vec<VolatileSlice<'_>> {
    let mut slices: Vec<VolatileSlice<'_>> = buffer.chunks_mut(size.max(1)).map(VolatileSlice::from).collect();
    slices.insert(slices.len() / 2, VolatileSlice::from(&mut [][..]));
    slices
}

/// Bytes that differ from place to place and from `seed` to `seed`.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

/// A pseudo-random number generator (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }
}

/// A file system that is unmounted when dropped.
pub struct Mounted(pub tempfile::TempDir);

impl Mounted {
    /// `None`, with the reason printed, where mounting is not allowed.
    pub fn new(test: &str, arguments: &[&str]) -> Option<Mounted> {
        let dir = tempfile::tempdir().unwrap();
        match Command::new("mount").args(arguments).arg(dir.path()).output() {
            Ok(output) if output.status.success() => Some(Mounted(dir)),
            result => {
                eprintln!("skipped: {test}: mounting {arguments:?} is not possible here: {result:?}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}
