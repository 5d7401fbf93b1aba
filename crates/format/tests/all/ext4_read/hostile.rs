//! Damaged and hostile images: opened or refused, never a panic, and never another tree without a word.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, LazyLock};

use inarch_block::{BLOCK_SIZE, Backing, Cursor, read_content};
use inarch_confine::Parsing;
use inarch_format::ext4::{Ext4Image, LostAndFound, Options, ReadOptions, open_image};
use inarch_format::{Damage, ReadError};
use inarch_tree::{DataRange, FileType, InodeId, Tree, Xattr};

use crate::common::odd::xattr;
use crate::common::*;

/// An image in memory, with a few bytes replaced.
struct Image<'a> {
    bytes: Cow<'a, [u8]>,
    patch: (usize, Vec<u8>),
}

impl Backing for Image<'_> {
    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let range = offset as usize..(offset + count) as usize;
        let bytes = self.bytes.get(range.clone()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let (at, patch) = &self.patch;
        if range.end <= *at || at + patch.len() <= range.start {
            out.copy_from(bytes);
            return Ok(());
        }
        let mut bytes = bytes.to_vec();
        for (i, byte) in patch.iter().enumerate() {
            if let Some(to) = (at + i).checked_sub(range.start).and_then(|at| bytes.get_mut(at)) {
                *to = *byte;
            }
        }
        out.copy_from(&bytes);
        Ok(())
    }
}

/// Something of every kind, small.
fn tree() -> Tree {
    let mut b = builder();
    let small = b.intern_xattrs(vec![xattr("user.small", b"1")]);
    let large: Vec<Xattr> = vec![xattr("user.a", &[1; 2000]), xattr("user.b", &[2; 9000])];
    let large = b.intern_xattrs(large);
    let crowd = b.add(b"crowd", &directory()).unwrap();
    let deep = b.add(b"deep", &inarch_tree::Attributes { xattrs: small, ..directory() }).unwrap();
    let plain = b.add(b"file", &inarch_tree::Attributes { xattrs: large, ..file(5000) }).unwrap();
    let link = b.add(b"link", &attributes(0o120777)).unwrap();
    b.set_target(link, b"file").unwrap();
    let sparse = b.add(b"sparse", &file(1 << 22)).unwrap();
    let ranges: Vec<_> = (0..6).map(|i| DataRange { offset: i << 15, length: 4096 }).collect();
    b.set_sparse(sparse, &ranges).unwrap();
    b.list(crowd).unwrap();
    for i in 0..150 {
        b.add(format!("a name of some length {i:03}").as_bytes(), &file(0)).unwrap();
    }
    b.list(deep).unwrap();
    b.link(b"again", plain).unwrap();
    b.add(b"below", &directory()).unwrap();
    b.finish().unwrap()
}

/// The bytes of an image of [`tree`], and which of its blocks hold metadata.
static IMAGE: LazyLock<(Vec<u8>, Vec<usize>)> = LazyLock::new(|| {
    let options = Options { free_bytes: 0, free_inodes: 0, ..Options::default() };
    let map = planned(tree(), &options).map;
    let mut bytes = vec![0; map.blocks() as usize * BLOCK_SIZE];
    let mut metadata = Vec::new();
    for number in map.metadata().iter().flat_map(Clone::clone) {
        let block = &mut bytes[number as usize * BLOCK_SIZE..][..BLOCK_SIZE];
        map.render(number, block.try_into().unwrap());
        if block.iter().any(|byte| *byte != 0) {
            metadata.push(number as usize);
        }
    }
    (bytes, metadata)
});

fn read(bytes: Vec<u8>, verify: bool) -> Result<Ext4Image, ReadError> {
    open(Image { bytes: bytes.into(), patch: (0, Vec::new()) }, verify)
}

/// The image with bytes replaced from `at` on.
fn read_patched(at: usize, patch: Vec<u8>, verify: bool) -> Result<Ext4Image, ReadError> {
    open(Image { bytes: (&*IMAGE.0).into(), patch: (at, patch) }, verify)
}

