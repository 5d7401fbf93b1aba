//! The boot sector: the size of clusters and records, and where the MFT is.

use inarch_volume::{Pages, VolumeError};

use super::spec::{array, u16_at, u64_at};
use super::{NAME, damaged, unreadable};
use crate::{Damage, ReadError};

/// The largest cluster of Windows 10 and later.
const MAX_CLUSTER: u32 = 2 << 20;

/// A volume's parameters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    /// The binary logarithm of bytes in a cluster: 9 to 21.
    pub(super) cluster_bits: u32,
    /// Bytes of an MFT record: a power of two from 512 to 65,536.
    pub(super) record_size: usize,
    /// Clusters of the volume.
    pub(super) clusters: u64,
    /// The first cluster of the MFT, and of the copy of its first records.
    pub(super) mft: u64,
    pub(super) mirror: u64,
}

impl Geometry {
    /// Reads and checks the boot sector. With salvaged damage, an image that was cut off becomes a note.
    pub(super) fn read(pages: &Pages, damage: Damage, notes: &mut Vec<String>) -> Result<Geometry, ReadError> {
        if pages.size() < 512 {
            return Err(unreadable(damaged(format!("{} bytes are too few for a boot sector", pages.size()))));
        }
        let sector: [u8; 512] = pages.array(0).map_err(unreadable)?;
        let (geometry, bytes) = parse(&sector).map_err(unreadable)?;
        if bytes > pages.size() {
            let reason = format!("the image was cut off: it has {} bytes of {bytes}", pages.size());
            notes.push(damage.or_refuse(NAME, reason)?);
        }
        Ok(geometry)
    }

    /// Bytes of a cluster.
    pub(super) fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }
}

/// Parses a boot sector. Also gives the bytes of the volume.
fn parse(sector: &[u8]) -> Result<(Geometry, u64), VolumeError> {
    let missing = || damaged("internal: a boot sector has 512 bytes");
    if array(sector, 3) != Some(*b"NTFS    ") {
        return Err(damaged("no boot sector of NTFS: bytes 3 to 10 are not \"NTFS    \""));
    }
    let sector_size = u32::from(u16_at(sector, 11).ok_or_else(missing)?);
    let [per_cluster] = array(sector, 13).ok_or_else(missing)?;
    if !sector_size.is_power_of_two() || !(512..=4096).contains(&sector_size) {
        return Err(damaged(format!("the boot sector has sectors of {sector_size} bytes; 512 to 4096 are supported")));
    }
    // Beyond 128 sectors, the byte is a negative power of two.
    let per_cluster = match per_cluster {
        0..=0x80 => Some(u32::from(per_cluster)),
        _ => 1u32.checked_shl(256 - u32::from(per_cluster)),
    };
    let cluster = per_cluster.and_then(|count| count.checked_mul(sector_size));
    let cluster = cluster.filter(|size| size.is_power_of_two() && *size <= MAX_CLUSTER);
    let cluster = cluster.ok_or_else(|| damaged("the boot sector has clusters of no power of two up to 2 MiB"))?;
    let [per_record] = array(sector, 64).ok_or_else(missing)?;
    let record_size = match per_record as i8 {
        count @ 1.. => cluster.checked_mul(count as u32),
        bits => 1u32.checked_shl(u32::from(bits.unsigned_abs())).filter(|_| bits < 0),
    };
    let record_size = record_size.filter(|size| size.is_power_of_two() && (512..=65_536).contains(size));
    let record_size = record_size.ok_or_else(|| {
        damaged(format!("the boot sector has MFT records of no supported size (byte 64 is {per_record:#04x})"))
    })?;
    let sectors = u64_at(sector, 40).ok_or_else(missing)?;
    let bytes = sectors.checked_mul(sector_size.into()).filter(|bytes| i64::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or_else(|| damaged(format!("the boot sector has {sectors} sectors, beyond 2^63 bytes")))?;
    let cluster_bits = cluster.trailing_zeros();
    let clusters = bytes >> cluster_bits;
    let place = |at: usize, what: &str| {
        let found = u64_at(sector, at).ok_or_else(missing)?;
        match found < clusters {
            true => Ok(found),
            false => Err(damaged(format!("the boot sector has {what} at cluster {found} of {clusters}"))),
        }
    };
    let (mft, mirror) = (place(48, "the MFT")?, place(56, "the copy of the MFT").unwrap_or(0));
    Ok((Geometry { cluster_bits, record_size: record_size as usize, clusters, mft, mirror }, bytes))
}
