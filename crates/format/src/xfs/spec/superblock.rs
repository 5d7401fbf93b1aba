//! The superblock (`struct xfs_dsb` in `fs/xfs/libxfs/xfs_format.h`).

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// `XFS_SB_MAGIC`
pub(crate) const MAGIC: [u8; 4] = *b"XFSB";
/// Where its checksum is.
pub(crate) const CHECKSUM: usize = 224;

/// Bits of `versionnum`; the lowest four are the version itself.
pub(crate) mod version {
    pub(crate) const DIRV2: u16 = 0x2000;
    /// Names are looked up without regard to ASCII case.
    pub(crate) const BORG: u16 = 0x4000;
    pub(crate) const MOREBITS: u16 = 0x8000;
}

/// `XFS_SB_VERSION2_FTYPE` of `features2`: entries of directories have a type.
pub(crate) const FEATURES2_FTYPE: u32 = 0x200;

/// `XFS_SB_FEAT_INCOMPAT_*`, with names for messages.
pub(crate) mod incompat {
    pub(crate) const FTYPE: u32 = 1 << 0;
    pub(crate) const SPARSE_INODES: u32 = 1 << 1;
    pub(crate) const META_UUID: u32 = 1 << 2;
    pub(crate) const BIGTIME: u32 = 1 << 3;
    pub(crate) const NEEDS_REPAIR: u32 = 1 << 4;
    pub(crate) const NREXT64: u32 = 1 << 5;
    pub(crate) const EXCHANGE_RANGE: u32 = 1 << 6;
    pub(crate) const PARENT: u32 = 1 << 7;
    pub(crate) const METADIR: u32 = 1 << 8;
    /// What can be read.
    pub(crate) const KNOWN: u32 =
        FTYPE | SPARSE_INODES | META_UUID | BIGTIME | NEEDS_REPAIR | NREXT64 | EXCHANGE_RANGE | PARENT | METADIR;
    /// The names of others.
    pub(crate) const OTHERS: [(u32, &str); 2] = [(1 << 9, "zoned"), (1 << 10, "zone gaps")];
}

/// The superblock.
#[derive(Clone, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Superblock {
    pub(crate) magic: [u8; 4],
    pub(crate) block_size: U32,
    /// Blocks of the file system.
    pub(crate) blocks: U64,
    realtime_blocks: [u8; 16],
    pub(crate) uuid: [u8; 16],
    /// The first block of the log; 0 where it is on a device of its own.
    pub(crate) log_start: U64,
    pub(crate) root_ino: U64,
    realtime: [u8; 20],
    /// Blocks of an allocation group; the last one may have fewer.
    pub(crate) ag_blocks: U32,
    pub(crate) ag_count: U32,
    realtime_bitmap_blocks: U32,
    pub(crate) log_blocks: U32,
    pub(crate) version: U16,
    pub(crate) sector_size: U16,
    pub(crate) inode_size: U16,
    pub(crate) inodes_per_block: U16,
    label: [u8; 12],
    pub(crate) block_log: u8,
    sector_log: u8,
    pub(crate) inode_log: u8,
    pub(crate) inodes_per_block_log: u8,
    /// The bits of a block's number within its allocation group.
    pub(crate) ag_blocks_log: u8,
    realtime_extent_log: u8,
    /// Nonzero while mkfs is at work.
    pub(crate) in_progress: u8,
    pub(crate) inode_percentage: u8,
    pub(crate) inodes: U64,
    pub(crate) free_inodes: U64,
    pub(crate) free_blocks: U64,
    free_realtime: U64,
    quota: [u8; 32],
    /// A directory's block has `1 << directory_log` blocks.
    pub(crate) directory_log: u8,
    log_sector_log: u8,
    log_sector_size: U16,
    log_unit: U32,
    pub(crate) features2: U32,
    /// Where older systems wrote `features2` by mistake.
    pub(crate) bad_features2: U32,
    compat: U32,
    ro_compat: U32,
    pub(crate) incompat: U32,
    log_incompat: U32,
    checksum: [u8; 4],
    sparse_alignment: U32,
    project_quota_ino: U64,
    last_sequence: U64,
    /// The UUID in metadata, if [`incompat::META_UUID`] is set.
    pub(crate) meta_uuid: [u8; 16],
}

impl Superblock {
    /// The superblock at the start of `bytes`; `None` without its magic number.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Superblock> {
        let (superblock, _) = Superblock::read_from_prefix(bytes).ok()?;
        (superblock.magic == MAGIC).then_some(superblock)
    }

    /// All inodes that there can be, and those that are not in use, as `xfs_fs_statfs` counts them: free blocks may become inodes, up to a part of
    /// the file system.
    pub(crate) fn inodes_for_files(&self) -> (u64, u64) {
        let (allocated, in_block) = (self.inodes.get(), u64::from(self.inodes_per_block.get()));
        let used = allocated.saturating_sub(self.free_inodes.get());
        let possible = allocated.saturating_add(self.free_blocks.get().saturating_mul(in_block));
        let percent = u64::from(self.inode_percentage.min(100));
        let most =
            (self.blocks.get() / 100).saturating_mul(percent).saturating_add(self.blocks.get() % 100 * percent / 100);
        let most = if percent == 0 { u64::MAX } else { most.saturating_mul(in_block) };
        let all = possible.min(most).max(allocated);
        (all, all.saturating_sub(used))
    }

    /// The version: 5 has checksums.
    pub(crate) fn number(&self) -> u16 {
        self.version.get() & 0xF
    }

    /// Whether metadata has checksums.
    pub(crate) fn is_sealed(&self) -> bool {
        self.number() == 5
    }

    /// Whether version 5 has an incompatible feature.
    pub(crate) fn has_incompat(&self, bit: u32) -> bool {
        self.is_sealed() && self.incompat.get() & bit != 0
    }

    /// Whether entries of directories have a type (`xfs_has_ftype`).
    pub(crate) fn has_types(&self) -> bool {
        let features2 = self.features2.get() | self.bad_features2.get();
        let has_more = self.version.get() & version::MOREBITS != 0;
        match self.is_sealed() {
            true => self.has_incompat(incompat::FTYPE),
            false => has_more && features2 & FEATURES2_FTYPE != 0,
        }
    }

    /// The UUID that metadata has.
    pub(crate) fn metadata_uuid(&self) -> [u8; 16] {
        if self.has_incompat(incompat::META_UUID) { self.meta_uuid } else { self.uuid }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_kernel_has_them() {
        assert_eq!(size_of::<Superblock>(), 264);
        assert_eq!(offset_of!(Superblock, log_start), 48);
        assert_eq!(offset_of!(Superblock, ag_blocks), 84);
        assert_eq!(offset_of!(Superblock, version), 100);
        assert_eq!(offset_of!(Superblock, block_log), 120);
        assert_eq!(offset_of!(Superblock, inodes), 128);
        assert_eq!(offset_of!(Superblock, directory_log), 192);
        assert_eq!(offset_of!(Superblock, incompat), 216);
        assert_eq!(offset_of!(Superblock, checksum), CHECKSUM);
    }
}
