//! Damaged and misleading FATs, exFATs and discs: what is wrong is named, nothing is read without end, and nothing panics.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use inarch_block::read_content;
use inarch_confine::Parsing;
use inarch_format::{Damage, ReadError, TreeAndContent, fat};
use inarch_tree::{FileType, InodeId};

use crate::common::{Scratch, reader};
use crate::erofs::Bytes;
use crate::exfat_reads::made;
use crate::ext4_read::made::run;
use crate::iso9660::{DIRECTORY, Disc, ROOT, SECTOR, continued, field, name, posix, record};
use crate::volumes_hostile::ask_for_everything;

/// A FAT16 with clusters of 512 bytes, with the entries of its root and its table as given.
fn fat16(root: &[Vec<u8>], table: &[(usize, u16)]) -> Vec<u8> {
    const ROOT_AT: usize = (1 + 64) * 512;
    let mut image = vec![0; (1 + 64 + 32 + 8000) * 512];
    image[11..13].copy_from_slice(&512u16.to_le_bytes());
    (image[13], image[14], image[16], image[21]) = (1, 1, 1, 0xF8);
    image[17..19].copy_from_slice(&512u16.to_le_bytes());
    image[19..21].copy_from_slice(&(8097u16).to_le_bytes());
    image[22..24].copy_from_slice(&64u16.to_le_bytes());
    image[510..512].copy_from_slice(&[0x55, 0xAA]);
    for (number, entry) in root.iter().enumerate() {
        image[ROOT_AT + 32 * number..][..32].copy_from_slice(entry);
    }
    for (cluster, next) in table {
        image[512 + 2 * cluster..][..2].copy_from_slice(&next.to_le_bytes());
    }
    image
}

/// The first byte of a cluster.
fn cluster(number: usize) -> usize {
    (1 + 64 + 32 + number - 2) * 512
}

fn entry(name: &[u8; 11], attributes: u8, first: u16, size: u32) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    bytes[..11].copy_from_slice(name);
    bytes[11] = attributes;
    bytes[26..28].copy_from_slice(&first.to_le_bytes());
    bytes[28..32].copy_from_slice(&size.to_le_bytes());
    bytes
}

fn walk(image: Vec<u8>, damage: Damage) -> Result<TreeAndContent, ReadError> {
    let volume = fat::open_volume(Parsing::unconfined(), Arc::new(Bytes(image)), damage)?;
    TreeAndContent::walk(Parsing::unconfined(), volume, damage)
}

/// Fails unless the image is refused for that reason, and gives what is salvaged.
fn damaged(walk: impl Fn(Damage) -> Result<TreeAndContent, ReadError>, reason: &str) -> Vec<Vec<u8>> {
    let error = walk(Damage::Refused).err().expect(reason).to_string();
    assert!(error.contains(reason), "{error}");
    let opened = walk(Damage::Salvaged).unwrap();
    assert!(opened.notes.iter().any(|note| note.contains(reason)), "{:?}", opened.notes);
    opened.tree.inodes().skip(1).map(|(id, _)| opened.tree.path(id)).collect()
}

#[test]
fn chains_that_return_or_lead_away_are_damage() {
    let good = entry(b"GOOD       ", 0, 9, 10);
    for (name, table, reason) in [
        ("cycle", &[(3, 4), (4, 5), (5, 3)][..], "returns to itself after 3 clusters"),
        ("lead", &[(3, 4), (4, 5), (5, 4)], "returns to itself after 3 clusters"),
        ("self", &[(3, 3)], "returns to itself after 1 clusters"),
        ("short", &[(3, 0xFFFF)], "has 1 clusters where its size takes 6"),
        ("free", &[(3, 4)], "has cluster 4, which the table says is free"),
        ("bad", &[(3, 0xFFF7)], "has a bad cluster after cluster 3"),
        ("far", &[(3, 9000)], "has cluster 9000, which is not in the volume"),
    ] {
        let table = [table, &[(9, 0xFFFF)]].concat();
        let image = fat16(&[entry(b"FILE       ", 0, 3, 3000), good.clone()], &table);
        let found = damaged(|damage| walk(image.clone(), damage), reason);
        assert_eq!(found, [b"FILE".to_vec(), b"GOOD".to_vec()], "{name}");
        // What there is of it is read.
        let opened = walk(image, Damage::Salvaged).unwrap();
        let file = opened.tree.find(InodeId::ROOT, b"FILE").unwrap();
        assert!(read_content(&*opened.content, file, 0, &mut [0; 512]).is_ok(), "{name}");
        assert!(read_content(&*opened.content, file, 2500, &mut [0; 100]).is_err(), "{name}");
    }
}

