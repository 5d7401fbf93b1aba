//! Any ISO 9660 image is read in bounded time and memory. An input is a small one with bytes replaced.

#![no_main]

use inarch_fuzz::asked::{Patches, survive};
use libfuzzer_sys::fuzz_target;

const SECTOR: usize = 2048;

fn record(name: &[u8], flags: u8, extent: u8, size: u16, system: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; (33 + name.len()).next_multiple_of(2)];
    bytes.extend_from_slice(system);
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    (bytes[0], bytes[2], bytes[25], bytes[32]) = (bytes.len() as u8, extent, flags, name.len() as u8);
    bytes[10..12].copy_from_slice(&size.to_le_bytes());
    bytes[33..33 + name.len()].copy_from_slice(name);
    bytes
}

/// A disc with Rock Ridge, Joliet or neither: a directory, a symlink with a continuation area, and a file of two sections.
fn base(kind: u8) -> Vec<u8> {
    let (rock, joliet) = (kind.is_multiple_of(3), kind % 3 == 1);
    let mut image = vec![0; 32 * SECTOR];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let root = record(b"\0", 2, 20, 2048, b"");
    for (sector, kind) in [(16, 1u8), (17, if joliet { 2 } else { 0 }), (18, 255)] {
        put(sector * SECTOR, &[&[kind][..], b"CD001\x01"].concat());
        put(sector * SECTOR + 88, b"%/E");
        put(sector * SECTOR + 128, &[0, 8]);
        put(sector * SECTOR + 156, &root);
    }
    let posix = |mode: u16| {
        let mut field = b"PX\x24\x01".to_vec();
        field.resize(36, 0);
        field[4..6].copy_from_slice(&mode.to_le_bytes());
        field
    };
    let mut continued = b"CE\x1C\x01".to_vec();
    continued.resize(28, 0);
    (continued[4], continued[20]) = (23, 60);
    let system = |fields: &[&[u8]]| if rock { fields.concat() } else { Vec::new() };
    let mut at = 20 * SECTOR;
    for bytes in [
        record(b"\0", 2, 20, 2048, &system(&[b"SP\x07\x01\xBE\xEF\0"])),
        record(b"\x01", 2, 20, 2048, b""),
        record(b"\0D\0I", 2, 21, 2048, &system(&[&posix(0o040_755), b"NM\x08\x01\0dir"])),
        record(b"\0F\0;\x001", 0x80, 24, 2048, &system(&[&posix(0o100_644), b"NM\x07\x01\0fi"])),
        record(b"\0F\0;\x001", 0, 26, 100, b""),
        record(b"\0L", 0, 0, 0, &system(&[&posix(0o120_777), &continued])),
    ] {
        put(at, &bytes);
        at += bytes.len();
    }
    put(21 * SECTOR, &[record(b"\0", 2, 21, 2048, b""), record(b"\x01", 2, 20, 2048, b"")].concat());
    put(23 * SECTOR, b"NM\x09\x01\0linkSL\x0A\x01\0\x04\0\0\x01xTF\x0C\x01\x02\x7C\x07\x04\0\0\0\0");
    image
}

fuzz_target!(|input: (u8, Patches<'_>)| survive("iso9660", base(input.0), &input.1));
