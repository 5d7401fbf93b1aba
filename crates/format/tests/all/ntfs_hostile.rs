//! Damaged and hostile volumes are refused, or read as far as they make sense: never a panic, never a loop without end.

use std::fs::{self, File};
use std::io::Write;
use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_format::{Damage, TreeAndContent};
use inarch_volume::{Item, Volume, VolumeError};

use crate::common::{Scratch, reader, rounds};
use crate::erofs::Bytes;
use crate::ntfs::*;
use crate::volumes_hostile::ask_for_everything;

/// A small volume with a directory of several levels, a compressed file, a file with a list of attributes, and links.
fn base() -> Option<Vec<u8>> {
    if !can_mount() {
        return None;
    }
    let scratch = Scratch::within("/tmp");
    let image = scratch.path("image");
    mkntfs(&image, 8, &["--cluster-size", "4096"]);
    let mounted = Mounted::writable(&image);
    let dir = &mounted.0;
    fs::create_dir(dir.join("dir")).unwrap();
    for i in 0..700 {
        fs::write(dir.join(format!("dir/a name of some length {i:03} {}", "n".repeat(60))), "").unwrap();
    }
    fs::write(dir.join("small"), "small").unwrap();
    fs::write(dir.join("plain"), noise(3, 50_000)).unwrap();
    fs::write(dir.join("file"), noise(1, 50_000)).unwrap();
    for i in 0..20 {
        fs::hard_link(dir.join("file"), dir.join(format!("hard {i:02} {}", "m".repeat(60)))).unwrap();
    }
    std::os::unix::fs::symlink("small", dir.join("link")).unwrap();
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.set_len(4 << 20).unwrap();
    drop(sparse);
    fs::create_dir(dir.join("packed")).unwrap();
    rustix::fs::lsetxattr(
        dir.join("packed"),
        "system.ntfs_attrib_be",
        &0x800u32.to_be_bytes(),
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    File::create(dir.join("packed/text")).unwrap().write_all(&noise(2, 150_000)).unwrap();
    drop(mounted);
    Some(fs::read(&image).unwrap())
}

fn open(image: &[u8], damage: Damage) -> Result<Arc<dyn Volume>, String> {
    let opened = reader("ntfs").open(Parsing::unconfined(), Arc::new(Bytes(image.to_vec())), damage);
    opened.map_err(|error| error.to_string())
}

fn walk(image: &[u8], damage: Damage) -> Result<TreeAndContent, String> {
    let walked = TreeAndContent::walk(Parsing::unconfined(), open(image, damage)?, damage);
    walked.map_err(|error| error.to_string())
}

/// Where the record of a name in the root is.
fn record_of(image: &[u8], name: &str) -> usize {
    let volume = open(image, Damage::Refused).unwrap();
    let node = volume.lookup(volume.root(), name.as_bytes()).unwrap().unwrap();
    record(image, volume.attributes(node).unwrap().inode)
}

fn error_of(image: &[u8], name: &str) -> String {
    let volume = open(image, Damage::Refused).unwrap();
    match volume.lookup(volume.root(), name.as_bytes()).map(|node| node.unwrap()) {
        Ok(node) => match volume.extents(node, 0, u64::MAX) {
            Ok(found) => panic!("{found:?}"),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_damage_is_survived() {
    let Some(image) = base() else { return };
    let whole = ask_for_everything(&*open(&image, Damage::Refused).unwrap(), image.len());
    assert!(whole > 700, "{whole}");
    let mft = record(&image, 0);
    let blocks: Vec<usize> = (0..image.len()).step_by(4096).filter(|at| image[*at..].starts_with(b"INDX")).collect();
    assert!(blocks.len() > 10);
    let records: Vec<usize> = (0..900).map(|number| mft + number * 1024).collect();
    let records: Vec<usize> = records.into_iter().filter(|at| image[*at..].starts_with(b"FILE")).collect();
    let special: Vec<usize> =
        ["dir", "small", "file", "link", "sparse", "packed"].iter().map(|name| record_of(&image, name)).collect();
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut opened, mut walked) = (0, 0);
    for round in 0..rounds(900) {
        let mut damaged = image.clone();
        for _ in 0..1 + round % 4 {
            let (start, length) = match random(8) {
                0 => (0, 90),
                1 => (record(&image, [0, 1, 2, 3, 5, 10][random(6)]), 420),
                2 => (blocks[random(blocks.len())], 4096),
                3 | 4 => (records[random(records.len())], 420),
                _ => (special[random(special.len())], 420),
            };
            let at = start + random(length);
            let value = [0, 1, 0x7F, 0x80, 0xFF, random(256) as u8][random(6)];
            damaged[at..at + 1 + random(4)].fill(value);
        }
        let damage = if round % 2 == 0 { Damage::Refused } else { Damage::Salvaged };
        if round % 25 == 0
            && let Ok(volume) = open(&damaged, damage)
        {
            opened += 1;
            ask_for_everything(&*volume, damaged.len());
        }
        if let Ok(found) = walk(&damaged, damage) {
            walked += 1;
            for (id, inode) in found.tree.inodes().take(40) {
                let at = inode.size().saturating_sub(5000);
                let _ = inarch_block::read_content(&*found.content, id, at, &mut [0; 6000]);
            }
        }
    }
    assert!(opened > rounds(900) / 60 && walked > rounds(900) / 5, "{opened} opened, {walked} walked");
}

#[test]
fn every_truncation_is_survived() {
    let Some(image) = base() else { return };
    for length in (0..600).chain((600..image.len()).step_by(65_537)) {
        assert!(open(&image[..length], Damage::Refused).is_err(), "{length}");
        if let Ok(volume) = open(&image[..length], Damage::Salvaged) {
            let _ = volume.list(volume.root(), 0, &mut |_| true);
        }
    }
}

#[test]
fn an_index_that_leads_in_a_circle_ends() {
    let Some(mut image) = base() else { return };
    // Every child of every block of an index becomes the first block.
    let mut changed = 0;
    for block in (0..image.len()).step_by(4096).filter(|at| image[*at..].starts_with(b"INDX")).collect::<Vec<_>>() {
        let mut at = block + 24 + number(&image, block + 24, 4) as usize;
        loop {
            let (length, flags) = (number(&image, at + 8, 2) as usize, image[at + 12]);
            if flags & 1 != 0 {
                image[at + length - 8..at + length].fill(0);
                changed += 1;
            }
            if flags & 2 != 0 {
                break;
            }
            at += length;
        }
    }
    assert!(changed > 0);
    let volume = open(&image, Damage::Refused).unwrap();
    let node = volume.lookup(volume.root(), b"dir").unwrap().unwrap();
    let mut names = Vec::new();
    volume
        .list(node, 0, &mut |item| {
            if let Item::Entry(entry) = item {
                names.push(entry.name.to_vec());
            }
            true
        })
        .unwrap();
    assert_eq!(names.len(), 700);
    let mut lost = 0;
    for name in &names {
        lost += u32::from(!matches!(volume.lookup(node, name), Ok(Some(_))));
    }
    assert!(lost > 0);
}

/// The block that is its own only child.
#[test]
fn an_index_block_that_is_its_own_child_is_an_error() {
    let Some(mut image) = base() else { return };
    let mut looped = 0;
    for block in (0..image.len()).step_by(4096).filter(|at| image[*at..].starts_with(b"INDX")).collect::<Vec<_>>() {
        // The first entry becomes one with a child, its own block: the tree has no end on its left side.
        let at = block + 24 + number(&image, block + 24, 4) as usize;
        let length = number(&image, at + 8, 2) as usize;
        if image[at + 12] & 2 != 0 || length < 100 {
            continue;
        }
        image[at + 12] |= 1;
        let vcn = number(&image, block + 16, 8);
        image[at + length - 8..at + length].copy_from_slice(&vcn.to_le_bytes());
        looped += 1;
    }
    assert!(looped > 10);
    let volume = open(&image, Damage::Refused).unwrap();
    let node = volume.lookup(volume.root(), b"dir").unwrap().unwrap();
    // Sorts before all.
    let error = volume.lookup(node, b"  ").unwrap_err();
    assert!(error.to_string().contains("in a circle"), "{error}");
}

#[test]
fn an_mft_that_extends_itself_is_refused() {
    let Some(mut image) = base() else { return };
    let mft = record(&image, 0);
    let (name, data) = (attribute(&image, mft, 0x30), attribute(&image, mft, 0x80));
    let end = number(&image, data + 24, 8) + 1;
    let instance = number(&image, data + 14, 2) as u16;
    let value = name + number(&image, name + 20, 2) as usize;
    // Its name becomes a list of attributes: the content goes on in the same record, and in one that is not there yet.
    for reference in [1u64 << 48, 1 << 48 | 0xFFFF_FFFF, 1 << 48 | 40] {
        let mut entry = vec![0; 32];
        entry[..4].copy_from_slice(&0x80u32.to_le_bytes());
        entry[4] = 32;
        entry[7] = 26;
        let first = entry.clone();
        entry[8..16].copy_from_slice(&end.to_le_bytes());
        entry[16..24].copy_from_slice(&reference.to_le_bytes());
        entry[24..26].copy_from_slice(&instance.to_le_bytes());
        let list = [first, entry].concat();
        image[name..name + 4].copy_from_slice(&0x20u32.to_le_bytes());
        image[name + 16..name + 20].copy_from_slice(&64u32.to_le_bytes());
        image[value..value + 64].copy_from_slice(&list);
        let error = open(&image, Damage::Refused).err().unwrap();
        assert!(error.contains("MFT"), "{error}");
    }
}

#[test]
fn runs_beyond_the_volume_are_an_error_of_that_file() {
    let Some(image) = base() else { return };
    let data = attribute(&image, record_of(&image, "plain"), 0x80);
    let pairs = data + number(&image, data + 32, 2) as usize;
    for bytes in [
        &[0x88, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF][..], // a count and a place of 8 bytes
        &[0x21, 0x7F, 0xFF, 0x7F, 0],                          // behind the volume
        &[0x11, 0x7F, 0xFF, 0],                                // before it
        &[0x01, 0x00, 0],                                      // of no cluster
        &[0],                                                  // none
    ] {
        let mut image = image.clone();
        image[pairs..pairs + bytes.len()].copy_from_slice(bytes);
        let error = error_of(&image, "plain");
        assert!(error.contains("run"), "{error}");
        let volume = open(&image, Damage::Refused).unwrap();
        let other = volume.lookup(volume.root(), b"small").unwrap().unwrap();
        assert_eq!(volume.attributes(other).unwrap().size, 5);
    }
}

#[test]
fn fixups_out_of_range_are_an_error_of_that_file() {
    let Some(image) = base() else { return };
    let record = record_of(&image, "small");
    for (at, value) in [(4, 0x3FEu16), (4, 0x1FD), (4, 0xFFFF), (6, 0), (6, 1), (6, 4), (6, 0xFFFF), (510, 0xABCD)] {
        let mut image = image.clone();
        image[record + at..record + at + 2].copy_from_slice(&value.to_le_bytes());
        let error = error_of(&image, "small");
        assert!(error.contains("fixups") || error.contains("only in part"), "{error}");
        let walked = walk(&image, Damage::Salvaged).unwrap();
        assert!(walked.tree.lookup(b"small").is_none() && walked.tree.lookup(b"link").is_some());
        assert!(walk(&image, Damage::Refused).err().unwrap().contains("small"));
    }
}

#[test]
fn lists_of_attributes_that_lead_elsewhere_are_an_error_of_that_file() {
    let Some(image) = base() else { return };
    let record = record_of(&image, "file");
    let list = attribute(&image, record, 0x20);
    let is_mapped = image[list + 8] != 0;
    let value = match is_mapped {
        false => list + number(&image, list + 20, 2) as usize,
        true => {
            let pairs = list + number(&image, list + 32, 2) as usize;
            let (count, places) = (usize::from(image[pairs] & 15), usize::from(image[pairs] >> 4));
            number(&image, pairs + 1 + count, places) as usize * 4096
        }
    };
    let own = number(&image, record + 44, 4) | number(&image, record + 16, 2) << 48;
    let other = number(&image, record_of(&image, "small") + 44, 4) | 1 << 48;
    for reference in [own, other, u64::MAX, 0, 5 | 5 << 48] {
        let mut image = image.clone();
        // Every part of it that is in another record.
        let mut at = value;
        while matches!(number(&image, at, 4), 0x10..=0x100) {
            let length = number(&image, at + 4, 2) as usize;
            if number(&image, at + 16, 8) != own {
                image[at + 16..at + 24].copy_from_slice(&reference.to_le_bytes());
            }
            at += length;
        }
        let volume = open(&image, Damage::Refused).unwrap();
        let node = volume.lookup(volume.root(), b"file").unwrap().unwrap();
        assert!(matches!(volume.attributes(node), Err(VolumeError::Damaged(_))), "{reference:#x}");
        assert!(walk(&image, Damage::Refused).is_err());
        assert!(walk(&image, Damage::Salvaged).unwrap().tree.lookup(b"small").is_some());
    }
    // An entry without length, and one that is longer than the list.
    for length in [0u16, 8, 0xFFF8] {
        let mut image = image.clone();
        image[value + 4..value + 6].copy_from_slice(&length.to_le_bytes());
        assert!(error_of(&image, "file").contains("list of attributes"), "{length}");
    }
}
