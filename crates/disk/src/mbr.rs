//! Master boot records, with extended partitions (UEFI specification 2.10, section 5.2).

use std::collections::HashSet;

use inarch_block::Backing;

use crate::read::{bytes, u32_at};
use crate::{DiskError, Part, Table, TableKind};

/// Bytes of a sector, in which an MBR counts. A disk with larger sectors counts in those, but an MBR does not say so.
const SECTOR: u64 = 512;
/// The most partitions in an extended one that are read. Linux reads 256 of a disk.
const MOST: usize = 256;
/// The type of a protective entry, of a disk with a GPT.
pub const PROTECTIVE: u8 = 0xEE;
/// Where the four entries start.
const ENTRIES: usize = 446;

/// An entry.
#[derive(Clone, Copy, Debug)]
struct Entry {
    boots: bool,
    kind: u8,
    /// In sectors.
    start: u64,
    length: u64,
}

impl Entry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85)
    }
}

/// The used entries of a sector with a table, and their places; `None` if it is none.
fn entries(sector: &[u8]) -> Option<Vec<(u32, Entry)>> {
    if sector.get(510..512)? != [0x55, 0xAA] {
        return None;
    }
    let mut entries = Vec::new();
    for place in 0..4 {
        let at = ENTRIES + 16 * place as usize;
        let (flag, kind) = (*sector.get(at)?, *sector.get(at + 4)?);
        if !matches!(flag, 0 | 0x80) {
            return None;
        }
        let (start, length) = (u32_at(sector, at + 8)?.into(), u32_at(sector, at + 12)?.into());
        if kind != 0 && length != 0 {
            entries.push((place + 1, Entry { boots: flag == 0x80, kind, start, length }));
        }
    }
    Some(entries)
}

/// The types of the first sector's entries, if it has a table.
pub fn kinds(image: &dyn Backing) -> Result<Option<Vec<u8>>, DiskError> {
    let sector = bytes(image, 0, SECTOR as usize)?;
    Ok(sector.and_then(|sector| entries(&sector)).map(|entries| entries.iter().map(|(_, entry)| entry.kind).collect()))
}

/// Reads the table, if there is one with an entry.
pub fn read(image: &dyn Backing, notes: &mut Vec<String>) -> Result<Option<(Table, Vec<Part>)>, DiskError> {
    let Some(sector) = bytes(image, 0, SECTOR as usize)? else { return Ok(None) };
    let Some(entries) = entries(&sector).filter(|entries| !entries.is_empty()) else { return Ok(None) };
    let id = u32_at(&sector, 440).unwrap_or_default();
    let mut parts: Vec<Part> = entries.iter().map(|(number, entry)| part(*number, *entry, 0, id)).collect();
    if let Some((_, extended)) = entries.iter().find(|(_, entry)| entry.is_extended()) {
        parts.extend(logical(image, *extended, id, notes)?);
    }
    let table = Table { kind: TableKind::Mbr, id: format!("{id:08x}"), sector: SECTOR };
    Ok(Some((table, parts)))
}

/// The partitions in an extended one: a chain of sectors, each with one partition and the next sector.
fn logical(image: &dyn Backing, extended: Entry, id: u32, notes: &mut Vec<String>) -> Result<Vec<Part>, DiskError> {
    let (mut parts, mut seen) = (Vec::new(), HashSet::new());
    let mut at = extended.start;
    loop {
        if !seen.insert(at) || parts.len() >= MOST {
            notes.push("the chain of the extended partition has no end; what follows is left out".to_owned());
            break;
        }
        let sector = bytes(image, at.saturating_mul(SECTOR), SECTOR as usize)?;
        let Some(entries) = sector.as_deref().and_then(entries) else {
            notes.push("the chain of the extended partition breaks off; what follows is left out".to_owned());
            break;
        };
        for (_, entry) in entries.iter().filter(|(_, entry)| !entry.is_extended()).take(1) {
            parts.push(part(5 + parts.len() as u32, *entry, at, id));
        }
        let Some((_, next)) = entries.iter().find(|(_, entry)| entry.is_extended()) else { break };
        at = extended.start.saturating_add(next.start);
    }
    Ok(parts)
}

fn part(number: u32, entry: Entry, base: u64, id: u32) -> Part {
    Part {
        number,
        start: base.saturating_add(entry.start).saturating_mul(SECTOR),
        length: entry.length.saturating_mul(SECTOR),
        type_id: format!("{:02x}", entry.kind),
        type_name: name(entry.kind),
        name: None,
        id: (id != 0).then(|| format!("{id:08x}-{number:02x}")),
        boots: entry.boots,
        content: None,
    }
}

/// Usual types.
fn name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        0x01 | 0x04 | 0x06 | 0x0B | 0x0C | 0x0E => "FAT",
        0x05 | 0x0F | 0x85 => "extended",
        0x07 => "NTFS or exFAT",
        0x27 => "Windows recovery",
        0x82 => "Linux swap",
        0x83 => "Linux",
        0x8E => "Linux LVM",
        0xA5 => "FreeBSD",
        0xA6 => "OpenBSD",
        0xA9 => "NetBSD",
        0xAF => "HFS",
        0xEF => "EFI system",
        0xFD => "Linux RAID",
        PROTECTIVE => "GPT",
        _ => return None,
    })
}
