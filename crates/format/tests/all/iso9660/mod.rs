//! Discs that are put together here, record by record.

use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_format::{Damage, ReadError, TreeAndContent, iso9660};

use crate::erofs::Bytes;

pub const SECTOR: usize = 2048;
/// The root directory's sector.
pub const ROOT: u32 = 20;
pub const DIRECTORY: u8 = 2;

/// A disc of 64 sectors.
pub struct Disc {
    pub image: Vec<u8>,
    /// Where the next record goes.
    place: usize,
}

fn both(number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// A record (ECMA-119, 9.1), of 2024-07-04 12:34:56.
pub fn record(name: &[u8], flags: u8, extent: u32, size: u32, system: &[u8]) -> Vec<u8> {
    let padding = 1 - name.len() % 2;
    let mut bytes = vec![0; 33 + name.len() + padding];
    bytes.extend_from_slice(system);
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    bytes[0] = bytes.len() as u8;
    bytes[2..10].copy_from_slice(&both(extent));
    bytes[10..18].copy_from_slice(&both(size));
    bytes[18..25].copy_from_slice(&[124, 7, 4, 12, 34, 56, 0]);
    bytes[25] = flags;
    bytes[28] = 1;
    bytes[32] = name.len() as u8;
    bytes[33..33 + name.len()].copy_from_slice(name);
    bytes
}

/// A field of the system use area.
pub fn field(name: &[u8; 2], body: &[u8]) -> Vec<u8> {
    [&name[..], &[4 + body.len() as u8, 1], body].concat()
}

pub fn posix(mode: u32) -> Vec<u8> {
    field(b"PX", &[both(mode), both(1), both(1000), both(2000)].concat())
}

pub fn name(name: &[u8]) -> Vec<u8> {
    field(b"NM", &[&[0][..], name].concat())
}

pub fn continued(block: u32, offset: u32, length: u32) -> Vec<u8> {
    field(b"CE", &[both(block), both(offset), both(length)].concat())
}

impl Disc {
    /// With Rock Ridge, or plain.
    pub fn new(rock: bool) -> Disc {
        let mut image = vec![0; 64 * SECTOR];
        let primary = 16 * SECTOR;
        image[primary..primary + 7].copy_from_slice(b"\x01CD001\x01");
        image[primary + 80..primary + 88].copy_from_slice(&both(64));
        image[primary + 128..primary + 130].copy_from_slice(&2048u16.to_le_bytes());
        let root = record(b"\0", DIRECTORY, ROOT, SECTOR as u32, b"");
        image[primary + 156..primary + 156 + root.len()].copy_from_slice(&root);
        image[17 * SECTOR..17 * SECTOR + 7].copy_from_slice(b"\xFFCD001\x01");
        let mut disc = Disc { image, place: ROOT as usize * SECTOR };
        let sharing = if rock { field(b"SP", &[0xBE, 0xEF, 0]) } else { Vec::new() };
        disc.put(&record(b"\0", DIRECTORY, ROOT, SECTOR as u32, &sharing));
        disc.put(&record(b"\x01", DIRECTORY, ROOT, SECTOR as u32, b""));
        disc
    }

    /// Appends a record to the directory.
    pub fn put(&mut self, record: &[u8]) {
        self.image[self.place..self.place + record.len()].copy_from_slice(record);
        self.place += record.len();
    }

    /// Appends to another directory from now on, which has a sector and begins with the usual two records.
    pub fn directory(&mut self, sector: u32, parent: u32, of_parent: &[u8]) {
        self.place = sector as usize * SECTOR;
        self.put(&record(b"\0", DIRECTORY, sector, SECTOR as u32, &posix(0o040_750)));
        self.put(&record(b"\x01", DIRECTORY, parent, SECTOR as u32, of_parent));
    }

    /// Fills a sector.
    pub fn fill(&mut self, sector: u32, bytes: &[u8]) {
        self.image[sector as usize * SECTOR..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn walk(&self, damage: Damage) -> Result<TreeAndContent, ReadError> {
        let image = Arc::new(Bytes(self.image.clone()));
        let volume = iso9660::open_volume(Parsing::unconfined(), image, damage)?;
        TreeAndContent::walk(Parsing::unconfined(), volume, damage)
    }
}
