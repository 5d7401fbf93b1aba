//! crc32c as `metadata_csum` uses it (`ext4_chksum` in `fs/ext4/ext4.h`): the raw register, never inverted.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

/// Continues the raw crc32c register `seed` over `data`.
pub(crate) fn crc32c(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}

/// The seed of all checksums of one file system, `s_csum_seed`: its UUID's checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FsSeed(pub(crate) u32);

impl FsSeed {
    /// Follows `ext4_fill_super`, for a file system without `metadata_csum_seed`.
    pub(crate) fn new(uuid: &[u8; 16]) -> FsSeed {
        FsSeed(crc32c(!0, uuid))
    }

    /// The seed of what belongs to inode `ino` of generation 0: itself, its directory and extent blocks.
    pub(crate) fn inode(self, ino: u32) -> u32 {
        self.inode_of(ino, 0)
    }

    /// The seed of what belongs to inode `ino` of any generation.
    pub(crate) fn inode_of(self, ino: u32, generation: u32) -> u32 {
        let with_ino = crc32c(self.0, U32::new(ino).as_bytes());
        crc32c(with_ino, U32::new(generation).as_bytes())
    }

    /// Checksum of a bitmap's bytes; the caller passes the part that counts.
    pub(crate) fn bitmap(self, bytes: &[u8]) -> u32 {
        crc32c(self.0, bytes)
    }

    /// Checksum of a group descriptor whose own checksum field, two bytes at 30, is zero (`ext4_group_desc_csum`).
    pub(crate) fn group_descriptor(self, group: u32, descriptor: &[u8]) -> U16 {
        let with_group = crc32c(self.0, U32::new(group).as_bytes());
        U16::new(crc32c(with_group, descriptor) as u16)
    }

    /// Checksum of an attribute block at `block` whose `h_checksum` is zero (`ext4_xattr_block_csum`).
    pub(crate) fn xattr_block(self, block: u64, bytes: &[u8]) -> U32 {
        let with_block = crc32c(self.0, U64::new(block).as_bytes());
        U32::new(crc32c(with_block, bytes))
    }
}

/// CRC-16 with the polynomial 0x8005, lowest bit first (`crc16` in `lib/crc16.c`), which `uninit_bg` uses for group
/// descriptors.
pub(crate) fn crc16(seed: u16, data: &[u8]) -> u16 {
    data.iter().fold(seed, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xA001 } else { 0 })
    })
}
