//! Images that lie: damaged anywhere, cut off anywhere, looping, overlapping, larger than they are. None may panic,
//! hang, or take memory out of proportion; most are refused with a reason.

use std::process::Command;
use std::sync::Arc;

use crate::common::odd::xattr;
use crate::common::*;
use crate::erofs::{Bytes, Pattern, make};
use inarch_block::read_content;
use inarch_confine::Parsing;
use inarch_format::erofs::open;
use inarch_format::{ReadError, TreeAndContent};
use inarch_tree::{Attributes, DataRange, InodeId, Tree};

fn try_open(image: Vec<u8>) -> Result<TreeAndContent, ReadError> {
    open(Parsing::unconfined(), Arc::new(Bytes(image)))
}

/// Why an image is refused.
fn refusal(image: Vec<u8>) -> String {
    match try_open(image) {
        Ok(_) => panic!("the image was opened"),
        Err(error) => error.to_string(),
    }
}

/// Opens an image and reads a little of each file.
fn exercise(image: Vec<u8>) {
    let Ok(opened) = try_open(image) else { return };
    let mut buffer = vec![0; 300];
    for (id, inode) in opened.tree.inodes() {
        for offset in [0, inode.size() / 2, inode.size().saturating_sub(100)] {
            let _ = read_content(&*opened.content, id, offset, &mut buffer);
        }
    }
}

/// Whether an image opens and all of its files can be read.
fn is_sound(image: Vec<u8>) -> bool {
    let Ok(opened) = try_open(image) else { return false };
    let mut files = opened.tree.inodes();
    files.all(|(id, inode)| read_content(&*opened.content, id, 0, &mut vec![0; inode.size() as usize]).is_ok())
}

/// A small tree with each kind of metadata.
fn small_tree() -> Tree {
    let mut b = builder();
    let set = b.intern_xattrs(vec![xattr("user.shared", &[1; 40]), xattr("trusted.own", b"2")]);
    let other = b.intern_xattrs(vec![xattr("user.shared", &[1; 40])]);
    b.add(b"a", &Attributes { xattrs: set, ..file(5000) }).unwrap();
    let dir = b.add(b"dir", &Attributes { xattrs: other, ..directory() }).unwrap();
    let link = b.add(b"link", &attributes(0o120777)).unwrap();
    b.set_target(link, b"a").unwrap();
    let long = b.add(b"link-long", &attributes(0o120777)).unwrap();
    b.set_target(long, &[b'x'; 4000]).unwrap();
    let sparse = b.add(b"sparse", &Attributes { xattrs: other, ..file(40_000) }).unwrap();
    b.set_sparse(sparse, &[DataRange { offset: 9000, length: 10_000 }]).unwrap();
    b.add(b"zero", &Attributes { device: (1, 5), ..attributes(0o020666) }).unwrap();
    b.list(dir).unwrap();
    for i in 0..150 {
        b.add(format!("a name of some length {i:03}").as_bytes(), &file(0)).unwrap();
    }
    b.finish().unwrap()
}

fn plain_image() -> Vec<u8> {
    let tree = Arc::new(small_tree());
    let scratch = Scratch::new();
    make(&tree, Arc::new(Pattern(tree.clone())), &scratch.path("image"), true);
    std::fs::read(scratch.path("image")).unwrap()
}

