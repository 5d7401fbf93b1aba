//! The boot sector of a FAT.

use inarch_block::Backing;
use inarch_volume::{Pages, VolumeError};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::chains::{Area, Width};
use super::{NAME, damaged};
use crate::{Damage, ReadError};

/// The fields before the extended ones (Microsoft's "FAT: General Overview of On-Disk Format" 1.03, "Boot Sector and BPB"),
/// and those of FAT32.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct BootSector {
    _jump: [u8; 3],
    _maker: [u8; 8],
    bytes_per_sector: U16,
    sectors_per_cluster: u8,
    reserved: U16,
    tables: u8,
    root_entries: U16,
    sectors16: U16,
    media: u8,
    table16: U16,
    _geometry: [u8; 4],
    _hidden: U32,
    sectors32: U32,
    // FAT32 from here on.
    table32: U32,
    flags: U16,
    version: U16,
    root: U32,
}

/// The most clusters of a FAT12 (`MAX_FAT12` of Linux's fs/fat/fat.h).
const MAX_FAT12: u64 = 0xFF4;
/// The most clusters of a FAT16.
const MAX_FAT16: u64 = 0xFFF4;
/// The most clusters of a FAT32.
const MAX_FAT32: u64 = 0x0FFF_FFF6;

/// Where the root directory is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Root {
    /// Before the clusters: its first byte, and how many bytes it has.
    Fixed(u64, u64),
    /// Its first cluster.
    Cluster(u32),
}

/// What the boot sector says.
pub(super) struct Parameters {
    pub(super) area: Area,
    pub(super) root: Root,
    pub(super) notes: Vec<String>,
}

/// Whether the first sector's fields are those of a FAT.
pub(super) fn is_fat(head: &[u8; 512]) -> bool {
    let Ok((boot, _)) = BootSector::read_from_prefix(head) else { return false };
    head.ends_with(&[0x55, 0xAA]) && boot.is_sound()
}

impl BootSector {
    fn is_sound(&self) -> bool {
        matches!(self.bytes_per_sector.get(), 512 | 1024 | 2048 | 4096)
            && self.sectors_per_cluster.is_power_of_two()
            && self.reserved.get() != 0
            && matches!(self.tables, 1 | 2)
            && (self.media == 0xF0 || self.media >= 0xF8)
    }

    fn parameters(&self) -> Result<(Area, Root, u64), VolumeError> {
        let sector = u64::from(self.bytes_per_sector.get());
        let is_32 = self.table16.get() == 0;
        let table = if is_32 { u64::from(self.table32.get()) } else { u64::from(self.table16.get()) };
        let sectors = match self.sectors16.get() {
            0 => u64::from(self.sectors32.get()),
            sectors => u64::from(sectors),
        };
        if table == 0 || sectors == 0 {
            return Err(damaged("its boot sector has no size for the volume, or for the table of clusters"));
        }
        let reserved = u64::from(self.reserved.get());
        let root_bytes = u64::from(self.root_entries.get()) * 32;
        let root_at = reserved + u64::from(self.tables) * table;
        let heap = root_at + root_bytes.div_ceil(sector);
        let left = sectors.checked_sub(heap).ok_or_else(|| damaged("its tables are larger than the volume"))?;
        let clusters = left / u64::from(self.sectors_per_cluster);
        let (width, most) = match (is_32, clusters > MAX_FAT12) {
            (true, _) => (Width::ThirtyTwo, MAX_FAT32),
            (false, true) => (Width::Sixteen, MAX_FAT16),
            (false, false) => (Width::Twelve, MAX_FAT12),
        };
        // The first two entries of the table are no clusters'.
        let in_table = (table * sector * 8 / width.bits()).saturating_sub(2);
        // With the highest bit set, one table only is used: the one with the number in the lowest four.
        let active = if is_32 && self.flags.get() & 0x80 != 0 { u64::from(self.flags.get() & 0xF) } else { 0 };
        if active >= u64::from(self.tables) || (is_32 && self.version.get() != 0) {
            return Err(damaged("its boot sector has an unknown version, or uses a table that there is not"));
        }
        let area = Area {
            width,
            table_at: (reserved + active * table) * sector,
            heap_at: heap * sector,
            cluster: u64::from(self.sectors_per_cluster) * sector,
            clusters: clusters.min(most).min(in_table) as u32,
        };
        let root = match is_32 {
            true => Root::Cluster(self.root.get()),
            false => Root::Fixed(root_at * sector, root_bytes),
        };
        Ok((area, root, sectors * sector))
    }
}

impl Parameters {
    pub(super) fn read(image: &dyn Backing, pages: &Pages, damage: Damage) -> Result<Parameters, ReadError> {
        let unreadable = |error| ReadError::of_volume(NAME, error);
        let head: [u8; 512] = pages.array(0).map_err(unreadable)?;
        if !is_fat(&head) {
            return Err(unreadable(damaged("its boot sector is not a FAT's")));
        }
        let (boot, _) =
            BootSector::read_from_prefix(&head).map_err(|_| unreadable(damaged("its boot sector is too short")))?;
        let (area, root, bytes) = boot.parameters().map_err(unreadable)?;
        let mut notes = Vec::new();
        if bytes > image.size() {
            let size = image.size();
            let reason = format!("the image has {size} bytes of the volume's {bytes}: its end is missing");
            notes.push(damage.or_refuse(NAME, reason)?);
        }
        // The state of Windows and Linux: bit 0 is set while the volume is mounted for writing.
        let state = head.get(if matches!(area.width, Width::ThirtyTwo) { 65 } else { 37 });
        if state.is_some_and(|state| state & 1 != 0) {
            notes.push("it was not unmounted: the last changes may be missing".to_owned());
        }
        Ok(Parameters { area, root, notes })
    }
}
