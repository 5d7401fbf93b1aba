//! The superblock (`struct btrfs_super_block`).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Where its copies are, in bytes (`btrfs_sb_offset`).
pub(crate) const OFFSETS: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// `BTRFS_SUPER_INFO_SIZE`: bytes of it, all of them under its checksum.
pub(crate) const SIZE: usize = 4096;
/// `BTRFS_MAGIC`
pub(crate) const MAGIC: [u8; 8] = *b"_BHRfS_M";
/// Where the magic number is within it.
pub(crate) const MAGIC_AT: u64 = 64;
/// `BTRFS_SYSTEM_CHUNK_ARRAY_SIZE`
pub(crate) const SYSTEM_CHUNKS: usize = 2048;

/// Incompatible features (`BTRFS_FEATURE_INCOMPAT_*`): those that change what a reader meets, with their names.
pub(crate) mod incompat {
    /// The blocks of trees have another UUID than the superblock.
    pub(crate) const METADATA_UUID: u64 = 1 << 10;

    /// Those that this reader knows: mixed backrefs, default subvolume, mixed groups, LZO, zstd, big metadata, extended
    /// references, RAID5/6 and RAID1C3/4 (refused where they are met), skinny metadata, no holes, the UUID above, and simple
    /// quotas.
    pub(crate) const KNOWN: u64 = 0xfff | 1 << 16;

    /// The names of others.
    pub(crate) const NAMES: [(u64, &str); 3] =
        [(1 << 12, "zones"), (1 << 13, "an extent tree of version 2"), (1 << 14, "a RAID stripe tree")];
}

/// Features that a kernel without them may read (`BTRFS_FEATURE_COMPAT_RO_*`).
pub(crate) mod compat_ro {
    /// The counts of chunks have a tree of their own.
    pub(crate) const BLOCK_GROUP_TREE: u64 = 1 << 3;
}

/// `struct btrfs_dev_item`
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Device {
    pub(crate) id: U64,
    pub(crate) total_bytes: U64,
    pub(crate) bytes_used: U64,
    align_width_sector: [U32; 3],
    kind: U64,
    generation: U64,
    start_offset: U64,
    group: U32,
    speeds: [u8; 2],
    uuid: [u8; 16],
    fsid: [u8; 16],
}

/// As far as it is read.
#[derive(Clone, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Superblock {
    pub(crate) checksum: [u8; 32],
    pub(crate) fsid: [u8; 16],
    /// Its own offset on the device.
    pub(crate) address: U64,
    pub(crate) flags: U64,
    pub(crate) magic: [u8; 8],
    pub(crate) generation: U64,
    /// Logical address of the root tree.
    pub(crate) root: U64,
    /// Logical address of the chunk tree.
    pub(crate) chunk_root: U64,
    /// Logical address of the log of fsync(2), or 0.
    pub(crate) log_root: U64,
    unused: U64,
    pub(crate) total_bytes: U64,
    pub(crate) bytes_used: U64,
    /// The directory in the root tree that has the default subvolume.
    pub(crate) root_directory: U64,
    pub(crate) devices: U64,
    pub(crate) sector_size: U32,
    pub(crate) node_size: U32,
    leaf_size: U32,
    stripe_size: U32,
    /// Bytes of `system_chunks` that are used.
    pub(crate) system_chunks_size: U32,
    pub(crate) chunk_root_generation: U64,
    pub(crate) compat: U64,
    pub(crate) compat_ro: U64,
    pub(crate) incompat: U64,
    /// 0: CRC-32C, 1: XXH64, 2: SHA-256, 3: BLAKE2b.
    pub(crate) checksum_kind: U16,
    pub(crate) root_level: u8,
    pub(crate) chunk_root_level: u8,
    log_root_level: u8,
    pub(crate) device: Device,
    label: [u8; 256],
    cache_generation: U64,
    uuid_tree_generation: U64,
    /// The UUID in the blocks of trees, with that feature.
    pub(crate) metadata_uuid: [u8; 16],
    reserved: [U64; 28],
    /// Keys and chunks, one behind the other: what must be known to read the chunk tree.
    pub(crate) system_chunks: [u8; SYSTEM_CHUNKS],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_kernel_has_them() {
        use std::mem::offset_of;
        assert_eq!(offset_of!(Superblock, magic) as u64, MAGIC_AT);
        assert_eq!(offset_of!(Superblock, checksum_kind), 0xc4);
        assert_eq!(offset_of!(Superblock, device), 0xc9);
        assert_eq!(offset_of!(Superblock, label), 0x12b);
        assert_eq!(offset_of!(Superblock, metadata_uuid), 0x23b);
        assert_eq!(offset_of!(Superblock, system_chunks), 0x32b);
    }
}
