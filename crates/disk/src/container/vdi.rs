//! VDI, version 1.1 (VirtualBox, src/VBox/Storage/VDICore.h): dynamic and fixed images.

use std::io;
use std::sync::Arc;

use inarch_block::Backing;

use super::mapped::{Map, Mapped, Piece};
use super::opening::Opening;
use super::tables::Tables;
use super::{Container, ContainerError};
use crate::read::{u32_at, u64_at};

/// `VDI_IMAGE_SIGNATURE`, behind a text for people.
pub(super) const MAGIC: &[u8] = b"\x7f\x10\xda\xbe";
pub(super) const MAGIC_AT: usize = 64;

/// The text, the signature, the version, and the header of version 1.1.
const HEADER: u64 = 0x1C8;
/// Entries of the block map: no block (`VDI_IMAGE_BLOCK_FREE`), one of zeros (`VDI_IMAGE_BLOCK_ZERO`).
const FREE: u32 = 0xFFFF_FFFF;
const ZEROS: u32 = 0xFFFF_FFFE;
/// Sizes of blocks.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=256 << 20;

struct Blocks {
    tables: Tables,
    /// Where the block map is.
    map: u64,
    /// Where the first block is.
    data: u64,
    block: u64,
}

/// Opens an image.
pub(super) fn open(opening: &mut Opening<'_, '_>, file: Arc<dyn Backing>) -> Result<Arc<dyn Backing>, ContainerError> {
    let kind = Container::Vdi;
    let bytes = kind.bytes(&*file, 0, HEADER, "the header")?;
    let word = |at: usize| u32_at(&bytes, at).unwrap_or(0);
    let version = word(0x44);
    if version >> 16 != 1 || version & 0xFFFF < 1 {
        return Err(kind.refused(format!("version {}.{}, where 1.1 is read", version >> 16, version & 0xFFFF)));
    }
    match word(0x4C) {
        1 | 2 => {}
        3 | 4 => {
            return Err(kind.refused(
                "it has only the differences to another image; 'VBoxManage clonemedium' makes a whole one of it",
            ));
        }
        other => {
            return Err(kind.refused(format!("an image of type {other}, where 1 (dynamic) and 2 (fixed) are read")));
        }
    }
    let (map, data) = (u64::from(word(0x154)), u64::from(word(0x158)));
    let size = u64_at(&bytes, 0x170).unwrap_or(0);
    let (block, extra, blocks) = (word(0x178), word(0x17C), u64::from(word(0x180)));
    if !BLOCK_SIZES.contains(&block) || !block.is_power_of_two() || extra != 0 {
        return Err(kind.refused(format!("blocks of {block} bytes with {extra} before each")));
    }
    let block = u64::from(block);
    if size.div_ceil(block) > blocks {
        return Err(kind.refused(format!("a block map of {blocks} entries for a disk of {size} bytes")));
    }
    if map + size.div_ceil(block) * 4 > file.size() {
        return Err(kind.refused("the block map goes beyond the end of the file; the image is cut off or damaged"));
    }
    let map = Blocks { tables: opening.tables(&file), map, data, block };
    Ok(Arc::new(Mapped { map, size, data: file, below: None }))
}

impl Blocks {
    fn block_at(&self, offset: u64) -> io::Result<Piece> {
        Ok(match u32::from_le_bytes(self.tables.array(self.map + offset / self.block * 4)?) {
            FREE | ZEROS => Piece::Zeros,
            number => Piece::At(self.data + u64::from(number) * self.block + offset % self.block),
        })
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
