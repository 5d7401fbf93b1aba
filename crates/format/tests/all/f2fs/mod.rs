//! F2FS: images that are hostile or odd.

mod build;

use std::sync::Arc;

use build::{BLOCK, MAIN, PLACES, sample, seal};
use inarch_block::read_content;
use inarch_confine::Parsing;
use inarch_format::{Damage, ReadError, TreeAndContent, f2fs};
use inarch_volume::{Node, Volume};

use crate::erofs::Bytes;

fn open(image: Vec<u8>, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    f2fs::open_volume(Parsing::unconfined(), Arc::new(Bytes(image)), damage)
}

fn walk(image: Vec<u8>, damage: Damage) -> Result<TreeAndContent, ReadError> {
    TreeAndContent::walk(Parsing::unconfined(), open(image, damage)?, damage)
}

/// What an image has: paths, sizes, and the first bytes of content.
fn seen(opened: &TreeAndContent) -> Vec<(String, u64, Vec<u8>)> {
    let mut all: Vec<_> = opened
        .tree
        .inodes()
        .map(|(id, inode)| {
            let mut bytes = vec![0; inode.size().min(7) as usize];
            let _ = read_content(&*opened.content, id, 0, &mut bytes);
            (String::from_utf8_lossy(&opened.tree.path(id)).into_owned(), inode.size(), bytes)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_small_one_is_read() {
    let opened = walk(sample(), Damage::Refused).unwrap();
    let all = seen(&opened);
    let names: Vec<_> = all.iter().map(|(name, size, _)| (&**name, *size)).collect();
    assert_eq!(names, [("", 0), ("a file of some length", 900 * 4096), ("directory", 0), ("link", 0)]);
    assert_eq!(all[1].2, b"content");
    let file = opened.tree.lookup(b"directory/again").unwrap();
    assert_eq!(opened.tree.lookup(b"a file of some length"), Some(file), "it is a hard link");
    let mut bytes = [0; 9];
    // The inode has 873 addresses, and the fourth of the node below it is there.
    read_content(&*opened.content, file, 876 * 4096 - 2, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0\0content");
    let xattrs: Vec<_> = opened
        .tree
        .xattrs(opened.tree.inode(file).xattrs())
        .iter()
        .map(|xattr| (xattr.name.to_vec(), xattr.value.to_vec()))
        .collect();
    assert_eq!(xattrs, [(b"user.note".to_vec(), b"hello".to_vec())]);
    let volume = open(sample(), Damage::Refused).unwrap();
    let directory = volume.lookup(volume.root(), b"directory").unwrap().unwrap();
    assert_eq!((volume.parent(directory).unwrap(), directory), (Some(volume.root()), Node(5)));
}

#[test]
fn nodes_are_where_they_say() {
    let with = |at: usize, number: u32| {
        let mut image = sample();
        image[at..at + 4].copy_from_slice(&number.to_le_bytes());
        // So many blocks that all nodes below the inode are asked.
        let size = (MAIN + 1) * BLOCK + 16;
        image[size..size + 4].copy_from_slice(&(4000u32 << 12).to_le_bytes());
        walk(image, Damage::Refused).err().expect("it is damaged").to_string()
    };
    let (file, node) = ((MAIN + 1) * BLOCK, (MAIN + 4) * BLOCK);
    // The same node twice: it has one place alone.
    for (at, number, reason) in [
        (file + 4056, 7, "node 7 is not at block"),
        (file + 4060, 7, "node 7 is not at block"),
        (file + 4052, 6, "node 6 is not at block"),
        (file + 4052, 99, "node 99 does not exist"),
        (file + 360, 5, "has its block 0 at 5, where none can be"),
        (node + 40, u32::MAX - 1, "is compressed"),
        (file, 0o170_000, "no type"),
        ((MAIN + 3) * BLOCK + 16, 4095, "more than fit there"),
    ] {
        let said = if reason == "is compressed" {
            let mut image = sample();
            image[at..at + 4].copy_from_slice(&number.to_le_bytes());
            walk(image, Damage::Refused).map_or_else(|error| error.to_string(), |opened| opened.notes.join(" "))
        } else {
            with(at, number)
        };
        assert!(said.contains(reason), "{reason}: {said}");
    }
}

#[test]
fn any_damage_is_survived() {
    let sound = sample();
    for block in PLACES {
        for at in (0..BLOCK).filter(|at| *at < 400 || *at > 3800 || at % 97 == 0) {
            let mut image = sound.clone();
            image[block * BLOCK + at] ^= 1 << (at % 8);
            seal(&mut image);
            if let Ok(opened) = walk(image, Damage::Salvaged) {
                seen(&opened);
            }
        }
    }
    for blocks in (0..sound.len() / BLOCK).step_by(7) {
        if let Ok(opened) = walk(sound[..blocks * BLOCK + 100].to_vec(), Damage::Salvaged) {
            seen(&opened);
        }
    }
}
