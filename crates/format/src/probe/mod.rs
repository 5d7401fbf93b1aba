//! What a file is, by a few of its bytes: one of the sources that are read, or something that is known by its name and
//! not read, so that nothing is ever taken for an archive without a file in it.
//!
//! [`identify`] is a pure function. The magic numbers are in [`table`]; what takes more than one to tell (an old tar's
//! checksum, a table of partitions, a FAT) is here.

mod table;

#[cfg(test)]
mod tests;

use table::{Advice, Magic, OTHERS, Other, SOURCES};

use crate::tar;

/// Bytes from the file's start that [`identify`] looks at: as far as the superblocks of Btrfs, UFS2 and GFS2.
pub const HEAD: usize = 0x11000;
/// Bytes from the file's end that it looks at.
pub const TAIL: usize = 512;

/// An archive or a disk image that can be a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A tar archive, plain.
    Tar,
    /// What is compressed by gzip, zstd or xz: a tar archive, as nothing else that is compressed can be a source.
    CompressedTar,
    /// An ext2, ext3 or ext4 file system.
    Ext4,
    /// An EROFS file system.
    Erofs,
    /// A SquashFS file system.
    Squashfs,
}

/// What [`identify`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A source.
    Source(FileKind),
    /// Something else. The text goes on after the file's name: what it is, and what to do.
    Other(String),
    /// Zeros, as far as one looked: an archive without files, or a disk with nothing at its start.
    Zeros,
    /// Nothing that is known.
    Unknown,
}

/// What a file is, by its first [`HEAD`] bytes and its last [`TAIL`], or all that it has if it has fewer.
pub fn identify(head: &[u8], tail: &[u8]) -> Found {
    let has = |magic: Magic| at(head, magic.0, magic.1.len()) == Some(magic.1);
    if let Some((_, kind)) = SOURCES.iter().find(|(magic, _)| has(*magic)) {
        return Found::Source(*kind);
    }
    // Its magic number has two bytes only, which others may have there by chance.
    if has(table::EXT4) && has_ext4_geometry(head) {
        return Found::Source(FileKind::Ext4);
    }
    if head.first_chunk().is_some_and(tar::is_header) {
        return Found::Source(FileKind::Tar);
    }
    let ends_with = |magic: Magic| at(tail, magic.0, magic.1.len()) == Some(magic.1);
    let other = OTHERS.iter().find(|other| other.magics.iter().any(|magic| has(*magic)));
    let other = other.or_else(|| table::AT_THE_END.iter().find(|other| other.magics.iter().any(|m| ends_with(*m))));
    if let Some(other) = other {
        return Found::Other(other.text());
    }
    if has(table::EXT4) {
        return Found::Source(FileKind::Ext4);
    }
    match boot_sector(head) {
        Some(other) => Found::Other(other.text()),
        None if head.iter().all(|byte| *byte == 0) => Found::Zeros,
        None => Found::Unknown,
    }
}

/// What to say of bytes that were taken for a tar archive and are none; goes on after "it".
pub(crate) fn mistaken_for_a_tar(head: &[u8]) -> Option<String> {
    match identify(head, &[]) {
        Found::Other(text) => Some(text),
        Found::Source(FileKind::CompressedTar) => Some("is compressed twice; unpack it first".to_owned()),
        Found::Source(FileKind::Ext4) => Some(Advice::Image.text("an ext4 file system")),
        Found::Source(FileKind::Erofs) => Some(Advice::Image.text("an EROFS file system")),
        Found::Source(FileKind::Squashfs) => Some(Advice::Image.text("a SquashFS file system")),
        Found::Source(FileKind::Tar) | Found::Zeros | Found::Unknown => None,
    }
}

fn at(bytes: &[u8], from: usize, length: usize) -> Option<&[u8]> {
    bytes.get(from..from.checked_add(length)?)
}

/// Whether what follows from ext4's magic number makes sense: blocks of at most 64 KiB, inodes and blocks.
fn has_ext4_geometry(head: &[u8]) -> bool {
    let word = |offset: usize| number(head, 1024 + offset).unwrap_or(u32::MAX);
    let (inodes, blocks, log_block_size, revision) = (word(0), word(4), word(24), word(76));
    inodes != 0 && blocks != 0 && log_block_size <= 6 && revision <= 1
}

/// The little-endian 32-bit number at `offset`.
fn number(bytes: &[u8], offset: usize) -> Option<u32> {
    at(bytes, offset, 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// What has the signature of a boot sector: a FAT, whose fields make sense, a table of partitions, or a loader.
fn boot_sector(head: &[u8]) -> Option<&'static Other> {
    if at(head, 510, 2)? != [0x55, 0xaa] {
        return None;
    }
    Some(match () {
        () if is_fat(head) => &table::FAT,
        () if has_partitions(head) => &table::MBR,
        () => &table::LOADER,
    })
}

/// Whether a boot sector's fields are those of a FAT (Microsoft's "FAT: General Overview of On-Disk Format", 1.03):
/// bytes of a sector, sectors of a cluster, reserved sectors, copies of the table, media.
fn is_fat(head: &[u8]) -> bool {
    let Some(&[a, b]) = at(head, 11, 2).and_then(|bytes| bytes.first_chunk()) else { return false };
    let Some(&[cluster, reserved_low, reserved_high, tables]) = at(head, 13, 4).and_then(|b| b.first_chunk()) else {
        return false;
    };
    let media = head.get(21).copied().unwrap_or_default();
    matches!(u16::from_le_bytes([a, b]), 512 | 1024 | 2048 | 4096)
        && cluster.is_power_of_two()
        && (reserved_low, reserved_high) != (0, 0)
        && matches!(tables, 1 | 2)
        && (media == 0xf0 || media >= 0xf8)
}

/// Whether an MBR's four entries (UEFI specification 2.10, section 5.2.1) make sense, and one of them is used.
fn has_partitions(head: &[u8]) -> bool {
    let mut used = false;
    for entry in 0..4 {
        let start = 446 + 16 * entry;
        let (Some(flag), Some(kind)) = (head.get(start), head.get(start + 4)) else { return false };
        if !matches!(flag, 0 | 0x80) {
            return false;
        }
        let sectors = number(head, start + 12).unwrap_or_default();
        used |= *kind != 0 && sectors != 0;
    }
    used
}
