//! Any bytes as members of arrays and as LVM's metadata, with the right checksums: volumes are found or refused, and their
//! bytes are within what they lie on.

#![no_main]

use std::io;
use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_block::{Backing, Cursor, read_backing};
use inarch_confine::Parsing;
use inarch_disk::{Above, Keys, Names, Piece, above};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Text(&'a [u8]),
    /// The header of a physical volume, that of its area, and what follows.
    Physical(&'a [u8], &'a [u8], &'a [u8]),
    /// Superblocks of version 1.2, each of a member.
    Array(Vec<&'a [u8]>),
    /// One of version 0.90.
    Old(&'a [u8]),
    /// Blocks of a thin pool's metadata: bytes at a place in each of the first ones.
    Thin(Vec<(u16, &'a [u8])>),
}

struct Bytes(Vec<u8>);

impl Backing for Bytes {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from(self.0.get(offset as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

const SIZE: usize = 256 << 10;

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    let room = image.len().saturating_sub(at).min(bytes.len());
    image[at..at + room].copy_from_slice(&bytes[..room]);
}

fn lvm_sum(bytes: &[u8]) -> [u8; 4] {
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0xEDB8_8320 } else { sum >> 1 };
    bytes.iter().fold(0xF597_A6CF, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step)).to_le_bytes()
}

fn set_md_sum(block: &mut [u8], at: usize) {
    put(block, at, &[0; 4]);
    let sum: u64 =
        block.chunks_exact(4).map(|word| u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))).sum();
    put(block, at, &(sum as u32).wrapping_add((sum >> 32) as u32).to_le_bytes());
}

fn physical(header: &[u8], area: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut image = vec![0; SIZE];
    put(&mut image, 512, b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001");
    put(&mut image[..1024], 544, header);
    let sum = lvm_sum(&image[532..1024]);
    put(&mut image, 528, &sum);
    put(&mut image, 4608, rest);
    put(&mut image, 4100, b" LVM2 x[5A%r0N*>\x01\0\0\0");
    put(&mut image[..4608], 4120, area);
    let size = u64::from_le_bytes(image[4144..4152].try_into().unwrap()).min(rest.len() as u64) as usize;
    put(&mut image, 4152, &lvm_sum(&rest[..size]));
    let sum = lvm_sum(&image[4100..4608]);
    put(&mut image, 4096, &sum);
    image
}

fn text(text: &[u8]) -> Vec<u8> {
    let number = |number: usize| (number as u64).to_le_bytes();
    let header =
        [&[b'p'; 32][..], &number(SIZE), &number(64 << 10), &[0; 24], &number(4096), &number(60 << 10)].concat();
    physical(&header, &[number(4096), number(60 << 10), number(512), number(text.len())].concat(), text)
}

fn member(block: &[u8]) -> Vec<u8> {
    let mut image = vec![0; SIZE];
    put(&mut image[..8192], 4096, block);
    put(&mut image, 4096, &[0xFC, 0x4E, 0x2B, 0xA9, 1, 0, 0, 0]);
    put(&mut image, 4096 + 144, &8u64.to_le_bytes());
    let places = usize::from(image[4096 + 220]);
    put(&mut image, 4096 + 221, &[0; 3]);
    set_md_sum(&mut image[4096..4096 + 256 + places * 2 / 4 * 4], 216);
    image
}

fn old(block: &[u8]) -> Vec<u8> {
    let mut image = vec![0; SIZE];
    let at = SIZE - (64 << 10);
    put(&mut image[..at + 4096], at, block);
    put(&mut image, at, &[0xFC, 0x4E, 0x2B, 0xA9, 0, 0, 0, 0]);
    set_md_sum(&mut image[at..at + 4096], 152);
    image
}

/// A group with a pool and a thin volume in it. Its metadata lie in the first extents, of 4 KiB each, and its data behind them.
const THIN: &str = r#"vg { id = "g" seqno = 1 extent_size = 8 physical_volumes { pv0 { id = "pppppp-pppp-pppp-pppp-pppp-pppp-pppppp" pe_start = 128 } }
logical_volumes { pool { id = "a" status = ["VISIBLE"] segment1 { start_extent = 0 extent_count = 32 type = "thin-pool" metadata = "m" pool = "d" } }
thin { id = "b" status = ["VISIBLE"] segment1 { start_extent = 0 extent_count = 64 type = "thin" thin_pool = "pool" device_id = 1 } }
m { segment1 { start_extent = 0 extent_count = 8 type = "striped" stripe_count = 1 stripes = ["pv0", 0] } }
d { segment1 { start_extent = 0 extent_count = 32 type = "striped" stripe_count = 1 stripes = ["pv0", 16] } } } }
contents = "Text Format Volume Group" version = 1
"#;

fn thin(patches: &[(u16, &[u8])]) -> Vec<u8> {
    let mut image = text(THIN.as_bytes());
    let metadata = &mut image[64 << 10..96 << 10];
    let word = |metadata: &mut [u8], at: usize, number: u64| put(metadata, at, &number.to_le_bytes());
    word(metadata, 32, 27_022_010);
    word(metadata, 40, 2);
    word(metadata, 320, 1);
    word(metadata, 336, 8 << 32 | 128);
    for (block, value) in [(1, 2), (2, 1 << 24)] {
        let at = block * 4096;
        for (place, number) in [(4, 2), (8, block as u64), (16, 252 << 32 | 1), (24, 8), (32, 1), (32 + 8 * 252, value)] {
            word(metadata, at + place, number);
        }
    }
    for (at, bytes) in patches {
        put(metadata, usize::from(*at) % (32 << 10), &bytes[..bytes.len().min(4096)]);
    }
    for (number, block) in metadata.chunks_exact_mut(4096).enumerate() {
        let sum = !crc32c::crc32c(&block[4..]) ^ if number == 0 { 160_774 } else { 121_107 };
        put(block, 0, &sum.to_le_bytes());
    }
    image
}

fuzz_target!(|input: Input<'_>| {
    let images = match input {
        Input::Text(bytes) => vec![text(&bytes[..bytes.len().min(60 << 10)])],
        Input::Physical(header, area, rest) => vec![physical(header, area, rest)],
        Input::Array(blocks) => blocks.iter().take(8).map(|block| member(block)).collect(),
        Input::Old(block) => vec![old(block)],
        Input::Thin(patches) => vec![thin(&patches)],
    };
    let piece = |bytes| Piece { name: "p".to_owned(), names: Names::default(), backing: Arc::new(Bytes(bytes)) };
    let pieces: Vec<Piece> = images.into_iter().map(piece).collect();
    let Ok(found) = above(Parsing::unconfined(), &pieces, &Keys::default()) else { return };
    let is_whole = |volume: &&Above| volume.layout != "thin";
    for bytes in found.list.iter().filter(|volume| volume.layout == "thin").filter_map(|volume| volume.bytes.as_ref().ok()) {
        let _ = read_backing(&**bytes, 0, &mut vec![0; bytes.size().min(512 << 10) as usize]);
        bytes.lends(0, bytes.size());
    }
    for bytes in found.list.iter().filter(is_whole).filter_map(|volume| volume.bytes.as_ref().ok()) {
        let last = bytes.size().checked_sub(1).expect("no volume is empty");
        read_backing(&**bytes, last, &mut [0]).expect("it is within what it lies on");
        read_backing(&**bytes, 0, &mut vec![0; bytes.size().min(64 << 10) as usize])
            .expect("it is within what it lies on");
    }
});
