//! Any FAT is read in bounded time and memory. An input is a small one with bytes replaced.

#![no_main]

use inarch_fuzz::asked::{Patches, survive};
use libfuzzer_sys::fuzz_target;

/// A FAT12, FAT16 or FAT32 with a long name, a directory and a file of three clusters.
fn base(bits: u32) -> Vec<u8> {
    let (root, table_at) = (if bits == 32 { 2 } else { 0 }, 512);
    let sectors: u16 = if bits == 16 { 4400 } else { 300 };
    let heap = 512 + 32 * 512 + if root == 0 { 512 } else { 0 };
    let mut image = vec![0; usize::from(sectors) * 512];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(11, &[0, 2, 1, 1, 0, 1, if root == 0 { 16 } else { 0 }, 0]);
    put(19, &sectors.to_le_bytes());
    put(21, &[0xF8]);
    put(if bits == 32 { 36 } else { 22 }, &[32]);
    put(44, &[root]);
    put(510, &[0x55, 0xAA]);
    // Clusters 2 and 3 are directories, 4, 5 and 6 a file.
    match bits {
        12 => put(table_at + 3, &[0xFF, 0xFF, 0xFF, 0x05, 0x60, 0x00, 0xFF, 0x0F]),
        16 => put(table_at + 4, &[0xFF, 0xFF, 0xFF, 0xFF, 5, 0, 6, 0, 0xFF, 0xFF]),
        _ => put(
            table_at + 8,
            &[0xFF, 0xFF, 0xFF, 0x0F, 0xFF, 0xFF, 0xFF, 0x0F, 5, 0, 0, 0, 6, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x0F],
        ),
    }
    let entry = |name: &[u8; 11], attributes, first: u8, size: u16| {
        let mut bytes = [0; 32];
        bytes[..11].copy_from_slice(name);
        (bytes[11], bytes[26]) = (attributes, first);
        bytes[28..30].copy_from_slice(&size.to_le_bytes());
        bytes
    };
    let at = if root == 0 { heap - 512 } else { heap };
    let file = entry(b"FILE       ", 0, 4, 1500);
    let sum = file[..11].iter().fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte));
    let mut long = entry(b"\x41l\0o\0n\0g\0 \0", 0x0F, 0, 0);
    long[13] = sum;
    for (number, bytes) in [long, file, entry(b"DIR        ", 0x10, 3, 0)].iter().enumerate() {
        put(at + number * 32, bytes);
    }
    let dots = [entry(b".          ", 0x10, 3, 0), entry(b"..         ", 0x10, 0, 0), entry(b"INNER   TXT", 0, 0, 0)];
    for (number, bytes) in dots.iter().enumerate() {
        put(heap + 512 + number * 32, bytes);
    }
    image
}

fuzz_target!(|input: (u8, Patches<'_>)| survive("vfat", base([12, 16, 32][usize::from(input.0) % 3]), &input.1));
