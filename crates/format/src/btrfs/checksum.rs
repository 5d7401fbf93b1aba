//! Checksums of metadata (`fs/btrfs/fs.c`, `btrfs_csums`).

use sha2::{Digest as _, Sha256};
use twox_hash::XxHash64;

/// How a file system's metadata is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    Crc32c,
    XxHash64,
    Sha256,
    /// BLAKE2b: not checked.
    Blake2b,
}

impl Checksum {
    /// The one with a number of the superblock.
    pub(super) fn from_number(number: u16) -> Option<Checksum> {
        Some(match number {
            0 => Checksum::Crc32c,
            1 => Checksum::XxHash64,
            2 => Checksum::Sha256,
            3 => Checksum::Blake2b,
            _ => return None,
        })
    }

    /// Whether a structure that begins with a field of 32 bytes for its checksum has the right one there.
    pub(super) fn matches(self, structure: &[u8]) -> bool {
        let Some((stored, bytes)) = structure.split_first_chunk::<32>() else { return false };
        match self {
            Checksum::Crc32c => stored.starts_with(&crc32c::crc32c(bytes).to_le_bytes()),
            Checksum::XxHash64 => stored.starts_with(&XxHash64::oneshot(0, bytes).to_le_bytes()),
            Checksum::Sha256 => stored[..] == Sha256::digest(bytes)[..],
            Checksum::Blake2b => true,
        }
    }
}