fn open(image: Image<'static>, verify: bool) -> Result<Ext4Image, ReadError> {
    open_image(
        Parsing::unconfined(),
        Arc::new(image),
        &ReadOptions { verify, lost_and_found: LostAndFound::KeepIfUsed, damage: Damage::Salvaged },
    )
}

/// Goes through all that an image has.
fn exhaust(image: &Ext4Image) {
    let tree = &image.opened.tree;
    for (id, inode) in tree.inodes() {
        assert!(id == InodeId::ROOT || tree.lookup(&tree.path(id)) == Some(id));
        if inode.file_type() == FileType::Regular {
            for offset in [0, inode.size().saturating_sub(4096)] {
                let _ = read_content(&*image.opened.content, id, offset, &mut [0; 4096]);
            }
        }
    }
}

/// Everything that a tree says, as text.
fn told(tree: &Tree) -> String {
    let inode = |(id, inode): (InodeId, &inarch_tree::Inode)| {
        let path = String::from_utf8_lossy(&tree.path(id)).into_owned();
        format!(
            "{path} {inode:?} {:?} {:?} {:?}\n",
            tree.symlink_target(id),
            tree.sparse_ranges(id),
            tree.xattrs(inode.xattrs())
        )
    };
    tree.inodes().map(inode).collect()
}

/// Every byte of metadata is covered by a checksum, is not used, or is found to be wrong.
#[test]
fn with_checksums_no_changed_byte_goes_unnoticed() {
    let (bytes, metadata) = &*IMAGE;
    let right = read(bytes.clone(), true).unwrap();
    assert_eq!(right.opened.notes, [""; 0]);
    let right = told(&right.opened.tree);
    let mut noticed = 0;
    for block in metadata {
        // A prime, so that other bytes are met in other blocks.
        for at in (block % 7..BLOCK_SIZE).step_by(7) {
            let place = block * BLOCK_SIZE + at;
            match read_patched(place, vec![bytes[place] ^ 0x81], true) {
                Ok(image) if image.opened.notes.is_empty() => {
                    assert!(told(&image.opened.tree) == right, "byte {at} of block {block} changes the tree");
                }
                _ => noticed += 1,
            }
        }
    }
    assert!(noticed > 3000, "{noticed}");
}

#[test]
fn without_checksums_anything_may_be_changed() {
    let mut opened = 0;
    for block in &IMAGE.1 {
        for at in (0..BLOCK_SIZE).step_by(4) {
            let values = [0u32, 1, 0x7FFF_FFFF, 0xFFFF_FFFF, 0x0000_FFFF, 0xFFFF_0000, 12, 0x8000];
            let value = values[(at / 4 + block) % values.len()];
            if let Ok(image) = read_patched(block * BLOCK_SIZE + at, value.to_le_bytes().into(), false) {
                exhaust(&image);
                opened += 1;
            }
        }
    }
    assert!(opened > 10_000, "{opened}");
}

#[test]
fn images_may_end_anywhere() {
    let (bytes, _) = &*IMAGE;
    for length in (0..bytes.len().min(200 * BLOCK_SIZE)).step_by(BLOCK_SIZE / 2 + 1).chain([1023, 1024, 2047, 2048]) {
        for verify in [true, false] {
            match read(bytes[..length].to_vec(), verify) {
                Ok(image) => exhaust(&image),
                Err(error) => assert!(error.to_string().starts_with("ext4: "), "{error}"),
            }
        }
    }
}

/// The image with the inode number and the length of the entry `name` replaced.
fn with_entry(name: &[u8], ino: Option<u32>, rec_len: Option<u16>) -> Ext4Image {
    let mut bytes = IMAGE.0.clone();
    let needle = [&[name.len() as u8], name].concat();
    let is_entry = |window: &&[u8]| window[6] == needle[0] && window[8..] == *name;
    let at = bytes.windows(8 + name.len()).position(|window| is_entry(&window)).unwrap();
    if let Some(ino) = ino {
        bytes[at..at + 4].copy_from_slice(&ino.to_le_bytes());
    }
    if let Some(rec_len) = rec_len {
        bytes[at + 4..at + 6].copy_from_slice(&rec_len.to_le_bytes());
    }
    read(bytes, false).unwrap()
}

