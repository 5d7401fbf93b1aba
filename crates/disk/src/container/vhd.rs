//! VHD ("Virtual Hard Disk Image Format Specification", Microsoft, 1.0): fixed, dynamic and differencing images. Numbers are
//! big-endian.

use std::io;
use std::sync::Arc;

use inarch_block::{Backing, read_backing};

use super::mapped::{Map, Mapped, Piece};
use super::opening::Opening;
use super::tables::Tables;
use super::{Container, ContainerError, Reference, Role};
use crate::read::array;
use crate::window::Window;

/// What a footer begins with. All but fixed images also have a copy of it at the start.
pub(super) const MAGIC: &[u8] = b"conectix";
const FOOTER: u64 = 512;

/// The header of an image that is not fixed.
const HEADER: u64 = 1024;
const HEADER_MAGIC: &[u8] = b"cxsparse";
const SECTOR: u64 = 512;
/// An entry of the table for a block that is not there.
const FREE: u32 = u32::MAX;
/// Sizes of blocks; 2 MiB is usual.
const BLOCK_SIZES: std::ops::RangeInclusive<u64> = 4096..=256 << 20;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    array(bytes, at).map_or(0, u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    array(bytes, at).map_or(0, u64::from_be_bytes)
}

fn refused(reason: impl Into<String>) -> ContainerError {
    Container::Vhd.refused(reason)
}

/// Whether the sum of all bytes but those of the checksum, inverted, is the checksum at `at`.
fn is_whole(bytes: &[u8], at: usize) -> bool {
    let sum = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    let own = sum(bytes.get(at..at + 4).unwrap_or_default());
    !sum(bytes).wrapping_sub(own) == u32_at(bytes, at)
}

/// The footer at `at`, if one is there.
fn footer_at(file: &dyn Backing, at: Option<u64>) -> io::Result<Option<[u8; FOOTER as usize]>> {
    let Some(at) = at.filter(|at| at.checked_add(FOOTER).is_some_and(|end| end <= file.size())) else {
        return Ok(None);
    };
    let mut bytes = [0; FOOTER as usize];
    read_backing(file, at, &mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.starts_with(MAGIC) && is_whole(bytes, 64)))
}

/// Whether a file ends with a footer.
pub(super) fn has_footer(file: &dyn Backing) -> io::Result<bool> {
    Ok(footer_at(file, file.size().checked_sub(FOOTER))?.is_some())
}

/// The footer, or its copy.
fn footer(file: &dyn Backing) -> Result<[u8; FOOTER as usize], ContainerError> {
    for at in [file.size().checked_sub(FOOTER), Some(0)] {
        let found = footer_at(file, at).map_err(|error| ContainerError::Io { offset: at.unwrap_or(0), error })?;
        if let Some(found) = found {
            return Ok(found);
        }
    }
    Err(refused("it has no footer with a valid checksum, at its end or its start; the image is cut off or damaged"))
}

/// Opens an image, and its parent.
pub(super) fn open(opening: &mut Opening<'_, '_>, file: Arc<dyn Backing>) -> Result<Arc<dyn Backing>, ContainerError> {
    let footer = footer(&*file)?;
    let size = u64_at(&footer, 48);
    let differs = match u32_at(&footer, 60) {
        2 if size <= file.size().saturating_sub(FOOTER) => return Ok(Arc::new(Window::new(file, 0, size))),
        2 => return Err(refused(format!("a disk of {size} bytes in a file of {}; the image is cut off", file.size()))),
        3 => false,
        4 => true,
        other => {
            return Err(refused(format!(
                "a disk of type {other}, where 2 (fixed), 3 (dynamic) and 4 (differencing) are read"
            )));
        }
    };
    let header = Container::Vhd.bytes(&*file, u64_at(&footer, 16), HEADER, "the header")?;
    if !header.starts_with(HEADER_MAGIC) || !is_whole(&header, 36) {
        return Err(refused("its header has no valid checksum; the image is damaged"));
    }
    let (table, entries, block) = (u64_at(&header, 16), u32_at(&header, 28), u64::from(u32_at(&header, 32)));
    if !BLOCK_SIZES.contains(&block) || !block.is_power_of_two() {
        return Err(refused(format!("blocks of {block} bytes")));
    }
    let needed = size.div_ceil(block);
    if needed > u64::from(entries) {
        return Err(refused(format!("a block table of {entries} entries for a disk of {size} bytes")));
    }
    if table.checked_add(needed * 4).is_none_or(|end| end > file.size()) {
        return Err(refused("the block table goes beyond the end of the file; the image is cut off or damaged"));
    }
    let below = if differs { Some(parent(opening, &header)?) } else { None };
    let bitmap = (block / SECTOR / 8).next_multiple_of(SECTOR);
    let map = Blocks { tables: opening.tables(&file), table, block, bitmap, differs };
    Ok(Arc::new(Mapped { map, size, data: file, below }))
}

/// The parent of an image of differences: a VHD whose identifier is the one that the image has for it.
fn parent(opening: &mut Opening<'_, '_>, header: &[u8]) -> Result<Arc<dyn Backing>, ContainerError> {
    let name = header.get(64..64 + 512).unwrap_or_default().chunks_exact(2);
    let name: Vec<u16> =
        name.map(|unit| array(unit, 0).map_or(0, u16::from_be_bytes)).take_while(|unit| *unit != 0).collect();
    let name = String::from_utf16_lossy(&name);
    let file = opening.named(Container::Vhd, Reference { role: Role::Backing, name: name.into_bytes() })?;
    let footer = footer(&*file)?;
    if footer.get(68..84) != header.get(40..56) {
        return Err(refused(
            "the backing file that you named has another identifier than its parent; it is another image",
        ));
    }
    opening.lower(Container::Vhd, file, Some(b"vhd"))
}

/// The map of an image.
struct Blocks {
    tables: Tables,
    /// Where the table of blocks is.
    table: u64,
    block: u64,
    /// Bytes of the bitmap of sectors before each block.
    bitmap: u64,
    /// Whether a sector that is not in the bitmap is the parent's. Otherwise the bitmap tells only which sectors were
    /// written, and those that were not are zeros in the block, too.
    differs: bool,
}

impl Blocks {
    fn sector_at(&self, offset: u64) -> io::Result<Piece> {
        let start = u32::from_be_bytes(self.tables.array(self.table + offset / self.block * 4)?);
        if start == FREE {
            return Ok(if self.differs { Piece::Below } else { Piece::Zeros });
        }
        let (start, within) = (u64::from(start) * SECTOR, offset % self.block);
        if self.differs {
            let sector = within / SECTOR;
            let [bits] = self.tables.array(start + sector / 8)?;
            if bits & 0x80 >> (sector % 8) == 0 {
                return Ok(Piece::Below);
            }
        }
        Ok(Piece::At(start + self.bitmap + within))
    }
}

impl Map for Blocks {
    fn unit(&self) -> u64 {
        self.block
    }

    fn piece(&self, offset: u64, count: u64) -> io::Result<(Piece, u64)> {
        let unit = if self.differs { SECTOR } else { self.block };
        Piece::run(offset, count, unit, &|at| self.sector_at(at))
    }
}
