//! How large a file system is by its own superblock, and how much of it files can use, without mounting it.
//!
//! The places are those of the formats' own headers: Linux's fs/*/ and include/uapi/linux/, and Microsoft's and Apple's descriptions.

use inarch_block::Backing;
use inarch_confine::Parsing;

use crate::DiskError;
use crate::read::{array, bytes, u16_at, u32_at, u64_at};

/// The bytes that are looked at: as far as the superblock of ReiserFS and Btrfs.
const HEAD: usize = 0x1_1000;

/// The size of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// How much of its volume it covers.
    pub covered: u64,
    /// How much is free for files, if its first bytes say that. What is reserved for root counts as free.
    pub free: Option<u64>,
}

/// Reads the sizes of the file system of this `format`, by the name that a [`Signature`](crate::Signature) has. `None` if its superblock does not
/// say them, or does not make sense.
///
/// # Errors
/// The volume cannot be read.
pub fn space(_: Parsing, volume: &dyn Backing, format: &str) -> Result<Option<Space>, DiskError> {
    let length = usize::try_from(volume.size()).unwrap_or(usize::MAX).min(HEAD);
    let Some(mut head) = bytes(volume, 0, length)? else { return Ok(None) };
    head.resize(HEAD, 0);
    Ok(by_format(&head, format))
}

fn by_format(head: &[u8], format: &str) -> Option<Space> {
    match format {
        "ext2" | "ext3" | "ext4" => ext(head),
        "xfs" => {
            let block = big_u32(head, 4)?;
            counted(block, big_u64(head, 8)?, Some(big_u64(head, 144)?))
        }
        "btrfs" => {
            let (all, used) = (u64_at(head, 0x1_0070)?, u64_at(head, 0x1_0078)?);
            Some(Space { covered: all, free: all.checked_sub(used) })
        }
        "jfs" => jfs(head),
        "reiserfs" => {
            let (all, free) = (u32_at(head, 0x1_0000)?, u32_at(head, 0x1_0004)?);
            counted(u16_at(head, 0x1_002C)?.into(), all.into(), Some(free.into()))
        }
        "nilfs2" => {
            let block = 1024_u64.checked_shl(u32_at(head, 1044)?.min(20))?;
            let free = u64_at(head, 1104)?.checked_mul(block)?;
            Some(Space { covered: u64_at(head, 1056)?, free: Some(free) })
        }
        // The last sector is a copy of the first one, and not counted.
        "ntfs" => counted(u16_at(head, 11)?.into(), u64_at(head, 40)?.checked_add(1)?, None),
        "exfat" => exfat(head),
        "vfat" => fat(head),
        "f2fs" => f2fs(head),
        "hfs" => {
            let (all, free) = (big_u16(head, 1024 + 18)?, big_u16(head, 1024 + 34)?);
            counted(big_u32(head, 1024 + 20)?, all.into(), Some(free.into()))
        }
        "hfsplus" => {
            let (all, free) = (big_u32(head, 1024 + 44)?, big_u32(head, 1024 + 48)?);
            counted(big_u32(head, 1024 + 40)?, all, Some(free))
        }
        "swap" => {
            let pages = u64::from(u32_at(head, 1028)?);
            counted(4096, pages.checked_add(1)?, Some(pages))
        }
        _ => None,
    }
}

/// So many units of so many bytes.
fn counted(unit: u64, all: u64, free: Option<u64>) -> Option<Space> {
    let free = match free {
        Some(free) => Some(free.checked_mul(unit)?),
        None => None,
    };
    Some(Space { covered: all.checked_mul(unit)?, free })
}

fn ext(head: &[u8]) -> Option<Space> {
    let at = |field: usize| u32_at(head, 1024 + field);
    let block = 1024_u64.checked_shl(at(24)?.min(16))?;
    // The upper halves exist with the feature 64bit.
    let is_wide = at(96)? & 0x80 != 0;
    let number = |low: usize, high: usize| {
        let high = if is_wide { at(high)? } else { 0 };
        Some(u64::from(at(low)?) | u64::from(high) << 32)
    };
    counted(block, number(4, 0x150)?, Some(number(12, 0x158)?))
}

/// The aggregate, and behind it the work space of fsck and the log, whose lengths have 24 bits.
fn jfs(head: &[u8]) -> Option<Space> {
    let all = u64::from(u32_at(head, 0x8018)?).checked_mul(u64_at(head, 0x8008)?)?;
    let blocks = u64::from(u32_at(head, 0x8050)? & 0xFF_FFFF) + u64::from(u32_at(head, 0x8048)? & 0xFF_FFFF);
    Some(Space { covered: all.checked_add(blocks.checked_mul(u32_at(head, 0x8010)?.into())?)?, free: None })
}

fn exfat(head: &[u8]) -> Option<Space> {
    let sector = 1_u64.checked_shl(u32::from(*head.get(108)?))?;
    let cluster = sector.checked_shl(u32::from(*head.get(109)?))?;
    let free = u64::from(u32_at(head, 92)?).checked_mul(cluster);
    Some(Space { covered: u64_at(head, 72)?.checked_mul(sector)?, free })
}

fn fat(head: &[u8]) -> Option<Space> {
    let sector = u64::from(u16_at(head, 11)?);
    let all = match u16_at(head, 19)? {
        0 => u64::from(u32_at(head, 32)?),
        all => u64::from(all),
    };
    let table = match u16_at(head, 22)? {
        0 => u64::from(u32_at(head, 36)?),
        length => u64::from(length),
    };
    let root = (u64::from(u16_at(head, 17)?) * 32).div_ceil(sector.max(1));
    let tables = u64::from(*head.get(16)?).checked_mul(table)?;
    let data = all.checked_sub(u64::from(u16_at(head, 14)?))?.checked_sub(tables)?.checked_sub(root)?;
    counted(sector, all, Some(data))
}

fn f2fs(head: &[u8]) -> Option<Space> {
    let at = |field: usize| u32_at(head, 1024 + field);
    let block = 1_u64.checked_shl(at(16)?.min(30))?;
    let segment = block.checked_shl(at(20)?.min(30))?;
    counted(block, u64_at(head, 1024 + 36)?, None)
        .map(|space| Space { free: u64::from(at(68).unwrap_or_default()).checked_mul(segment), ..space })
}

fn big_u16(head: &[u8], at: usize) -> Option<u16> {
    array(head, at).map(u16::from_be_bytes)
}

fn big_u32(head: &[u8], at: usize) -> Option<u64> {
    array(head, at).map(u32::from_be_bytes).map(u64::from)
}

fn big_u64(head: &[u8], at: usize) -> Option<u64> {
    array(head, at).map(u64::from_be_bytes)
}
