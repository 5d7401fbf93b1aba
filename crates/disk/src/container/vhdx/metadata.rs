//! The metadata region (section 2.6).

use inarch_block::Backing;

use super::{Guid, guid, refused};
use crate::container::{Container, ContainerError};
use crate::read::{array, u32_at, u64_at};

/// Bytes of the table that the region begins with.
const TABLE: u64 = 64 << 10;
/// The most entries (2.6.1.1).
const MOST_ENTRIES: u16 = 2047;
/// The largest disk (2.6.2.2).
const LARGEST: u64 = 64 << 40;

/// Items (2.6.2).
const FILE_PARAMETERS: Guid = guid(0xCAA1_6737, 0xFA36, 0x4D43, 0xB3B6_33F0_AA44_E76B);
const DISK_SIZE: Guid = guid(0x2FA5_4224, 0xCD1B, 0x4876, 0xB211_5DBE_D83B_F4B8);
const SECTOR_SIZE: Guid = guid(0x8141_BF1D, 0xA96F, 0x4709, 0xBA47_F233_A8FA_AB5F);

/// What the region says.
pub(super) struct Metadata {
    /// Bytes of the disk.
    pub(super) size: u64,
    /// Bytes of a block: a power of two from 1 to 256 MiB.
    pub(super) block: u64,
    /// Bytes of a logical sector: 512 or 4096.
    pub(super) sector: u64,
}

impl Metadata {
    /// Reads the region of `length` bytes at byte `at`.
    pub(super) fn read(file: &dyn Backing, at: u64, length: u64) -> Result<Metadata, ContainerError> {
        let table = Container::Vhdx.bytes(file, at, TABLE.min(length), "the metadata table")?;
        if !table.starts_with(b"metadata") {
            return Err(refused(format!("no metadata table is at byte {at}; the image is damaged")));
        }
        let count = array(&table, 10).map_or(0, u16::from_le_bytes).min(MOST_ENTRIES);
        let item = |wanted: &Guid, name: &str| -> Result<[u8; 8], ContainerError> {
            let entries = table.get(32..).unwrap_or_default().chunks_exact(32).take(count.into());
            let entry = entries.into_iter().find(|entry| entry.starts_with(wanted));
            let place = entry.and_then(|entry| u32_at(entry, 16)).map(u64::from).filter(|offset| offset + 8 <= length);
            let place = place.and_then(|offset| at.checked_add(offset));
            let place = place.ok_or_else(|| refused(format!("its metadata has no {name}; the image is damaged")))?;
            let bytes = Container::Vhdx.bytes(file, place, 8, name)?;
            Ok(array(&bytes, 0).unwrap_or_default())
        };
        let parameters = item(&FILE_PARAMETERS, "block size")?;
        let block = u64::from(u32_at(&parameters, 0).unwrap_or(0));
        let flags = u32_at(&parameters, 4).unwrap_or(0);
        let size = u64_at(&item(&DISK_SIZE, "disk size")?, 0).unwrap_or(0);
        let sector = u64::from(u32_at(&item(&SECTOR_SIZE, "sector size")?, 0).unwrap_or(0));
        if flags & 2 != 0 {
            return Err(refused(
                "it has only the differences to another image, which is not read here; merge them first",
            ));
        }
        if !(1 << 20..=256 << 20).contains(&block) || !block.is_power_of_two() || !matches!(sector, 512 | 4096) {
            return Err(refused(format!("blocks of {block} bytes and sectors of {sector}")));
        }
        if size > LARGEST {
            return Err(refused(format!("a disk of {size} bytes, where 64 TiB is the most")));
        }
        Ok(Metadata { size, block, sector })
    }
}