#[test]
fn directories_within_themselves_are_left_out() {
    let mut image = fat16(&[entry(b"DIR        ", 0x10, 3, 0)], &[(3, 0xFFFF)]);
    let at = cluster(3);
    image[at..at + 32].copy_from_slice(&entry(b"LOOP       ", 0x10, 3, 0));
    let found = damaged(|damage| walk(image.clone(), damage), "is a directory that has a name already");
    assert_eq!(found, [b"DIR".to_vec(), b"DIR/LOOP".to_vec()]);
    // A chain of clusters that returns, of a directory.
    let image = fat16(&[entry(b"DIR        ", 0x10, 3, 0)], &[(3, 4), (4, 3)]);
    let mut image = image;
    for cluster_number in [3, 4] {
        for number in 0..16 {
            let name = format!("F{cluster_number}{number:02}       ");
            let at = cluster(cluster_number) + number * 32;
            image[at..at + 32].copy_from_slice(&entry(name.as_bytes().first_chunk().unwrap(), 0, 0, 0));
        }
    }
    assert_eq!(damaged(|damage| walk(image.clone(), damage), "returns to itself after 2 clusters").len(), 33);
}

#[test]
fn many_directories_of_the_same_clusters_end() {
    // A directory of 2000 clusters, and 500 names for it.
    let table: Vec<_> =
        (3..2003).map(|number| (number, if number == 2002 { 0xFFFF } else { number as u16 + 1 })).collect();
    let root: Vec<_> = (0..500)
        .map(|number| entry(format!("D{number:03}       ").as_bytes().first_chunk().unwrap(), 0x10, 3, 0))
        .collect();
    let mut image = fat16(&root, &table);
    for number in 0..2000 * 16 {
        let at = cluster(3) + number * 32;
        image[at..at + 32].copy_from_slice(&entry(
            format!("F{number:07}   ").as_bytes().first_chunk().unwrap(),
            0,
            0,
            0,
        ));
    }
    let found = damaged(|damage| walk(image.clone(), damage), "they share them");
    assert!(found.len() < 100_000, "{}", found.len());
}

#[test]
fn two_names_alike_and_names_that_are_none() {
    let root = [
        entry(b"SAME       ", 0, 0, 0),
        entry(b"SAME       ", 0, 0, 0),
        entry(b"A/B     C D", 0, 0, 0),
        entry(b"..      A  ", 0, 0, 0),
    ];
    let found = damaged(|damage| walk(fat16(&root, &[]), damage), "has 1 names twice");
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().any(|name| name.starts_with("A\u{FFFD}B.C D~".as_bytes())), "{found:?}");
    // Parts of a long name that belong to another file: the short name is shown.
    let mut part = entry(b"\x41l\0o\0n\0g\0\0\0", 0x0F, 0, 0);
    part[13] = 0x77;
    let opened = walk(fat16(&[part, entry(b"SHORT   TXT", 0, 0, 0)], &[]), Damage::Refused).unwrap();
    assert!(opened.tree.find(InodeId::ROOT, b"SHORT.TXT").is_some());
}

#[test]
fn a_root_of_the_whole_volume_is_read() {
    // FAT32 with a root of all clusters, each full of names.
    let scratch = Scratch::new();
    let path = scratch.path("image");
    fs::File::create(&path).unwrap().set_len(34 << 20).unwrap();
    run(Command::new("mkfs.fat").args(["-F", "32", "-s", "1", "-f", "1"]).arg(&path));
    let mut image = fs::read(&path).unwrap();
    let number = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize;
    let (reserved, length) = (usize::from(image[14]), number(36));
    let heap = (reserved + length) * 512;
    let clusters = (image.len() - heap) / 512;
    for index in 2..clusters + 2 {
        let next = if index == clusters + 1 { 0x0FFF_FFFF } else { index as u32 + 1 };
        image[reserved * 512 + index * 4..][..4].copy_from_slice(&next.to_le_bytes());
    }
    for index in 0..clusters * 16 {
        let name = format!("N{index:07}   ");
        image[heap + index * 32..][..32].copy_from_slice(&entry(name.as_bytes().first_chunk().unwrap(), 0, 0, 0));
    }
    let opened = walk(image, Damage::Refused).unwrap();
    assert_eq!(opened.tree.inode_count() as usize, 1 + clusters * 16);
}

#[test]
fn rock_ridge_that_misleads_is_named() {
    let file = |system: &[Vec<u8>]| record(b"A.;1", 0, 30, 10, &system.concat());
    let cases: [(&str, Vec<u8>, Vec<u8>); 4] = [
        // A continuation area that continues in itself.
        ("continuation areas", file(&[posix(0o100_644), continued(50, 0, 28)]), continued(50, 0, 28)),
        ("beyond the image's end", file(&[posix(0o100_644), continued(5000, 0, 28)]), Vec::new()),
        (
            "a symlink whose target",
            file(&[posix(0o120_777), name(b"link"), field(b"SL", &[0, 0, 200, b'x'])]),
            Vec::new(),
        ),
        ("and is no directory", file(&[posix(0o040_755), name(b"dir")]), Vec::new()),
    ];
    for (reason, record_of_file, area) in cases {
        let mut disc = Disc::new(true);
        disc.put(&record_of_file);
        disc.put(&record(b"B.;1", 0, 30, 10, &[posix(0o100_644), name(b"good")].concat()));
        disc.fill(50, &area);
        assert_eq!(damaged(|damage| disc.walk(damage), reason), [b"good"]);
    }
    // A target that is put together from more than it can have.
    let mut disc = Disc::new(true);
    let mut area = Vec::new();
    for _ in 0..40 {
        area.extend(field(b"SL", &[&[1, 1, 240][..], &[b'x'; 240]].concat()));
    }
    for (number, part) in area.chunks(SECTOR).enumerate() {
        disc.fill(50 + number as u32, part);
    }
    disc.put(&record(b"A.;1", 0, 0, 0, &[posix(0o120_777), continued(50, 0, area.len() as u32)].concat()));
    assert!(damaged(|damage| disc.walk(damage), "a symlink whose target").is_empty());
}

