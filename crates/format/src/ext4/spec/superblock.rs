//! The superblock (`struct ext4_super_block` in `fs/ext4/ext4.h`).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{FsSeed, crc32c};

/// Where the superblock starts on the device, in bytes.
pub(crate) const OFFSET: usize = 1024;
/// `EXT4_SUPER_MAGIC`
pub(crate) const MAGIC: u16 = 0xEF53;
/// `EXT4_VALID_FS`: unmounted cleanly.
pub(crate) const STATE_VALID: u16 = 1;
/// `EXT4_ERROR_FS`: damage was found.
pub(crate) const STATE_ERROR: u16 = 2;
/// `EXT4_ERRORS_CONTINUE`
pub(crate) const ERRORS_CONTINUE: u16 = 1;
/// `EXT4_DYNAMIC_REV`
pub(crate) const DYNAMIC_REV: u32 = 1;
/// `EXT4_CRC32C_CHKSUM`
pub(crate) const CHECKSUM_CRC32C: u8 = 1;
/// `EXT2_FLAGS_SIGNED_HASH`: names are hashed as signed chars, on every architecture.
pub(crate) const FLAG_SIGNED_HASH: u32 = 1;
/// `EXT4_DEFM_XATTR_USER | EXT4_DEFM_ACL`
pub(crate) const DEFAULT_MOUNT_OPTIONS: u32 = 0x4 | 0x8;
/// `s_jnl_backup_type`: `s_jnl_blocks` holds the journal inode's block map.
pub(crate) const JOURNAL_BACKUP_BLOCKS: u8 = 1;

/// `EXT4_FEATURE_COMPAT_*`
pub(crate) mod compat {
    pub(crate) const HAS_JOURNAL: u32 = 0x4;
    pub(crate) const EXT_ATTR: u32 = 0x8;
    pub(crate) const DIR_INDEX: u32 = 0x20;
    pub(crate) const SPARSE_SUPER2: u32 = 0x200;
}

/// `EXT4_FEATURE_INCOMPAT_*`
pub(crate) mod incompat {
    pub(crate) const COMPRESSION: u32 = 0x1;
    pub(crate) const FILETYPE: u32 = 0x2;
    pub(crate) const RECOVER: u32 = 0x4;
    pub(crate) const JOURNAL_DEV: u32 = 0x8;
    pub(crate) const META_BG: u32 = 0x10;
    pub(crate) const EXTENTS: u32 = 0x40;
    pub(crate) const BIT64: u32 = 0x80;
    pub(crate) const MMP: u32 = 0x100;
    pub(crate) const FLEX_BG: u32 = 0x200;
    pub(crate) const EA_INODE: u32 = 0x400;
    pub(crate) const DIRDATA: u32 = 0x1000;
    pub(crate) const CSUM_SEED: u32 = 0x2000;
    pub(crate) const LARGEDIR: u32 = 0x4000;
    pub(crate) const INLINE_DATA: u32 = 0x8000;
    pub(crate) const ENCRYPT: u32 = 0x1_0000;
    pub(crate) const CASEFOLD: u32 = 0x2_0000;
}

/// `EXT4_FEATURE_RO_COMPAT_*`
pub(crate) mod ro_compat {
    pub(crate) const SPARSE_SUPER: u32 = 0x1;
    pub(crate) const LARGE_FILE: u32 = 0x2;
    pub(crate) const HUGE_FILE: u32 = 0x8;
    pub(crate) const GDT_CSUM: u32 = 0x10;
    pub(crate) const DIR_NLINK: u32 = 0x20;
    pub(crate) const EXTRA_ISIZE: u32 = 0x40;
    pub(crate) const METADATA_CSUM: u32 = 0x400;
}

