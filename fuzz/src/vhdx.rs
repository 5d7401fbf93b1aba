//! A small VHDX whose structures can be changed, and whose checksums are made right again ([MS-VHDX]).
//!
//! The format has its headers and region tables at fixed places up to 320 KiB. Everything else lies right behind them here, closer than writers put it.

use arbitrary::Arbitrary;

use crate::image::replace;

/// Where the headers are, and their size.
const HEADERS: [usize; 2] = [64 << 10, 128 << 10];
const HEADER: usize = 4096;
/// Where the region tables are, and their size.
const REGIONS: [usize; 2] = [192 << 10, 256 << 10];
const REGION_TABLE: usize = 64 << 10;
/// Where the metadata are, the table of blocks, and the log.
const METADATA: usize = 320 << 10;
const BLOCKS: usize = METADATA + SECTOR;
const LOG: usize = BLOCKS + SECTOR;
/// Bytes of a sector of the log, of each of its two entries, and of all of it.
const SECTOR: usize = 4096;
const ENTRY: usize = 2 * SECTOR;
const LOG_LENGTH: usize = 8 * SECTOR;
/// Bytes of the file: four sectors follow the log.
const SIZE: usize = LOG + LOG_LENGTH + 4 * SECTOR;
/// What the log's entries belong to.
const OF_LOG: [u8; 16] = [0xAB; 16];

/// Bytes to be replaced in a structure: in the first or second of two.
#[derive(Arbitrary, Debug)]
pub struct Patch<'a> {
    structure: Structure,
    second: bool,
    at: u16,
    bytes: &'a [u8],
}

#[derive(Arbitrary, Debug)]
enum Structure {
    Header,
    Regions,
    Metadata,
    Blocks,
    /// The header of a log's entry and its descriptors.
    Entry,
    /// The sector of data in one.
    Data,
    Anywhere,
}

/// The identifier of a region or an item, as it is on disk: its first three numbers are little-endian.
fn guid(a: u32, b: u16, c: u16, d: u64) -> Vec<u8> {
    [&a.to_le_bytes()[..], &b.to_le_bytes(), &c.to_le_bytes(), &d.to_be_bytes()].concat()
}

/// A disk of 3 MiB and a sector, with blocks of 1 MiB. With a log, it was not closed properly: the log has two entries that change the table of blocks.
pub fn base(has_log: bool) -> Vec<u8> {
    let mut image = vec![0; SIZE];
    replace(&mut image, 0, b"vhdxfile");
    for (sequence, at) in (1_u64..).zip(HEADERS) {
        replace(&mut image, at, b"head");
        replace(&mut image, at + 8, &sequence.to_le_bytes());
        replace(&mut image, at + 48, if has_log { &OF_LOG } else { &[0; 16] });
        replace(&mut image, at + 66, &1_u16.to_le_bytes());
        replace(&mut image, at + 68, &(LOG_LENGTH as u32).to_le_bytes());
        replace(&mut image, at + 72, &(LOG as u64).to_le_bytes());
    }
    let regions = [
        (guid(0x2DC2_7766, 0xF623, 0x4200, 0x9D64_115E_9BFD_4A08), BLOCKS),
        (guid(0x8B7C_A206, 0x4790, 0x4B9A, 0xB8FE_575F_050F_886E), METADATA),
    ];
    for at in REGIONS {
        replace(&mut image, at, b"regi");
        replace(&mut image, at + 8, &2_u32.to_le_bytes());
        for (entry, (id, place)) in (at + 16..).step_by(32).zip(&regions) {
            replace(&mut image, entry, id);
            replace(&mut image, entry + 16, &(*place as u64).to_le_bytes());
            replace(&mut image, entry + 24, &(SECTOR as u32).to_le_bytes());
        }
    }
    let items = [
        (guid(0xCAA1_6737, 0xFA36, 0x4D43, 0xB3B6_33F0_AA44_E76B), 1_u64 << 20),
        (guid(0x2FA5_4224, 0xCD1B, 0x4876, 0xB211_5DBE_D83B_F4B8), (3 << 20) + 512),
        (guid(0x8141_BF1D, 0xA96F, 0x4709, 0xBA47_F233_A8FA_AB5F), 512),
    ];
    replace(&mut image, METADATA, b"metadata");
    replace(&mut image, METADATA + 10, &3_u16.to_le_bytes());
    for (number, (id, value)) in items.iter().enumerate() {
        let (entry, place) = (METADATA + 32 + number * 32, 128 + number * 8);
        replace(&mut image, entry, id);
        replace(&mut image, entry + 16, &(place as u32).to_le_bytes());
        replace(&mut image, METADATA + place, &value.to_le_bytes());
    }
    // The first block is at the start of the file, where there are bytes for it. The second one is zeros.
    replace(&mut image, BLOCKS, &[6, 0, 0, 0, 0, 0, 0, 0, 2]);
    for number in 0..2 {
        put_entry(&mut image, LOG + number * ENTRY, 7 + number as u64);
    }
    seal(&mut image);
    image
}