#[test]
fn directories_of_a_disc_that_lead_back_are_left_out() {
    let mut disc = Disc::new(true);
    disc.put(&record(b"SUB", DIRECTORY, 25, SECTOR as u32, &[posix(0o040_755), name(b"sub")].concat()));
    disc.put(&record(
        b"C.;1",
        0,
        0,
        0,
        &[posix(0o040_755), name(b"moved"), field(b"CL", &[25, 0, 0, 0, 0, 0, 0, 25])].concat(),
    ));
    disc.directory(25, ROOT, b"");
    disc.put(&record(b"UP", DIRECTORY, ROOT, SECTOR as u32, &[posix(0o040_755), name(b"up")].concat()));
    disc.put(&record(b"SAME", DIRECTORY, 25, SECTOR as u32, &[posix(0o040_755), name(b"same")].concat()));
    disc.put(&record(b"F1", 0, 30, 3, &name(b"twice")));
    disc.put(&record(b"F2", 0, 31, 3, &name(b"twice")));
    let found = damaged(|damage| disc.walk(damage), "is a directory that has a name already");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().any(|name| name.ends_with(b"/twice")), "{found:?}");
}

#[test]
fn random_damage_is_survived() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir_all(source.join("a/b")).unwrap();
    for number in 0..40 {
        fs::write(source.join(format!("a/a name of some length {number:03}")), vec![1; number * 40]).unwrap();
    }
    fs::write(source.join("a/b/file"), b"content").unwrap();
    std::os::unix::fs::symlink("a/b", source.join("link")).unwrap();
    let iso = |options: &[&str]| {
        let path = scratch.path("iso");
        let mut command = Command::new("timeout");
        run(command.args(["60", "genisoimage", "-quiet"]).args(options).arg("-o").arg(&path).arg(&source));
        fs::read(path).unwrap()
    };
    let fat = |bits: &str, megabytes: u64| {
        let path = scratch.path(bits);
        fs::File::create(&path).unwrap().set_len(megabytes << 20).unwrap();
        run(Command::new("mkfs.fat").args(["-F", bits, "-s", "1"]).arg(&path));
        run(Command::new("mcopy")
            .arg("-i")
            .arg(&path)
            .args(["-s", "-Q"])
            .arg(source.join("a"))
            .arg("::/")
            .env("MTOOLS_SKIP_CHECK", "1"));
        fs::read(path).unwrap()
    };
    let images = [
        ("vfat", fat("12", 1), 200),
        ("vfat", fat("16", 4), 100),
        ("vfat", fat("32", 34), 20),
        ("exfat", made().image, 200),
        ("iso9660", iso(&["-R"]), 400),
        ("iso9660", iso(&["-J"]), 200),
        ("iso9660", iso(&[]), 200),
    ];
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for (format, image, rounds) in images {
        let reader = reader(format);
        // The bytes that are not zero are worth a change.
        let used: Vec<_> = (0..image.len()).filter(|at| image[*at] != 0).collect();
        let mut opened = 0;
        for round in 0..rounds {
            let mut damaged = image.clone();
            for _ in 0..1 + round % 6 {
                let at = used[random(used.len())];
                let value = [0, 1, 2, 0x7F, 0xFF, random(256) as u8][random(6)];
                let end = (at + 1 + random(6)).min(damaged.len());
                damaged[at..end].fill(value);
            }
            for damage in [Damage::Refused, Damage::Salvaged] {
                let open = || reader.open(Parsing::unconfined(), Arc::new(Bytes(damaged.clone())), damage);
                let Ok(volume) = open() else { continue };
                opened += 1;
                ask_for_everything(&*volume, damaged.len());
                let Ok(walked) = TreeAndContent::walk(Parsing::unconfined(), volume, damage) else { continue };
                for (id, inode) in walked.tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular) {
                    for offset in [0, inode.size() / 2, inode.size().saturating_sub(100)] {
                        let _ =
                            read_content(&*walked.content, id, offset, &mut [0; 300][..300.min(inode.size() as usize)]);
                    }
                }
            }
        }
        assert!(opened > rounds / 2, "{format}: {opened}");
    }
}
