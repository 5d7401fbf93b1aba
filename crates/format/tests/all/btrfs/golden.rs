//! What this reader finds in images of known bytes, and what btrfs-progs say of the same.

use std::collections::HashMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;

use inarch_block::read_content;
use inarch_confine::Parsing;
use inarch_format::btrfs::{ReadOptions, open, open_volume};
use inarch_format::{Damage, ReadError, readers};
use inarch_tree::FileType;
use inarch_volume::Node;

use super::build::{Made, SUPERBLOCK, sample, text};
use crate::common::Scratch;
use crate::common::compare::{Facts, assert_facts, facts_of_tree};
use crate::erofs::Bytes;
use crate::ext4_read::made::run;

/// [`text`] of 128 KiB, compressed.
pub(super) fn packed() -> Vec<(u8, Vec<u8>)> {
    let text = text(128 << 10);
    let mut zlib = flate2::Compress::new(flate2::Compression::default(), true);
    let mut deflated = Vec::with_capacity(1 << 17);
    zlib.compress_vec(&text, &mut deflated, flate2::FlushCompress::Finish).unwrap();
    vec![(1, deflated), (3, zstd::bulk::compress(&text, 3).unwrap())]
}

pub(super) fn image() -> Made {
    sample(&packed())
}

#[test]
fn everything_of_a_small_image_is_found() {
    let bytes = Arc::new(Bytes(image().image));
    let opened = open(Parsing::unconfined(), bytes.clone(), &ReadOptions::default()).unwrap();
    let tree = &opened.tree;
    let content = |path: &str| {
        let id = tree.lookup(path.as_bytes()).unwrap();
        let mut bytes = vec![0; tree.inode(id).size() as usize];
        read_content(&*opened.content, id, 0, &mut bytes).unwrap();
        bytes
    };
    assert_eq!(content("a"), b"bytes");
    assert_eq!(content("below/inner"), b"inner");
    for path in ["regular", "snapshot/regular"] {
        assert!(content(path) == text(10_000));
    }
    for path in ["packed 1", "packed 3", "snapshot/packed 3"] {
        assert!(content(path) == text(128 << 10), "{path}");
    }
    let mut sparse = vec![0; 400_000];
    sparse[8192..12_288].copy_from_slice(&text(8192)[4096..]);
    assert!(content("sparse") == sparse);
    let node = |path: &str| tree.inode(tree.lookup(path.as_bytes()).unwrap());
    assert_eq!(tree.symlink_target(tree.lookup(b"link").unwrap()), b"regular");
    assert_eq!(node("null").device(), (1, 3));
    assert_eq!(tree.entries(tree.lookup(b"dir").unwrap()).len(), 300);
    assert_eq!(tree.xattrs(node("regular").xattrs()).len(), 2);
    for missing in ["snapshot/below", "snapshot/snapshot"] {
        assert_eq!((node(missing).file_type(), node(missing).mode()), (FileType::Directory, 0o040_755));
        assert_eq!(tree.entries(tree.lookup(missing.as_bytes()).unwrap()).len(), 0);
    }
    // Inode 257 of three subvolumes is three inodes.
    let volume = open_volume(Parsing::unconfined(), bytes, Damage::Refused).unwrap();
    let find = |path: &str| {
        let step = |node: Node, name: &str| volume.lookup(node, name.as_bytes()).unwrap().unwrap();
        volume.attributes(path.split('/').fold(volume.root(), step)).unwrap().inode
    };
    assert_eq!([find("a"), find("below/inner"), find("snapshot/a")], [257, 256 << 40 | 257, 257 << 40 | 257]);
    let below = volume.lookup(volume.root(), b"below").unwrap().unwrap();
    assert_eq!(volume.parent(below).unwrap(), Some(volume.root()));
}

