//! The superblocks of MD: versions 1.0, 1.1 and 1.2 (`mdp_superblock_1`), and 0.90 (`mdp_superblock_s`), of Linux's
//! include/uapi/linux/raid/md_p.h.

use inarch_block::Backing;

use crate::DiskError;
use crate::identifiers::{label, uuid};
use crate::mapped::SECTOR;
use crate::read::{array, bytes, u16_at, u32_at, u64_at};

const MAGIC: u32 = 0xA92B_4EFC;
/// Bytes that a superblock has at most.
const LENGTH: usize = 4096;
/// Where version 1 has the places of its members.
const ROLES: usize = 256;
/// The feature of version 1 by which a member is not whole yet: `MD_FEATURE_RECOVERY_OFFSET`.
const RECOVERS: u32 = 2;
/// `MD_FEATURE_RESHAPE_ACTIVE`.
const RESHAPES: u32 = 4;

/// A member of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The array's identifier.
    pub set: [u8; 16],
    /// The array's name, of version 1: with the machine's and a colon before it, or alone.
    pub full_name: Option<String>,
    /// The array's number, of version 0.90.
    pub minor: Option<u32>,
    /// RAID level; -1 is linear.
    pub level: i32,
    /// How the level orders chunks.
    pub layout: u32,
    /// How many members the array has.
    pub members: u32,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Bytes that a mirror uses of each member.
    pub used: u64,
    /// Where the member's data starts, in bytes.
    pub start: u64,
    /// How long its data is.
    pub length: u64,
    /// Its place among the members; none of a spare or failed one.
    pub role: Option<u32>,
    /// How often the array's state has changed.
    pub events: u64,
    /// Whether the member has all of its data.
    pub is_whole: bool,
    /// Whether the array is being changed to another shape.
    pub reshapes: bool,
}

/// The superblock of a member, wherever it is; none if the volume is no member.
pub fn read(volume: &dyn Backing) -> Result<Option<Superblock>, DiskError> {
    // Versions 1.2 and 1.1.
    for sector in [8, 0] {
        if let Some(found) = first_at(volume, sector)? {
            return Ok(Some(found));
        }
    }
    at_the_end(volume)
}

/// A superblock of version 1.0 or 0.90. The rest of the volume may not look like a member's.
pub fn at_the_end(volume: &dyn Backing) -> Result<Option<Superblock>, DiskError> {
    if let Some(sector) = (volume.size() / SECTOR).checked_sub(16)
        && let Some(found) = first_at(volume, sector & !7)?
    {
        return Ok(Some(found));
    }
    let Some(at) = (volume.size() & !0xFFFF).checked_sub(0x1_0000) else { return Ok(None) };
    Ok(bytes(volume, at, LENGTH)?.and_then(|block| old(&block, at)))
}

/// One of version 1 in a sector.
fn first_at(volume: &dyn Backing, sector: u64) -> Result<Option<Superblock>, DiskError> {
    let at = sector.saturating_mul(SECTOR);
    let length = volume.size().saturating_sub(at).min(LENGTH as u64);
    Ok(bytes(volume, at, length as usize)?.and_then(|block| first(&block, sector)))
}

/// The sum of a superblock's words without the one that holds the sum.
fn sum(block: &[u8], own: usize) -> u32 {
    let (words, rest) = block.as_chunks::<4>();
    let words =
        words.iter().enumerate().filter(|(place, _)| place * 4 != own).map(|(_, word)| u32::from_le_bytes(*word));
    let sum = words.fold(0u64, |sum, word| sum + u64::from(word)) + u16_at(rest, 0).map_or(0, u64::from);
    (sum as u32).wrapping_add((sum >> 32) as u32)
}

/// A superblock of version 1 that was read from `sector`.
fn first(block: &[u8], sector: u64) -> Option<Superblock> {
    if (u32_at(block, 0)?, u32_at(block, 4)?, u64_at(block, 144)?) != (MAGIC, 1, sector) {
        return None;
    }
    let places = u32_at(block, 220)? as usize;
    let all = block.get(..places.checked_mul(2)?.checked_add(ROLES)?)?;
    if sum(all, 216) != u32_at(block, 216)? {
        return None;
    }
    let bytes = |at: usize| u64_at(block, at)?.checked_mul(SECTOR);
    let number = u32_at(block, 160)? as usize;
    let role = all.get(ROLES..)?.as_chunks::<2>().0.get(number).map(|role| u16::from_le_bytes(*role));
    let features = u32_at(block, 8)?;
    Some(Superblock {
        set: array(block, 16)?,
        full_name: block.get(32..64).and_then(label),
        minor: None,
        level: u32_at(block, 72)?.cast_signed(),
        layout: u32_at(block, 76)?,
        members: u32_at(block, 92)?,
        chunk: u64::from(u32_at(block, 88)?) * SECTOR,
        used: bytes(80)?,
        start: bytes(128)?,
        length: bytes(136)?,
        // The places from 0xFF00 are of spares, failed members and journals.
        role: role.filter(|role| *role < 0xFF00).map(u32::from),
        events: u64_at(block, 200)?,
        is_whole: features & RECOVERS == 0,
        reshapes: features & RESHAPES != 0,
    })
}

/// A superblock of version 0.90 at byte `at`, from a little-endian machine. All before it is data.
fn old(block: &[u8], at: u64) -> Option<Superblock> {
    let word = |place: usize| u32_at(block, place * 4);
    if (word(0)?, word(1)?) != (MAGIC, 0) || sum(block, 38 * 4) != word(38)? {
        return None;
    }
    let mut set = [0; 16];
    let words = [word(5)?, word(13)?, word(14)?, word(15)?];
    set.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_be_bytes());
    // The description of this member: number, major, minor, place, state with the bit "in sync".
    let (role, state) = (word(992 + 3)?, word(992 + 4)?);
    Some(Superblock {
        set,
        full_name: None,
        minor: word(11),
        level: word(7)?.cast_signed(),
        layout: word(64)?,
        members: word(10)?,
        chunk: word(65)?.into(),
        used: u64::from(word(8)?) * 1024,
        start: 0,
        length: at,
        role: Some(role).filter(|role| *role < word(10).unwrap_or_default() && state & 1 == 0),
        events: u64::from(word(39)?) | u64::from(word(40)?) << 32,
        is_whole: state & 4 != 0,
        reshapes: word(2)? >= 91,
    })
}

impl Superblock {
    /// The identifier as mdadm prints it, with hyphens.
    pub fn id(&self) -> Option<String> {
        uuid(&self.set)
    }

    /// The array's name alone.
    pub fn name(&self) -> Option<&str> {
        let full = self.full_name.as_deref()?;
        Some(full.split_once(':').map_or(full, |(_, name)| name))
    }

    /// The name of the level.
    pub fn level_name(&self) -> String {
        match self.level {
            -1 => "linear".to_owned(),
            level @ (0 | 1 | 4 | 5 | 6 | 10) => format!("raid{level}"),
            level => format!("level {level}"),
        }
    }
}
