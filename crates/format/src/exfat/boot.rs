//! The boot region of an exFAT.

use inarch_volume::{Pages, VolumeError};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{NAME, damaged};
use crate::fat::chains::{Area, Width};
use crate::{Damage, ReadError};

/// The fields of the first sector (section 3.1).
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BootSector {
    _jump: [u8; 3],
    name: [u8; 8],
    zeros: [u8; 53],
    _partition: U64,
    sectors: U64,
    table: U32,
    table_length: U32,
    heap: U32,
    clusters: U32,
    root: U32,
    _serial: U32,
    _revision: U16,
    flags: U16,
    sector_shift: u8,
    cluster_shift: u8,
    tables: u8,
}

/// The most clusters (section 3.1.9).
const MAX_CLUSTERS: u32 = 0xFFFF_FFF5;
/// Sectors of the boot region before the one with its checksum (section 3.4).
const SUMMED: u64 = 11;
/// The second table and bitmap are used.
const SECOND_IS_ACTIVE: u16 = 1;
/// The volume was being written.
const DIRTY: u16 = 2;
/// There were failures of the medium.
const FAILED: u16 = 4;

/// What the boot region says.
pub(super) struct Parameters {
    pub(super) area: Area,
    /// The root's first cluster.
    pub(super) root: u32,
    pub(super) notes: Vec<String>,
}

/// Whether the first sector is an exFAT's.
pub(super) fn is_exfat(head: &[u8; 512]) -> bool {
    let Ok((boot, _)) = BootSector::read_from_prefix(head) else { return false };
    boot.name == *b"EXFAT   " && boot.zeros == [0; 53] && head.ends_with(&[0x55, 0xAA])
}

impl BootSector {
    fn area(&self) -> Result<(Area, u64), VolumeError> {
        let (sector_shift, cluster_shift) = (self.sector_shift, self.cluster_shift);
        if !(9..=12).contains(&sector_shift) || cluster_shift > 25 - sector_shift || !matches!(self.tables, 1 | 2) {
            return Err(damaged(
                "its boot sector has impossible sizes of sectors or clusters, or neither one nor two tables",
            ));
        }
        let sector = 1u64 << sector_shift;
        let clusters = self.clusters.get();
        let table_bytes = u64::from(self.table_length.get()) * sector;
        let active = u64::from(self.tables == 2 && self.flags.get() & SECOND_IS_ACTIVE != 0);
        if clusters > MAX_CLUSTERS || (u64::from(clusters) + 2) * 4 > table_bytes {
            return Err(damaged(format!("its table of {table_bytes} bytes is too small for {clusters} clusters")));
        }
        let area = Area {
            width: Width::Exfat,
            table_at: u64::from(self.table.get()) * sector + active * table_bytes,
            heap_at: u64::from(self.heap.get()) * sector,
            cluster: sector << cluster_shift,
            clusters,
        };
        let bytes = self.sectors.get().checked_mul(sector);
        let end = area.cluster.checked_mul(clusters.into()).and_then(|bytes| bytes.checked_add(area.heap_at));
        match (bytes, end) {
            (Some(bytes), Some(end)) if end <= bytes => Ok((area, bytes)),
            _ => Err(damaged("its clusters are more than the volume has")),
        }
    }
}

impl Parameters {
    pub(super) fn read(pages: &Pages, damage: Damage) -> Result<Parameters, ReadError> {
        let unreadable = |error| ReadError::of_volume(NAME, error);
        let head: [u8; 512] = pages.array(0).map_err(unreadable)?;
        if !is_exfat(&head) {
            return Err(unreadable(damaged("its boot sector is not an exFAT's")));
        }
        let (boot, _) =
            BootSector::read_from_prefix(&head).map_err(|_| unreadable(damaged("its boot sector is too short")))?;
        let (area, bytes) = boot.area().map_err(unreadable)?;
        let mut notes = Vec::new();
        if !is_summed(pages, 1 << boot.sector_shift).map_err(unreadable)? {
            notes.push(damage.or_refuse(NAME, "the checksum of its boot region is wrong".to_owned())?);
        }
        if bytes > pages.size() {
            let size = pages.size();
            let reason = format!("the image has {size} bytes of the volume's {bytes}: its end is missing");
            notes.push(damage.or_refuse(NAME, reason)?);
        }
        let flags = boot.flags.get();
        if flags & DIRTY != 0 {
            notes.push("it was not unmounted: the last changes may be missing".to_owned());
        }
        if flags & FAILED != 0 {
            notes.push("its medium had failures when it was in use".to_owned());
        }
        Ok(Parameters { area, root: boot.root.get(), notes })
    }
}

/// Whether the boot region has the checksum that its last sector says.
fn is_summed(pages: &Pages, sector: u64) -> Result<bool, VolumeError> {
    let mut region = vec![0; (sector * SUMMED) as usize];
    pages.read(0, &mut region)?;
    let expected = u32::from_le_bytes(pages.array(sector * SUMMED)?);
    // The flags and the percentage in use change without it.
    let bytes = region.iter().enumerate().filter(|(at, _)| !matches!(at, 106 | 107 | 112));
    Ok(bytes.fold(0u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u32::from(*byte))) == expected)
}