/// The image that is made here is one to btrfs-progs, too.
#[test]
fn btrfs_progs_find_the_same_in_a_small_image() {
    let scratch = Scratch::new();
    let path = scratch.path("image");
    fs::write(&path, image().image).unwrap();
    let dump = |arguments: &[&str]| {
        let output = Command::new("btrfs").args(["inspect-internal"]).args(arguments).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(dump(&["dump-super"]).contains("[match]"));
    let tree = dump(&["dump-tree", "-t", "5"]);
    for text in [
        "name: regular",
        "inline extent data size 5",
        "extent compression 3 (zstd)",
        "(256 ROOT_ITEM 18446744073709551615)",
    ] {
        assert!(tree.contains(text), "{text}: {tree}");
    }
}

/// An image of `mkfs.btrfs` with a directory's files, and two copies of its metadata.
fn of_mkfs(scratch: &Scratch) -> std::path::PathBuf {
    let (source, image) = (scratch.path("source"), scratch.path("image"));
    fs::create_dir(&source).unwrap();
    for number in 0..300 {
        fs::write(source.join(format!("{number}")), text(number * 20)).unwrap();
    }
    fs::File::create(&image).unwrap().set_len(120 << 20).unwrap();
    run(Command::new("mkfs.btrfs").args(["-q", "-m", "dup", "-r"]).args([&source, &image]));
    image
}

fn facts(image: &[u8], damage: Damage) -> Result<(Facts, Vec<String>), ReadError> {
    let options = ReadOptions { damage, ..ReadOptions::default() };
    let opened = open(Parsing::unconfined(), Arc::new(Bytes(image.to_vec())), &options)?;
    Ok((facts_of_tree(&opened), opened.notes))
}

#[test]
fn damage_to_one_of_two_copies_costs_nothing() {
    let scratch = Scratch::new();
    let mut image = fs::read(of_mkfs(&scratch)).unwrap();
    let (whole, _) = facts(&image, Damage::Refused).unwrap();
    assert_eq!(whole.len(), 301);
    let uuid = image[SUPERBLOCK + 32..SUPERBLOCK + 48].to_vec();
    // Blocks of trees with the same logical address are copies of one.
    let mut copies = HashMap::<Vec<u8>, Vec<usize>>::new();
    for at in (128 << 10..image.len()).step_by(16 << 10).filter(|at| image[at + 32..at + 48] == uuid) {
        copies.entry(image[at + 48..at + 56].to_vec()).or_default().push(at);
    }
    let twice: Vec<_> = copies.into_values().filter(|places| places.len() == 2).collect();
    assert!(twice.len() > 5);
    for (number, places) in twice.iter().enumerate() {
        image[places[number % 2] + 5000] ^= 1;
    }
    assert_facts(&facts(&image, Damage::Refused).unwrap().0, &whole);
    for places in &twice {
        places.iter().for_each(|at| image[at + 6000] ^= 1);
    }
    assert!(facts(&image, Damage::Refused).err().unwrap().to_string().contains("has a wrong checksum"));
}

#[test]
fn a_damaged_superblock_is_refused_or_another_one_salvaged() {
    let scratch = Scratch::new();
    let mut image = fs::read(of_mkfs(&scratch)).unwrap();
    let (whole, _) = facts(&image, Damage::Refused).unwrap();
    image[SUPERBLOCK + 80] ^= 1;
    let error = facts(&image, Damage::Refused).err().unwrap().to_string();
    assert!(error.contains("the superblock at byte 65536 has a wrong checksum; --salvage"), "{error}");
    let (salvaged, notes) = facts(&image, Damage::Salvaged).unwrap();
    assert_facts(&salvaged, &whole);
    assert!(notes.iter().any(|note| note.contains("its copy at byte 67108864 is used")), "{notes:?}");
    image[(64 << 20) + 80] ^= 1;
    assert!(facts(&image, Damage::Salvaged).err().unwrap().to_string().contains("no sound copy"));
}

#[test]
fn a_changed_uuid_is_not_that_of_its_blocks() {
    let scratch = Scratch::new();
    let path = of_mkfs(&scratch);
    let (whole, _) = facts(&fs::read(&path).unwrap(), Damage::Refused).unwrap();
    run(Command::new("btrfstune").arg("-m").arg(&path));
    assert_facts(&facts(&fs::read(&path).unwrap(), Damage::Refused).unwrap().0, &whole);
}

#[test]
fn it_is_recognised_by_its_magic_number() {
    let image = Bytes(image().image);
    let found = readers().iter().filter(|reader| {
        let likeness = reader.probe(Parsing::unconfined(), &image).unwrap();
        format!("{likeness:?}") == "Sure"
    });
    assert_eq!(found.map(|reader| reader.name).collect::<Vec<_>>(), ["btrfs"]);
}
