//! Damaged and hostile images are refused, or read as far as they make sense: never a panic, never memory or time that
//! the image's size does not warrant.

use std::io;
use std::sync::Arc;

use crate::common::{Scratch, builder, directory, file};
use crate::squashfs::*;
use inarch_block::{Backing, Cursor, read_content};
use inarch_confine::Parsing;
use inarch_format::squashfs::open;
use inarch_format::{Algorithm, ImageOptions, ReadError, TreeAndContent};
use inarch_tree::{InodeId, Tree};

struct Image(Vec<u8>);

impl Backing for Image {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).ok_or(io::ErrorKind::InvalidInput)?;
        out.copy_from(self.0.get(offset as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn open_bytes(bytes: &[u8]) -> Result<TreeAndContent, ReadError> {
    open(Parsing::unconfined(), Arc::new(Image(bytes.to_vec())))
}

/// Opens an image and reads what it has.
fn read_all(bytes: &[u8]) {
    let Ok(opened) = open_bytes(bytes) else { return };
    for (id, inode) in opened.tree.inodes() {
        let _ = read_content(&*opened.content, id, inode.size().saturating_sub(5000), &mut [0; 6000]);
        let _ = opened.content.lend(id, 0, inode.size().min(1 << 16), &mut |_, _| Ok(()));
    }
}

/// A directory in the root, with a file and a link to it.
fn small_tree() -> Tree {
    let mut b = builder();
    let dir = b.add(b"directory", &directory()).unwrap();
    let file = b.add(b"file", &file(9000)).unwrap();
    let link = b.add(b"link", &crate::common::attributes(0o120777)).unwrap();
    b.set_target(link, b"target").unwrap();
    b.list(dir).unwrap();
    b.link(b"hard", file).unwrap();
    b.add(b"other", &crate::common::file(100)).unwrap();
    b.finish().unwrap()
}

/// The bytes of an image.
fn image_of(tree: Tree, options: &ImageOptions) -> Vec<u8> {
    let tree = Arc::new(tree);
    let scratch = Scratch::new();
    make(&tree, Arc::new(Pattern::new(&tree)), &scratch.path("image"), options);
    std::fs::read(scratch.path("image")).unwrap()
}

fn stored() -> Vec<u8> {
    image_of(small_tree(), &ImageOptions { block_size: Some(4096), ..ImageOptions::default() })
}

/// Where the field at a byte of the superblock points.
fn table(image: &[u8], field: usize) -> usize {
    u64::from_le_bytes(image[field..field + 8].try_into().unwrap()) as usize
}

const ROOT: usize = 32;
const ID_TABLE: usize = 48;
const INODES: usize = 64;
const DIRECTORIES: usize = 72;

fn reason(bytes: &[u8]) -> String {
    match open_bytes(bytes) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    }
}

/// Replaces the only place of `from` behind byte `start`.
fn replace(image: &mut [u8], start: usize, from: &[u8], to: &[u8]) {
    let places: Vec<usize> = (start..image.len() - from.len()).filter(|at| image[*at..].starts_with(from)).collect();
    assert_eq!(places.len(), 1, "{from:?}");
    image[places[0]..places[0] + to.len()].copy_from_slice(to);
}

#[test]
fn every_truncation_is_survived() {
    for options in [ImageOptions::default(), compressed(Algorithm::Zstd, None, 4096)] {
        let image = image_of(small_tree(), &options);
        let used = table(&image, 40);
        for length in (0..200).chain((200..used).step_by(97)).chain(used - 300..used) {
            assert!(open_bytes(&image[..length]).is_err(), "{length} bytes of {used}");
        }
        assert!(open_bytes(&image[..used]).is_ok());
    }
}

#[test]
fn every_changed_byte_is_survived() {
    let image = stored();
    let metadata = table(&image, INODES);
    let mut changed = image.clone();
    for at in (0..96).chain(metadata..table(&image, 40)) {
        for value in [0, 1, 0x7F, 0x80, 0xFF, !image[at], image[at].wrapping_add(1)] {
            changed[at] = value;
            read_all(&changed);
        }
        changed[at] = image[at];
    }
}

#[test]
fn every_changed_byte_of_a_compressed_image_is_survived() {
    for algorithm in [Algorithm::Gzip, Algorithm::Lz4, Algorithm::Xz, Algorithm::Zstd] {
        let image = image_of(small_tree(), &compressed(algorithm, None, 4096));
        let used = table(&image, 40);
        let mut changed = image.clone();
        for at in 96..used {
            changed[at] = !image[at];
            read_all(&changed);
            changed[at] = image[at];
        }
    }
}

#[test]
fn fields_of_the_superblock_at_their_extremes_are_survived() {
    let image = stored();
    for field in (0..96).step_by(2) {
        for value in [0u64, 1, u64::from(u32::MAX), 1 << 40, i64::MAX as u64, u64::MAX - 1, u64::MAX] {
            for width in [2, 4, 8].into_iter().filter(|width| field + width <= 96) {
                let mut changed = image.clone();
                changed[field..field + width].copy_from_slice(&value.to_le_bytes()[..width]);
                read_all(&changed);
            }
        }
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in [&b"../../etc"[..], b"dir/ctory", b"d\0rectory"] {
        let mut image = stored();
        let start = table(&image, DIRECTORIES);
        replace(&mut image, start, b"directory", name);
        assert!(reason(&image).contains("the name"), "{}", reason(&image));
    }
    let mut b = builder();
    b.add(b"ab", &file(0)).unwrap();
    let image = image_of(b.finish().unwrap(), &ImageOptions::default());
    let start = table(&image, DIRECTORIES);
    let mut changed = image.clone();
    replace(&mut changed, start, b"ab", b"..");
    assert!(reason(&changed).contains("the name"));
    // Two entries of one name: a file would be reached through another's.
    let mut image = stored();
    let start = table(&image, DIRECTORIES);
    replace(&mut image, start, b"link", b"file");
    assert!(reason(&image).contains("twice"), "{}", reason(&image));
}

/// The root's entry "directory" is made to lead to the root.
#[test]
fn a_directory_within_itself_is_refused() {
    let mut image = stored();
    let start = table(&image, DIRECTORIES);
    let root = u16::from_le_bytes([image[ROOT], image[ROOT + 1]]);
    let at = (start..image.len()).find(|at| image[*at..].starts_with(b"directory")).unwrap();
    image[at - 8..at - 6].copy_from_slice(&root.to_le_bytes());
    assert!(reason(&image).contains("within itself"), "{}", reason(&image));
}

#[test]
fn sizes_beyond_the_image_are_refused() {
    let image = stored();
    // The file's inode: its size follows its fragment and offset, which no other inode has.
    let start = table(&image, INODES);
    let size = 9000u64.to_le_bytes();
    for huge in [1 << 20, 1 << 40, i64::MAX as u64, u64::MAX] {
        let mut changed = image.clone();
        replace(&mut changed, start, &size, &u64::to_le_bytes(huge));
        assert!(reason(&changed).contains("\"file\"") || reason(&changed).contains("\"hard\""), "{}", reason(&changed));
    }
    // More owners than the table has.
    let mut changed = image.clone();
    changed[26..28].copy_from_slice(&u16::MAX.to_le_bytes());
    assert!(open_bytes(&changed).is_err());
    let mut changed = image.clone();
    let far = (table(&image, 40) as u64 + 5).to_le_bytes();
    changed[ID_TABLE..ID_TABLE + 8].copy_from_slice(&far);
    assert!(reason(&changed).contains("id table"));
}

/// Blocks that are not there are bounded too, but a few large files with holes are fine.
#[test]
fn a_terabyte_of_hole_opens() {
    let mut b = builder();
    let id = b.add(b"sparse", &file(1 << 40)).unwrap();
    b.set_sparse(id, &[inarch_tree::DataRange { offset: (1 << 39) + 77, length: 5 }]).unwrap();
    let tree = Arc::new(b.finish().unwrap());
    let content = Arc::new(Pattern::new(&tree));
    let scratch = Scratch::new();
    make(&tree, content.clone(), &scratch.path("image"), &compressed(Algorithm::Lz4, None, 128 << 10));
    let opened = try_open(&scratch.path("image")).unwrap();
    compare_opened(&tree, &*content, &opened);
    let mut bytes = [0; 100];
    read_content(&*opened.content, InodeId(1), 1 << 39, &mut bytes).unwrap();
    assert!(bytes[77..82].iter().any(|byte| *byte != 0) && bytes[..77] == [0; 77]);
}