#[test]
fn directories_may_be_in_circles() {
    let plain = read(IMAGE.0.clone(), false).unwrap();
    let ino = |path: &[u8]| plain.ino(plain.opened.tree.lookup(path).unwrap());
    for target in [ino(b"deep"), 2, ino(b"crowd")] {
        let image = with_entry(b"below", Some(target), None);
        assert_eq!(image.opened.tree.inode_count(), plain.opened.tree.inode_count() - 1);
        assert!(image.opened.tree.lookup(b"deep/below").is_none());
        assert_eq!(image.opened.notes.len(), 1);
        assert!(image.opened.notes[0].starts_with("\"deep/below\": is a directory"), "{}", image.opened.notes[0]);
    }
}

#[test]
fn entries_may_name_what_no_file_can_be() {
    for ino in [1, 3, 8, 10, 100_000, u32::MAX] {
        let image = with_entry(b"below", Some(ino), None);
        assert!(image.opened.tree.lookup(b"deep/below").is_none());
        assert!(image.opened.tree.lookup(b"deep/again").is_some());
        assert_eq!(image.opened.notes.len(), 1, "{:?}", image.opened.notes);
    }
}

#[test]
fn lengths_of_entries_may_be_traps() {
    for rec_len in [0, 1, 3, 4, 8, 11, 13, 4097, 0xFFFC, 0xFFFD, 0xFFFF] {
        let image = with_entry(b"again", None, Some(rec_len));
        assert!(image.opened.tree.lookup(b"deep/below").is_none());
        assert!(image.opened.tree.lookup(b"file").is_some());
        assert!(image.opened.notes[0].starts_with("\"deep\": has a block with nonsense"), "{:?}", image.opened.notes);
    }
}

/// Two files with the same blocks can be read and both are recognised: together they may be longer than the disk.
#[test]
fn files_of_the_same_blocks_are_known() {
    let plain = read(IMAGE.0.clone(), false).unwrap();
    assert_eq!(plain.extents().overlapping().len(), 0);
    let slot = |path: &[u8]| {
        let ino = plain.ino(plain.opened.tree.lookup(path).unwrap()) as usize;
        let table = u32::from_le_bytes(IMAGE.0[BLOCK_SIZE + 8..][..4].try_into().unwrap()) as usize;
        table * BLOCK_SIZE + (ino - 1) * 256
    };
    let mut bytes = IMAGE.0.clone();
    let (from, to) = (slot(b"file"), slot(b"sparse"));
    bytes.copy_within(from..from + 128, to);
    let image = read(bytes, false).unwrap();
    assert_eq!(image.extents().overlapping().len(), 2);
}

/// Two files of the same blocks are allowed; two directories are not, as names would multiply.
#[test]
fn a_directory_has_its_blocks_for_itself() {
    let plain = read(IMAGE.0.clone(), false).unwrap();
    let slot = |path: &[u8]| {
        let ino = plain.ino(plain.opened.tree.lookup(path).unwrap()) as usize;
        let table = u32::from_le_bytes(IMAGE.0[BLOCK_SIZE + 8..][..4].try_into().unwrap()) as usize;
        table * BLOCK_SIZE + (ino - 1) * 256
    };
    let mut bytes = IMAGE.0.clone();
    let (from, to) = (slot(b"crowd"), slot(b"deep/below"));
    bytes.copy_within(from..from + 128, to);
    let image = read(bytes, false).unwrap();
    assert_eq!(image.opened.tree.inode_count(), plain.opened.tree.inode_count());
    assert!(image.opened.notes[0].contains("which is in another place, too"), "{:?}", image.opened.notes);
}