/// An entry of the log: the table of blocks becomes one with a third block, and the last sector of the file zeros.
fn put_entry(image: &mut [u8], at: usize, sequence: u64) {
    replace(image, at, b"loge");
    replace(image, at + 8, &(ENTRY as u32).to_le_bytes());
    replace(image, at + 16, &sequence.to_le_bytes());
    replace(image, at + 24, &2_u32.to_le_bytes());
    replace(image, at + 32, &OF_LOG);
    for place in [48, 56] {
        replace(image, at + place, &(SIZE as u64).to_le_bytes());
    }
    // The first eight bytes of the sector are in its descriptor, and its last four.
    replace(image, at + 64, b"desc\0\0\0\0\x06");
    replace(image, at + 64 + 16, &(BLOCKS as u64).to_le_bytes());
    replace(image, at + 96, b"zero");
    replace(image, at + 96 + 8, &(SECTOR as u64).to_le_bytes());
    replace(image, at + 96 + 16, &((SIZE - SECTOR) as u64).to_le_bytes());
    for descriptor in [64, 96] {
        replace(image, at + descriptor + 24, &sequence.to_le_bytes());
    }
    let data = at + SECTOR;
    replace(image, data, b"data");
    replace(image, data + 4, &((sequence >> 32) as u32).to_le_bytes());
    replace(image, data + 16, &[6]);
    replace(image, data + SECTOR - 4, &(sequence as u32).to_le_bytes());
}

/// Makes the changes, of at most 64 bytes each.
pub fn change(image: &mut [u8], patches: &[Patch<'_>]) {
    for Patch { structure, second, at, bytes } in patches {
        let (second, at) = (usize::from(*second), usize::from(*at));
        let at = match structure {
            Structure::Header => HEADERS[second] + at % 80,
            Structure::Regions => REGIONS[second] + at % 256,
            Structure::Metadata => METADATA + at % 160,
            Structure::Blocks => BLOCKS + at % 64,
            Structure::Entry => LOG + second * ENTRY + at % 160,
            Structure::Data => LOG + second * ENTRY + SECTOR + at % SECTOR,
            Structure::Anywhere => at * 8,
        };
        replace(image, at, &bytes[..bytes.len().min(64)]);
    }
}

/// Makes checksums right: of the headers and the region tables, and of the entries of the log where the newest header says that it is.
pub fn seal(image: &mut [u8]) {
    let whole = HEADERS.map(|at| (at, HEADER)).into_iter().chain(REGIONS.map(|at| (at, REGION_TABLE)));
    whole.for_each(|(at, length)| seal_one(image, at, length));
    let number = |at: usize| {
        image.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let newest = if number(HEADERS[1] + 8) > number(HEADERS[0] + 8) { HEADERS[1] } else { HEADERS[0] };
    let (length, start) = (number(newest + 68) as u32 as usize, number(newest + 72) as usize);
    let Some(log) = start.checked_add(length).and_then(|end| image.get_mut(start..end)) else { return };
    let mut at = 0;
    while let Some(entry) = log.get(at..).filter(|rest| rest.len() >= SECTOR) {
        let length = u32::from_le_bytes([entry[8], entry[9], entry[10], entry[11]]) as usize;
        let is_one = entry.starts_with(b"loge") && length >= SECTOR && length.is_multiple_of(SECTOR);
        if is_one {
            seal_one(log, at, length);
        }
        at += if is_one { length } else { SECTOR };
    }
}

/// Makes the CRC-32C right that is at byte 4 of these bytes, if all of them are there.
fn seal_one(bytes: &mut [u8], at: usize, length: usize) {
    let Some(bytes) = bytes.get_mut(at..at + length) else { return };
    bytes[4..8].fill(0);
    let sum = crc32c::crc32c(bytes);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// Makes the first header and the first region table such as a write leaves them that was cut off: their checksums are wrong, and the second ones count.
pub fn tear(image: &mut [u8]) {
    for at in [HEADERS[0], REGIONS[0]] {
        if let Some(byte) = image.get_mut(at + 4) {
            *byte ^= 1;
        }
    }
}