/// 1024 bytes at byte 1024 of the device. Fields of features that are never written are folded into reserved runs.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Superblock {
    pub(crate) inodes_count: U32,
    pub(crate) blocks_count_lo: U32,
    pub(crate) reserved_blocks_count_lo: U32,
    pub(crate) free_blocks_count_lo: U32,
    pub(crate) free_inodes_count: U32,
    pub(crate) first_data_block: U32,
    pub(crate) log_block_size: U32,
    pub(crate) log_cluster_size: U32,
    pub(crate) blocks_per_group: U32,
    pub(crate) clusters_per_group: U32,
    pub(crate) inodes_per_group: U32,
    pub(crate) mtime: U32,
    pub(crate) wtime: U32,
    pub(crate) mnt_count: U16,
    pub(crate) max_mnt_count: U16,
    pub(crate) magic: U16,
    pub(crate) state: U16,
    pub(crate) errors: U16,
    pub(crate) minor_rev_level: U16,
    pub(crate) lastcheck: U32,
    pub(crate) checkinterval: U32,
    pub(crate) creator_os: U32,
    pub(crate) rev_level: U32,
    pub(crate) def_resuid: U16,
    pub(crate) def_resgid: U16,
    pub(crate) first_ino: U32,
    pub(crate) inode_size: U16,
    pub(crate) block_group_nr: U16,
    pub(crate) feature_compat: U32,
    pub(crate) feature_incompat: U32,
    pub(crate) feature_ro_compat: U32,
    pub(crate) uuid: [u8; 16],
    pub(crate) volume_name: [u8; 16],
    pub(crate) last_mounted: [u8; 64],
    pub(crate) algorithm_usage_bitmap: U32,
    pub(crate) prealloc_blocks: u8,
    pub(crate) prealloc_dir_blocks: u8,
    pub(crate) reserved_gdt_blocks: U16,
    pub(crate) journal_uuid: [u8; 16],
    pub(crate) journal_inum: U32,
    pub(crate) journal_dev: U32,
    pub(crate) last_orphan: U32,
    pub(crate) hash_seed: [U32; 4],
    pub(crate) def_hash_version: u8,
    pub(crate) jnl_backup_type: u8,
    pub(crate) desc_size: U16,
    pub(crate) default_mount_opts: U32,
    pub(crate) first_meta_bg: U32,
    pub(crate) mkfs_time: U32,
    pub(crate) jnl_blocks: [U32; 17],
    pub(crate) blocks_count_hi: U32,
    pub(crate) reserved_blocks_count_hi: U32,
    pub(crate) free_blocks_count_hi: U32,
    pub(crate) min_extra_isize: U16,
    pub(crate) want_extra_isize: U16,
    pub(crate) flags: U32,
    /// RAID geometry and multiple-mount protection.
    pub(crate) reserved_raid: [u8; 16],
    pub(crate) log_groups_per_flex: u8,
    pub(crate) checksum_type: u8,
    pub(crate) reserved_pad: U16,
    pub(crate) kbytes_written: U64,
    /// Snapshots, the error log, and default mount options as text.
    pub(crate) reserved_log: [u8; 192],
    pub(crate) usr_quota_inum: U32,
    pub(crate) grp_quota_inum: U32,
    pub(crate) overhead_clusters: U32,
    pub(crate) backup_bgs: [U32; 2],
    /// Encryption, `s_lpf_ino`, and project quota.
    pub(crate) reserved_encryption: [u8; 28],
    pub(crate) checksum_seed: U32,
    pub(crate) wtime_hi: u8,
    pub(crate) mtime_hi: u8,
    pub(crate) mkfs_time_hi: u8,
    pub(crate) lastcheck_hi: u8,
    /// Error codes, the encoding of names, the orphan file, and the kernel's own reserve.
    pub(crate) reserved_tail: [u8; 388],
    pub(crate) checksum: U32,
}

const _: () = assert!(size_of::<Superblock>() == 1024);

impl Superblock {
    /// The superblock in the 1024 bytes at [`OFFSET`]; `None` without its magic number.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Superblock> {
        Superblock::read_from_bytes(bytes).ok().filter(|superblock| superblock.magic.get() == MAGIC)
    }

    /// Whether its checksum is right, where it has one (`ext4_superblock_csum_verify`).
    pub(crate) fn checksum_matches(&self) -> bool {
        let bytes = self.as_bytes();
        let covered = bytes.split_at(bytes.len() - size_of::<U32>()).0;
        !self.has_ro_compat(ro_compat::METADATA_CSUM) || self.checksum.get() == crc32c(!0, covered)
    }

    /// Whether a compatible feature is on. File systems of revision 0 have none (`ext4_has_feature_*`).
    pub(crate) fn has_compat(&self, feature: u32) -> bool {
        self.feature_compat.get() & feature != 0
    }

    /// Whether an incompatible feature is on.
    pub(crate) fn has_incompat(&self, feature: u32) -> bool {
        self.feature_incompat.get() & feature != 0
    }

    /// Whether a feature that only writers must know is on.
    pub(crate) fn has_ro_compat(&self, feature: u32) -> bool {
        self.feature_ro_compat.get() & feature != 0
    }

    /// The seed of its checksums: kept apart from the UUID with `metadata_csum_seed`.
    pub(crate) fn seed(&self) -> FsSeed {
        match self.has_incompat(incompat::CSUM_SEED) {
            true => FsSeed(self.checksum_seed.get()),
            false => FsSeed::new(&self.uuid),
        }
    }

    /// Sets the checksum, the last step (`ext4_superblock_csum`).
    pub(crate) fn seal(&mut self) {
        let bytes = self.as_bytes();
        self.checksum = U32::new(crc32c(!0, &bytes[..bytes.len() - 4]));
    }
}