/// An image that `mkfs.erofs` compresses with `options`.
fn compressed_image(options: &[&str]) -> Vec<u8> {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    std::fs::create_dir(&source).unwrap();
    let text: String = (0..2500).map(|i| format!("line {i} {}\n", i * i % 977)).collect();
    std::fs::write(source.join("text"), &text).unwrap();
    std::fs::write(source.join("zeros"), vec![0; 50_000]).unwrap();
    std::fs::write(source.join("mixed"), [&text.as_bytes()[..9000], &[7; 30_000], &text.as_bytes()[500..]].concat())
        .unwrap();
    let image = scratch.path("image");
    let output = Command::new("mkfs.erofs").args(options).args([&image, &source]).output();
    let output = output.expect("erofs-utils is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(image).unwrap()
}

fn compressed_images() -> Vec<Vec<u8>> {
    let options: [&[&str]; 3] =
        [&["-zlz4"], &["-zlz4", "-Elegacy-compress"], &["-zlz4hc", "-C16384", "-Eztailpacking"]];
    options.into_iter().map(compressed_image).collect()
}

/// The image without the superblock's checksum, so that what is damaged there is read too.
fn unsummed(mut image: Vec<u8>) -> Vec<u8> {
    image[1024 + 8] &= !1;
    image
}

#[test]
fn sound_images_are_sound() {
    assert!(is_sound(plain_image()));
    assert!(compressed_images().into_iter().all(is_sound));
}

#[test]
fn images_that_are_cut_off() {
    for image in [plain_image()].into_iter().chain(compressed_images()) {
        for length in (0..image.len().min(20_000)).step_by(61).chain((0..image.len()).step_by(4096)) {
            assert!(!is_sound(image[..length].to_vec()), "{length}");
        }
    }
}

#[test]
fn every_byte_of_the_metadata_damaged() {
    for image in [plain_image()].into_iter().chain(compressed_images()) {
        let image = unsummed(image);
        let end = image.len().min(16_000);
        for at in (1024..end).filter(|at| image[*at] != 0 || at % 7 == 0) {
            let mut damaged = image.clone();
            damaged[at] = if at % 2 == 0 { image[at] ^ 0xFF } else { image[at].wrapping_add(1) };
            exercise(damaged);
        }
    }
}

#[test]
fn counts_and_offsets_at_their_extremes() {
    for image in [plain_image()].into_iter().chain(compressed_images().into_iter().take(2)) {
        let image = unsummed(image);
        let end = image.len().min(12_000);
        for at in (1024..end).step_by(4).filter(|at| image[at & !31..][..32] != [0; 32]) {
            for value in [&[0xFF; 8][..], &[0; 8], &[0xFF; 2], &[0, 0, 0, 0x80], &[0xFF, 0xFF, 0xFF, 0x7F]] {
                let mut damaged = image.clone();
                damaged[at..at + value.len()].copy_from_slice(value);
                exercise(damaged);
            }
        }
    }
}

#[test]
fn a_superblock_that_is_not_one_or_not_for_us() {
    let image = plain_image();
    assert!(refusal(Vec::new()).contains("too few"));
    assert!(refusal(vec![0; 1 << 16]).contains("no superblock"));
    let mut summed = image.clone();
    summed[1024 + 70] = b'x';
    assert!(refusal(summed).contains("checksum"));
    let patched = |at: usize, value: &[u8]| {
        let mut image = unsummed(image.clone());
        image[1024 + at..][..value.len()].copy_from_slice(value);
        refusal(image)
    };
    assert!(patched(12, &[20]).contains("blocks of 2^20"));
    assert!(patched(80, &[0, 1]).contains("features 0x100"));
    assert!(patched(80, &[8, 0, 0, 0, 0, 0, 3]).contains("3 further devices"));
    assert!(patched(14, &[0xFF, 0xFF]).contains("beyond the image's end"));
}

/// Where the first entry is that leads to a number.
fn entry_of(image: &[u8], nid: u64) -> usize {
    let mut places = (4096..image.len() - 12).step_by(4).filter(|at| {
        image[*at..*at + 8] == nid.to_le_bytes() && image[at + 11] == 0 && (1..=7).contains(&image[at + 10])
    });
    places.next().unwrap()
}

/// The numbers of the first inodes of a planned image, which lie in the order of their ids.
fn numbers(image: &[u8]) -> Vec<u64> {
    let owner = [1000u32.to_le_bytes(), 70_000u32.to_le_bytes()].concat();
    let is_inode = |at: &usize| image[*at + 24..*at + 32] == owner;
    (4096..16_384).step_by(32).filter(is_inode).map(|at| at as u64 / 32).collect()
}

#[test]
fn directories_that_loop_or_are_linked_twice() {
    let image = plain_image();
    let numbers = numbers(&image);
    let (root, file, dir) = (numbers[0], numbers[1], numbers[2]);
    for target in [root, dir] {
        let mut looping = image.clone();
        let at = entry_of(&image, file);
        looping[at..at + 8].copy_from_slice(&target.to_le_bytes());
        assert!(refusal(looping).contains("is a directory that has a name already"), "{target}");
    }
}

#[test]
fn sizes_that_exceed_the_image() {
    let image = plain_image();
    let numbers = numbers(&image);
    let patched = |node: usize, at: usize, value: &[u8]| {
        let mut image = image.clone();
        let start = numbers[node] as usize * 32 + at;
        image[start..start + value.len()].copy_from_slice(value);
        refusal(image)
    };
    let terabyte = (1u64 << 40).to_le_bytes();
    assert!(patched(1, 8, &terabyte).contains("\"a\": 1099511627776 bytes of it"));
    assert!(patched(1, 8, &[0xFF; 8]).contains("its size is"));
    assert!(patched(2, 8, &terabyte).contains("\"dir\": the metadata up to this file"));
    assert!(patched(3, 8, &terabyte).contains("\"link\": "));
    assert!(patched(5, 8, &terabyte).contains("\"sparse\": the metadata up to this file"));
    assert!(patched(1, 2, &[0xFF, 0xFF]).contains("\"a\": "));
    assert!(patched(5, 16, &[0xFF, 0x01]).contains("format of chunks"));
    assert!(patched(6, 4, &[0, 0]).contains("no type"));
}

/// An image made by hand: a root directory whose `names` lead to numbers, and whatever `fill` puts behind block 1.
fn by_hand(blocks: usize, names: &[(String, u64)], fill: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut image = vec![0; blocks * 4096];
    image[1024..1028].copy_from_slice(&0xE0F5_E1E2u32.to_le_bytes());
    image[1024 + 12] = 12;
    image[1024 + 14..1024 + 16].copy_from_slice(&40u16.to_le_bytes());
    let mut listing = Vec::new();
    let mut name_at = names.len() * 12;
    for (name, nid) in names {
        listing.extend(nid.to_le_bytes());
        listing.extend((name_at as u16).to_le_bytes());
        listing.extend([1, 0]);
        name_at += name.len();
    }
    names.iter().for_each(|(name, _)| listing.extend(name.bytes()));
    assert!(listing.len() <= 4096);
    image[40 * 32..40 * 32 + 64].copy_from_slice(&inode(0o040755, 0, 0, listing.len() as u64, 1));
    image[4096..4096 + listing.len()].copy_from_slice(&listing);
    fill(&mut image[8192..]);
    image
}

/// An extended inode in one run of blocks from `block`.
fn inode(mode: u16, layout: u16, xattrs: u16, size: u64, block: u32) -> [u8; 64] {
    let mut inode = [0; 64];
    inode[..2].copy_from_slice(&(1 | layout << 1).to_le_bytes());
    inode[2..4].copy_from_slice(&xattrs.to_le_bytes());
    inode[4..6].copy_from_slice(&mode.to_le_bytes());
    inode[8..16].copy_from_slice(&size.to_le_bytes());
    inode[16..20].copy_from_slice(&block.to_le_bytes());
    inode
}

fn names(count: u64, first_nid: u64, step: u64) -> Vec<(String, u64)> {
    (0..count).map(|i| (format!("{i:04}"), first_nid + i * step)).collect()
}

#[test]
fn images_made_by_hand_are_read() {
    let image = by_hand(3, &names(2, 256, 2), |rest| {
        rest[..64].copy_from_slice(&inode(0o100644, 0, 0, 4096, 2));
        rest[64..128].copy_from_slice(&inode(0o100600, 0, 0, 0, 2));
    });
    let opened = try_open(image).unwrap();
    assert_eq!(opened.tree.inode(InodeId(1)).size(), 4096);
    assert_eq!(opened.tree.inode(InodeId(2)).mode(), 0o100600);
}

#[test]
fn metadata_that_overlaps() {
    // 200 inodes, each with attributes or a listing of half the image, all in the same place.
    let overlapping = |inode: [u8; 64]| {
        by_hand(64, &names(200, 256, 2), |rest| {
            (0..200).for_each(|i| rest[i * 64..i * 64 + 64].copy_from_slice(&inode));
        })
    };
    for inode in [inode(0o100400, 0, 32_000, 0, 0), inode(0o040755, 0, 0, 30 * 4096, 30)] {
        let text = refusal(overlapping(inode));
        assert!(text.contains("the metadata up to this file is larger than the image"), "{text}");
    }
}

#[test]
fn shared_attributes_that_multiply() {
    // 60 inodes, each with 255 references to a value of 60 KiB, each list different: 918 MB if it were believed.
    let image = by_hand(64, &names(60, 512, 64), |rest| {
        for i in 0..60 {
            let at = (512 - 256) * 32 + i * 64 * 32;
            rest[at..at + 64].copy_from_slice(&inode(0o100644, 0, 256, 0, 0));
            rest[at + 64 + 4] = 255;
            for j in 0..255u32 {
                let address = (40 * 4096) / 4 + 5 * u32::from(j as usize == i);
                rest[at + 76 + 4 * j as usize..][..4].copy_from_slice(&address.to_le_bytes());
            }
        }
        for place in [0, 20] {
            rest[38 * 4096 + place..][..4].copy_from_slice(&[3, 1, 0x60, 0xEA]);
            rest[38 * 4096 + place + 4..][..3].copy_from_slice(b"abc");
        }
    });
    let text = refusal(image);
    assert!(text.contains("the extended attributes of its files together are too large"), "{text}");
}

#[test]
fn symlinks_without_a_sound_target() {
    for (size, reason) in [(0, "1 to 4095"), (5, "without NUL"), (5000, "1 to 4095")] {
        let image = by_hand(8, &names(1, 256, 2), |rest| {
            rest[..64].copy_from_slice(&inode(0o120777, 0, 0, size, 5));
        });
        assert!(refusal(image).contains(reason), "{size}");
    }
}

#[test]
fn names_that_no_directory_may_have() {
    for name in ["a/b", "", "a\0b"] {
        let list = [(name.to_string(), 256), ("z".to_string(), 256)];
        let image = by_hand(8, &list, |rest| rest[..64].copy_from_slice(&inode(0o100644, 0, 0, 0, 0)));
        refusal(image);
    }
    let unsorted = [("b".to_string(), 256), ("a".to_string(), 256)];
    let image = by_hand(8, &unsorted, |rest| rest[..64].copy_from_slice(&inode(0o100644, 0, 0, 0, 0)));
    assert!(refusal(image).contains("comes twice, or before one that sorts ahead"));
}

/// An image of one compressed file of `size` bytes with a full index of `clusters`: kind, place, and what follows.
fn compressed(size: u64, clusters: &[(u16, u16, u32)], advice: u16, algorithms: u8) -> Vec<u8> {
    by_hand(16, &names(1, 256, 2), |rest| {
        rest[..64].copy_from_slice(&inode(0o100644, 1, 0, size, 0));
        rest[64 + 4..64 + 6].copy_from_slice(&advice.to_le_bytes());
        rest[64 + 6] = algorithms;
        for (i, (kind, place, value)) in clusters.iter().enumerate() {
            let at = 80 + i * 8;
            rest[at..at + 2].copy_from_slice(&kind.to_le_bytes());
            rest[at + 2..at + 4].copy_from_slice(&place.to_le_bytes());
            rest[at + 4..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        // Block 8: a block of LZ4 that is one literal and 4000 repetitions of it, behind zeros.
        let lz4 = [&[0x1F, b'x', 1, 0][..], &[255; 15], &[156]].concat();
        rest[7 * 4096 - lz4.len()..7 * 4096].copy_from_slice(&lz4);
    })
}

fn read_compressed(image: Vec<u8>, offset: u64, length: usize) -> Result<Vec<u8>, String> {
    let opened = try_open(image).map_err(|error| error.to_string())?;
    let mut bytes = vec![1; length];
    let read = read_content(&*opened.content, InodeId(1), offset, &mut bytes);
    assert!(read.is_ok() || bytes == vec![0; length], "a failed read leaves zeros");
    read.map(|()| bytes).map_err(|error| error.to_string())
}

#[test]
fn indexes_that_lead_nowhere() {
    let head = (1, 0, 8);
    assert_eq!(read_compressed(compressed(4000, &[head], 0, 0), 0, 4000), Ok(vec![b'x'; 4000]));
    let nowhere = "\"0000\": the index of its logical cluster";
    let fails = |size, clusters: &[(u16, u16, u32)], advice, offset, reason: &str| {
        let text = read_compressed(compressed(size, clusters, advice, 0), offset, 10).unwrap_err();
        assert!(text.contains(reason), "{text}");
    };
    // Back before the file's start, or to itself.
    fails(4000, &[(2, 0, 5)], 0, 0, nowhere);
    fails(4000, &[(2, 0, 0)], 0, 0, nowhere);
    // A piece that begins behind the byte that is looked for, in the first cluster; or behind the cluster.
    fails(4000, &[(1, 100, 8)], 0, 0, nowhere);
    fails(4000, &[(1, 4096, 8)], 0, 0, nowhere);
    // A piece whose blocks are not counted where they should be, or are too many, or none.
    fails(8000, &[head, (2, 0, 7)], 2, 0, nowhere);
    fails(8000, &[head, (2, 0, 0x800)], 2, 0, nowhere);
    fails(8000, &[head, (2, 0, 0x800 | 0x7FF)], 2, 0, "cannot be in");
    fails(8000, &[head, (2, 0, 0x801)], 0, 5000, nowhere);
    // Blocks beyond the image; more bytes than the block gives; plain ones than it has.
    fails(4000, &[(1, 0, 16)], 0, 0, "cannot be in");
    fails(4000, &[(1, 0, u32::MAX)], 0, 0, "cannot be in");
    fails(8000, &[head, (2, 0, 1 << 16 | 1)], 0, 0, "does not give 8000 bytes");
    fails(8000, &[(0, 0, 8), (2, 0, 1 << 16 | 1)], 0, 0, "cannot be in");
    // An end behind the index that is longer than the image; a fragment without a packed inode.
    fails(4000, &[head], 0x20, 0, "no packed inode");
}

#[test]
fn algorithms_and_clusters_that_are_not_known() {
    for (advice, algorithms, reason) in [(0, 7, "unknown algorithm 7"), (1, 0, "a record for each extent")] {
        let text = read_compressed(compressed(4000, &[(1, 0, 8)], advice, algorithms), 0, 1).unwrap_err();
        assert!(text.contains(reason), "{text}");
    }
    let mut image = compressed(4000, &[(1, 0, 8)], 0, 0);
    image[8192 + 64 + 7] = 15;
    assert!(refusal(image).contains("clusters of 2^27 bytes"));
}

#[test]
fn a_small_image_of_a_huge_compressed_file() {
    // A reader that went through all of it would not come back: an exabyte whose index would end far beyond the image, and one piece of
    // a gigabyte, cluster by cluster.
    let huge = compressed(1 << 60, &[(1, 0, 8)], 0, 0);
    for offset in [0, 1 << 59, (1 << 60) - 10] {
        read_compressed(huge.clone(), offset, 10).unwrap_err();
    }
    let clusters: Vec<_> = (0..6000).map(|i| if i == 0 { (1, 0, 8) } else { (2, 0, 1 << 16 | 1) }).collect();
    for offset in [0, 3000 * 4096, 5999 * 4096] {
        let text = read_compressed(compressed(6000 * 4096, &clusters, 0, 0), offset, 10).unwrap_err();
        assert!(text.contains("leads nowhere") || text.contains("cannot be in"), "{text}");
    }
}
