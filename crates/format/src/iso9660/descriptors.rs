//! Volume descriptors.

use inarch_volume::{Pages, VolumeError};

use super::{SECTOR, damaged};

/// The first descriptor's first byte: sector 16.
pub(super) const START: u64 = 16 * SECTOR;
/// The identifier of each, from its second byte on.
pub(super) const MAGIC: &[u8; 5] = b"CD001";
/// The most descriptors that are looked at.
const MOST: u64 = 64;
/// Sectors after them in which a UDF file system may be announced.
const EXTENSIONS: u64 = 8;

const PRIMARY: u8 = 1;
const SUPPLEMENTARY: u8 = 2;
const LAST: u8 = 255;

/// Where the root directories are (ECMA-119, 8.4 and 8.5).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Descriptors {
    /// Bytes of a block, in which places are counted.
    pub(super) block: u64,
    /// Blocks of the volume.
    pub(super) blocks: u64,
    /// The root's first byte.
    pub(super) root: u64,
    /// The root's first byte in the Joliet tree (Joliet specification, "SVD escape sequences").
    pub(super) joliet: Option<u64>,
    /// Whether there is a UDF file system, too.
    pub(super) has_udf: bool,
}

impl Descriptors {
    pub(super) fn read(pages: &Pages) -> Result<Descriptors, VolumeError> {
        let mut found = Descriptors::default();
        let mut at = START;
        for _ in 0..MOST {
            if !pages.holds(at, SECTOR) {
                break;
            }
            let sector: [u8; SECTOR as usize] = pages.array(at)?;
            if sector.get(1..6) != Some(&MAGIC[..]) {
                break;
            }
            at += SECTOR;
            match sector[0] {
                PRIMARY if found.block == 0 => {
                    found.block = u64::from(u16::from_le_bytes([sector[128], sector[129]]));
                    if !matches!(found.block, 512 | 1024 | 2048) {
                        return Err(damaged(format!("its primary descriptor has blocks of {} bytes", found.block)));
                    }
                    found.blocks = u64::from(number(&sector, 80));
                    found.root = root(&sector, found.block);
                }
                SUPPLEMENTARY if found.block > 0 && found.joliet.is_none() && is_joliet(&sector) => {
                    found.joliet = Some(root(&sector, found.block));
                }
                LAST => break,
                _ => {}
            }
        }
        if found.block == 0 {
            return Err(damaged("it has no primary descriptor"));
        }
        for sector in 0..EXTENSIONS {
            let at = at + sector * SECTOR + 1;
            found.has_udf |= pages.holds(at, 4) && pages.array(at)? == *b"NSR0";
        }
        Ok(found)
    }
}

fn number(sector: &[u8; SECTOR as usize], at: usize) -> u32 {
    sector.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// The place that the root's record says; an extended attribute record may be in front of it.
fn root(sector: &[u8; SECTOR as usize], block: u64) -> u64 {
    (u64::from(number(sector, 156 + 2)) + u64::from(sector[156 + 1])) * block
}

/// Whether the names are in UCS-2, of level 1, 2 or 3.
fn is_joliet(sector: &[u8; SECTOR as usize]) -> bool {
    matches!(sector[88..91], [b'%', b'/', b'@' | b'C' | b'E'])
}
