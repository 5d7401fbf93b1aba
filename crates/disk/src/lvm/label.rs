//! The label of a physical volume, and its metadata areas: lvm2's lib/label/label.h, lib/format_text/layout.h and
//! lib/format_text/format-text.c.

use inarch_block::Backing;

use crate::DiskError;
use crate::identifiers::lvm_id;
use crate::mapped::SECTOR;
use crate::read::{array, bytes, u32_at, u64_at};

/// The sectors that may have the label.
const LABEL_SECTORS: usize = 4;
/// The most areas of a physical volume that are read. LVM makes two at most.
const MOST_AREAS: usize = 8;
/// The header of a metadata area.
const AREA_HEADER: u64 = 512;
/// The longest text that is read, in bytes. One of a thousand logical volumes has half a megabyte.
pub const LONGEST_TEXT: u64 = 8 << 20;
const AREA_MAGIC: &[u8; 16] = b" LVM2 x[5A%r0N*>";

/// A physical volume by its label.
pub struct Label {
    /// Its identifier, with hyphens.
    pub id: String,
    /// Its metadata areas: first byte and length.
    areas: Vec<(u64, u64)>,
}

/// LVM's checksum: a CRC-32 that starts with a number of its own and is not inverted.
pub fn checksum(parts: &[&[u8]]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!0xF597_A6CF);
    parts.iter().for_each(|part| hasher.update(part));
    !hasher.finalize()
}

/// The label of a volume that is a physical volume, with a note if one is damaged.
pub fn label(volume: &dyn Backing, name: &str, notes: &mut Vec<String>) -> Result<Option<Label>, DiskError> {
    let length = volume.size().min(LABEL_SECTORS as u64 * SECTOR);
    let head = bytes(volume, 0, length as usize)?.unwrap_or_default();
    for sector in head.chunks_exact(SECTOR as usize) {
        if !sector.starts_with(b"LABELONE") || sector.get(24..32) != Some(b"LVM2 001") {
            continue;
        }
        let is_whole = sector.get(20..).map(|rest| checksum(&[rest])) == u32_at(sector, 16);
        match header(sector).filter(|_| is_whole) {
            Some(label) => return Ok(Some(label)),
            None => notes.push(format!("{name}: its label of an LVM physical volume is damaged; it is left out")),
        }
    }
    Ok(None)
}

/// The header of a physical volume, in the sector of its label.
fn header(sector: &[u8]) -> Option<Label> {
    let header = sector.get(u32_at(sector, 20)? as usize..)?;
    let id = lvm_id(&array(header, 0)?)?;
    // Two lists of places, each up to a place of zeros: data areas, metadata areas.
    let mut places = header.get(40..)?.chunks_exact(16).map(|place| Some((u64_at(place, 0)?, u64_at(place, 8)?)));
    places.by_ref().take_while(|place| *place != Some((0, 0))).for_each(drop);
    let areas = places.take_while(|place| *place != Some((0, 0))).take(MOST_AREAS).collect::<Option<_>>()?;
    Some(Label { id, areas })
}

/// The texts in a physical volume's metadata areas. Notes say which areas are damaged.
pub fn texts(
    volume: &dyn Backing,
    label: &Label,
    name: &str,
    notes: &mut Vec<String>,
) -> Result<Vec<String>, DiskError> {
    let mut texts = Vec::new();
    for (start, length) in &label.areas {
        match text(volume, *start, *length)? {
            Ok(text) => texts.extend(text),
            Err(what) => notes.push(format!("{name}: the LVM metadata at byte {start} {what}")),
        }
    }
    Ok(texts)
}

/// The text in an area of `length` bytes from `start`; `None` if it is not used, or what is wrong with it.
fn text(volume: &dyn Backing, start: u64, length: u64) -> Result<Result<Option<String>, &'static str>, DiskError> {
    let Some(header) = bytes(volume, start, AREA_HEADER as usize)? else { return Ok(Err("is beyond the end")) };
    let is_whole = header.get(4..).map(|rest| checksum(&[rest])) == u32_at(&header, 0);
    let is_one = header.get(4..20) == Some(AREA_MAGIC) && u32_at(&header, 20) == Some(1);
    if !is_whole || !is_one {
        return Ok(Err("has no valid header"));
    }
    if (u64_at(&header, 24), u64_at(&header, 32)) != (Some(start), Some(length)) {
        return Ok(Err("is of another place or size"));
    }
    let numbers = (u64_at(&header, 40), u64_at(&header, 48), u32_at(&header, 56), u32_at(&header, 60));
    let (Some(offset), Some(size), Some(sum), Some(flags)) = numbers else { return Ok(Err("has no valid header")) };
    // Flag 1: LVM keeps no metadata here, as other physical volumes have it.
    if offset == 0 || size == 0 || flags & 1 != 0 {
        return Ok(Ok(None));
    }
    let rest = length.checked_sub(offset).filter(|_| offset >= AREA_HEADER && size <= length - AREA_HEADER);
    let Some(rest) = rest.filter(|_| size <= LONGEST_TEXT) else { return Ok(Err("has a size that cannot be")) };
    // The area is a ring: what does not fit at its end follows its header.
    let first = size.min(rest);
    let front = bytes(volume, start.saturating_add(offset), first as usize)?;
    let back = bytes(volume, start.saturating_add(AREA_HEADER), (size - first) as usize)?;
    let (Some(mut text), Some(back)) = (front, back) else { return Ok(Err("goes beyond the end")) };
    text.extend(back);
    if checksum(&[&text]) != sum {
        return Ok(Err("has a wrong checksum"));
    }
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    text.truncate(end);
    Ok(Ok(Some(String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))))
}
