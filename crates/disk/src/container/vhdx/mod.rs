//! VHDX ([MS-VHDX]): fixed and dynamic images. If the image was not closed properly, its log is replayed in memory ([`log`]).

mod log;
mod metadata;

use std::io;
use std::sync::Arc;

use inarch_block::Backing;

use super::mapped::{Map, Mapped, Piece};
use super::opening::Opening;
use super::tables::{Tables, damaged};
use super::{Container, ContainerError};
use crate::read::{array, u32_at, u64_at};
use metadata::Metadata;

/// The first bytes (section 2.2.1).
pub(super) const MAGIC: &[u8] = b"vhdxfile";

/// Where the two headers are (2.2.2), and their size.
const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
const HEADER: u64 = 4096;
/// Where the two region tables are (2.2.3), and their size.
const REGIONS: [u64; 2] = [192 << 10, 256 << 10];
const REGION_TABLE: u64 = 64 << 10;
/// The most regions (2.2.3.1).
const MOST_REGIONS: u32 = 2047;

/// A GUID as it is on disk.
type Guid = [u8; 16];

/// Regions (2.2.3.2).
const BLOCK_TABLE: Guid = guid(0x2DC2_7766, 0xF623, 0x4200, 0x9D64_115E_9BFD_4A08);
const METADATA: Guid = guid(0x8B7C_A206, 0x4790, 0x4B9A, 0xB8FE_575F_050F_886E);

/// The bytes of a GUID: its first three numbers are little-endian.
const fn guid(a: u32, b: u16, c: u16, d: u64) -> Guid {
    let ([a0, a1, a2, a3], [b0, b1], [c0, c1]) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    let [d0, d1, d2, d3, d4, d5, d6, d7] = d.to_be_bytes();
    [a0, a1, a2, a3, b0, b1, c0, c1, d0, d1, d2, d3, d4, d5, d6, d7]
}

fn refused(reason: impl Into<String>) -> ContainerError {
    Container::Vhdx.refused(reason)
}

/// Whether the CRC-32C at byte 4 is that of the bytes with zeros in its place.
fn is_whole(bytes: &[u8]) -> bool {
    let (Some(before), Some(after)) = (bytes.get(..4), bytes.get(8..)) else { return false };
    let sum = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), after);
    u32_at(bytes, 4) == Some(sum)
}

/// What the current header says.
struct Header {
    sequence: u64,
    /// Of the log's entries; zeros if the log is empty.
    log: Guid,
    log_at: u64,
    log_length: u64,
}

impl Header {
    /// Of the headers that are whole, the one with the larger sequence number.
    fn read(file: &dyn Backing) -> Result<Header, ContainerError> {
        let mut current: Option<Header> = None;
        for at in HEADERS {
            let bytes = Container::Vhdx.bytes(file, at, HEADER, "the header")?;
            if !bytes.starts_with(b"head") || !is_whole(&bytes) || array(&bytes, 66).map(u16::from_le_bytes) != Some(1)
            {
                continue;
            }
            let header = Header {
                sequence: u64_at(&bytes, 8).unwrap_or(0),
                log: array(&bytes, 48).unwrap_or_default(),
                log_length: u32_at(&bytes, 68).unwrap_or(0).into(),
                log_at: u64_at(&bytes, 72).unwrap_or(0),
            };
            if current.as_ref().is_none_or(|current| current.sequence < header.sequence) {
                current = Some(header);
            }
        }
        current.ok_or_else(|| {
            refused("neither of its headers is one of version 1 with a valid checksum; the image is damaged")
        })
    }
}

/// Where a region is, and its length.
fn region(table: &[u8], wanted: &Guid) -> Option<(u64, u64)> {
    let count = u32_at(table, 8)?.min(MOST_REGIONS) as usize;
    let entry = table.get(16..)?.chunks_exact(32).take(count).find(|entry| entry.starts_with(wanted))?;
    Some((u64_at(entry, 16)?, u32_at(entry, 24)?.into()))
}

/// Opens an image.
pub(super) fn open(opening: &mut Opening<'_, '_>, file: Arc<dyn Backing>) -> Result<Arc<dyn Backing>, ContainerError> {
    let header = Header::read(&*file)?;
    // Content is never in the log; only what tells where it is.
    let file = if header.log == Guid::default() { file } else { log::replay(file, &header)? };
    let mut table = None;
    for at in REGIONS {
        let bytes = Container::Vhdx.bytes(&*file, at, REGION_TABLE, "the region table")?;
        if bytes.starts_with(b"regi") && is_whole(&bytes) {
            table = Some(bytes);
            break;
        }
    }
    let table =
        table.ok_or_else(|| refused("neither of its region tables has a valid checksum; the image is damaged"))?;
    let (at, length) = region(&table, &METADATA).ok_or_else(|| refused("it has no metadata region"))?;
    let metadata = Metadata::read(&*file, at, length)?;
    let (table, length) = region(&table, &BLOCK_TABLE).ok_or_else(|| refused("it has no block allocation table"))?;
    let blocks = metadata.size.div_ceil(metadata.block);
    let chunk = (metadata.sector << 23) / metadata.block;
    let entries = blocks + blocks.saturating_sub(1) / chunk;
    if entries.saturating_mul(8) > length || table.checked_add(length).is_none_or(|end| end > file.size()) {
        return Err(refused(format!(
            "its block allocation table, {length} bytes at byte {table}, lacks room for {entries} entries or is beyond the end"
        )));
    }
    let map = Blocks { tables: opening.tables(&file), table, block: metadata.block, chunk };
    Ok(Arc::new(Mapped { map, size: metadata.size, data: file, below: None }))
}

/// The map of an image (2.5).
struct Blocks {
    tables: Tables,
    table: u64,
    block: u64,
    /// Entries between two that are about bitmaps of sectors, which only differencing images use.
    chunk: u64,
}

impl Blocks {
    fn block_at(&self, offset: u64) -> io::Result<Piece> {
        let number = offset / self.block;
        let entry = u64::from_le_bytes(self.tables.array(self.table + (number + number / self.chunk) * 8)?);
        // The upper 44 bits are MiB.
        match entry & 7 {
            // Not present, undefined, zero, unmapped.
            0..=3 => Ok(Piece::Zeros),
            6 => Ok(Piece::At((entry >> 20 << 20) + offset % self.block)),
            state => Err(damaged(format!("the block at byte {offset} of the disk has state {state}"))),
        }
    }
}

impl Map for Blocks {
    fn unit(&self) -> u64 {
        self.block
    }

    fn piece(&self, offset: u64, count: u64) -> io::Result<(Piece, u64)> {
        Piece::run(offset, count, self.block, &|at| self.block_at(at))
    }
}
