//! The superblock (`struct erofs_super_block`).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where the superblock starts on the device, in bytes (`EROFS_SUPER_OFFSET`).
pub(crate) const OFFSET: usize = 1024;
/// `EROFS_SUPER_MAGIC_V1`
pub(crate) const MAGIC: u32 = 0xE0F5_E1E2;
/// Bytes of a volume name at most: the kernel wants a final NUL in its 16.
pub(crate) const LABEL_MAX: usize = 15;

/// `EROFS_FEATURE_COMPAT_*`
pub(crate) mod compat {
    /// The superblock has a checksum.
    pub(crate) const SB_CHKSUM: u32 = 0x1;
    /// Times are modification times.
    pub(crate) const MTIME: u32 = 0x2;
    /// Prefixes of attribute names are in the primary device, not in the packed inode.
    pub(crate) const PLAIN_XATTR_PFX: u32 = 0x10;
}

/// `EROFS_FEATURE_INCOMPAT_*`; some bits have two meanings, which came together.
pub(crate) mod incompat {
    /// Compressed data is at the end of its blocks, after zeros.
    pub(crate) const ZERO_PADDING: u32 = 0x1;
    /// Records of each compression algorithm follow the superblock; also: more than a block a cluster.
    pub(crate) const COMPR_CFGS: u32 = 0x2;
    /// Files are mapped chunk by chunk.
    pub(crate) const CHUNKED_FILE: u32 = 0x4;
    /// Further devices; also: two algorithms in one file.
    pub(crate) const DEVICE_TABLE: u32 = 0x8;
    /// The last compressed cluster of a file follows its inode.
    pub(crate) const ZTAILPACKING: u32 = 0x10;
    /// Tails of files, or whole files, are packed into one inode; also: clusters that files share.
    pub(crate) const FRAGMENTS: u32 = 0x20;
    /// Prefixes of attribute names are listed apart.
    pub(crate) const XATTR_PREFIXES: u32 = 0x40;
    /// Block addresses of 48 bits.
    pub(crate) const BIT48: u32 = 0x80;
}

/// 128 bytes at byte 1024 of the device.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct Superblock {
    pub(crate) magic: U32,
    pub(crate) checksum: U32,
    pub(crate) feature_compat: U32,
    pub(crate) block_bits: u8,
    /// Further parts of the superblock, of 16 bytes each.
    pub(crate) ext_slots: u8,
    /// With [`incompat::BIT48`] the upper 16 bits of `blocks`.
    pub(crate) root_nid: U16,
    pub(crate) inodes: U64,
    /// Seconds since 1970 that compact inodes count from.
    pub(crate) epoch: U64,
    pub(crate) epoch_nanoseconds: U32,
    pub(crate) blocks: U32,
    pub(crate) meta_block: U32,
    pub(crate) xattr_block: U32,
    pub(crate) uuid: [u8; 16],
    pub(crate) volume_name: [u8; 16],
    pub(crate) feature_incompat: U32,
    /// A bit for each algorithm in use; without [`incompat::COMPR_CFGS`], the window of LZ4.
    pub(crate) algorithms: U16,
    pub(crate) extra_devices: U16,
    pub(crate) device_table_slot: U16,
    pub(crate) directory_block_bits: u8,
    pub(crate) xattr_prefix_count: u8,
    pub(crate) xattr_prefix_start: U32,
    pub(crate) packed_nid: U64,
    pub(crate) xattr_filter_reserved: u8,
    pub(crate) reserved: [u8; 3],
    pub(crate) build_time: U32,
    /// With [`incompat::BIT48`] the root's number.
    pub(crate) root_nid_long: U64,
    pub(crate) reserved_tail: U64,
}

const _: () = assert!(size_of::<Superblock>() == 128);

/// The size of a device record, which is aligned to it.
pub(crate) const DEVICE_SLOT: u64 = 128;

/// Of another device (`struct erofs_deviceslot`).
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct DeviceSlot {
    pub(crate) tag: [u8; 64],
    pub(crate) blocks: U32,
    /// Its place in the addresses of the first device; 0: none.
    pub(crate) mapped_block: U32,
    pub(crate) reserved: [u8; 56],
}

const _: () = assert!(size_of::<DeviceSlot>() == DEVICE_SLOT as usize);

impl DeviceSlot {
    /// A device of `blocks` blocks, addressed by its number only.
    pub(crate) fn new(blocks: u32) -> DeviceSlot {
        DeviceSlot { tag: [0; 64], blocks: U32::new(blocks), mapped_block: U32::ZERO, reserved: [0; 56] }
    }
}

/// Offset of the checksum in the superblock.
const CHECKSUM: usize = 4;

/// The checksum of a superblock: crc32c, not inverted at the end, over its block from the superblock on, the checksum
/// itself as zeros (`erofs_superblock_csum_verify` in `fs/erofs/super.c`).
pub(crate) fn checksum(from_superblock: &[u8]) -> u32 {
    let (before, rest) = from_superblock.split_at(CHECKSUM.min(from_superblock.len()));
    let after = rest.get(4..).unwrap_or_default();
    !crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), after)
}
