//! Group descriptors (`struct ext4_group_desc` in `fs/ext4/ext4.h`).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{FsSeed, crc16, crc32c};

/// Bytes of a descriptor without the `64bit` feature (`EXT4_MIN_DESC_SIZE`).
pub(crate) const SIZE_32: usize = 32;
/// Bytes of a descriptor with it (`EXT4_MIN_DESC_SIZE_64BIT`).
pub(crate) const SIZE_64: usize = 64;

/// Offset of `bg_checksum`.
const CHECKSUM: usize = 30;

/// `EXT4_BG_*`
pub(crate) mod flags {
    /// The inode bitmap and table are not written: all free.
    pub(crate) const INODE_UNINIT: u16 = 1;
    /// The block bitmap is not written: all free but the group's own metadata.
    pub(crate) const BLOCK_UNINIT: u16 = 2;
    /// The unused part of the inode table is zeros already.
    pub(crate) const INODE_ZEROED: u16 = 4;
}

/// The 64-byte form; the 32-byte form is its first half.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct GroupDescriptor {
    pub(crate) block_bitmap_lo: U32,
    pub(crate) inode_bitmap_lo: U32,
    pub(crate) inode_table_lo: U32,
    pub(crate) free_blocks_lo: U16,
    pub(crate) free_inodes_lo: U16,
    pub(crate) used_dirs_lo: U16,
    pub(crate) flags: U16,
    pub(crate) exclude_bitmap_lo: U32,
    pub(crate) block_bitmap_csum_lo: U16,
    pub(crate) inode_bitmap_csum_lo: U16,
    pub(crate) itable_unused_lo: U16,
    pub(crate) checksum: U16,
    pub(crate) block_bitmap_hi: U32,
    pub(crate) inode_bitmap_hi: U32,
    pub(crate) inode_table_hi: U32,
    pub(crate) free_blocks_hi: U16,
    pub(crate) free_inodes_hi: U16,
    pub(crate) used_dirs_hi: U16,
    pub(crate) itable_unused_hi: U16,
    pub(crate) exclude_bitmap_hi: U32,
    pub(crate) block_bitmap_csum_hi: U16,
    pub(crate) inode_bitmap_csum_hi: U16,
    pub(crate) reserved: U32,
}

const _: () = assert!(size_of::<GroupDescriptor>() == SIZE_64);

impl GroupDescriptor {
    /// The first `size` bytes ([`SIZE_32`] or [`SIZE_64`]) with their checksum, for group `group`.
    pub(crate) fn seal(&mut self, seed: FsSeed, group: u32, size: usize) -> &[u8] {
        self.checksum = U16::ZERO;
        self.checksum = seed.group_descriptor(group, &self.as_bytes()[..size]);
        &self.as_bytes()[..size]
    }

    /// The descriptor in `bytes`, which are as many as the file system gives each: the fields beyond are zero.
    pub(crate) fn parse(bytes: &[u8]) -> GroupDescriptor {
        let mut whole = [0; SIZE_64];
        whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        zerocopy::transmute!(whole)
    }

    /// First block of the group's inode table.
    pub(crate) fn inode_table(&self) -> u64 {
        u64::from(self.inode_table_hi.get()) << 32 | u64::from(self.inode_table_lo.get())
    }
}

/// Whether the checksum of group `group`'s descriptor, all its bytes given, is right by `metadata_csum`
/// (`ext4_group_desc_csum_verify`).
pub(crate) fn checksum_matches(descriptor: &[u8], seed: FsSeed, group: u32) -> bool {
    let Some((before, stored, after)) = split(descriptor) else { return false };
    let with_group = crc32c(seed.0, U32::new(group).as_bytes());
    let checksum = crc32c(crc32c(crc32c(with_group, before), &[0; 2]), after);
    checksum as u16 == stored
}

/// The same by `uninit_bg`, which takes the UUID itself and another polynomial.
pub(crate) fn crc16_matches(descriptor: &[u8], uuid: &[u8; 16], group: u32) -> bool {
    let Some((before, stored, after)) = split(descriptor) else { return false };
    let with_group = crc16(crc16(!0, uuid), U32::new(group).as_bytes());
    crc16(crc16(with_group, before), after) == stored
}

/// A descriptor's bytes before and after its checksum.
fn split(descriptor: &[u8]) -> Option<(&[u8], u16, &[u8])> {
    let (before, rest) = descriptor.split_at_checked(CHECKSUM)?;
    let (stored, after) = U16::read_from_prefix(rest).ok()?;
    Some((before, stored.get(), after))
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    /// The only group of a file system that mke2fs 1.47.0 made with the UUID 01020304-0506-0708-090a-0b0c0d0e0f10,
    /// after Linux 6.18 had created two files.
    #[test]
    fn a_descriptor_is_as_the_kernel_writes_it() {
        let mut descriptor = GroupDescriptor::new_zeroed();
        descriptor.block_bitmap_lo = U32::new(2);
        descriptor.inode_bitmap_lo = U32::new(18);
        descriptor.inode_table_lo = U32::new(34);
        descriptor.free_blocks_lo = U16::new(3830);
        descriptor.free_inodes_lo = U16::new(4083);
        descriptor.used_dirs_lo = U16::new(2);
        descriptor.flags = U16::new(flags::INODE_ZEROED);
        descriptor.block_bitmap_csum_lo = U16::new(0xc2d9);
        descriptor.inode_bitmap_csum_lo = U16::new(0x27a0);
        descriptor.itable_unused_lo = U16::new(4083);
        let bytes = descriptor.seal(FsSeed::new(&std::array::from_fn(|i| i as u8 + 1)), 0, SIZE_32);
        assert_eq!(bytes[..8], [2, 0, 0, 0, 0x12, 0, 0, 0]);
        assert_eq!(bytes[24..], [0xd9, 0xc2, 0xa0, 0x27, 0xf3, 0x0f, 0x80, 0xab]);
    }
}
