//! Renders the superblock.

use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32};

use super::Renderer;
use crate::ext4::spec::directory::HASH_HALF_MD4;
use crate::ext4::spec::group::SIZE_64;
use crate::ext4::spec::inode::EXTRA_ISIZE;
use crate::ext4::spec::superblock::{
    CHECKSUM_CRC32C, DEFAULT_MOUNT_OPTIONS, DYNAMIC_REV, ERRORS_CONTINUE, FLAG_SIGNED_HASH, JOURNAL_BACKUP_BLOCKS,
    MAGIC, OFFSET, STATE_VALID, Superblock,
};
use crate::ext4::spec::{BLOCK_SIZE, BLOCKS_PER_GROUP, Block, INODE_SIZE, JOURNAL_INO, LOST_AND_FOUND_INO, put};

/// log2 of the groups whose inodes the kernel's allocator sees as one.
const LOG_GROUPS_PER_FLEX: u8 = 4;

impl Renderer {
    /// Block 0: the superblock at byte 1024.
    pub(super) fn render_superblock(&self, out: &mut Block) {
        let geometry = &self.layout.geometry;
        let options = &self.layout.options;
        let features = self.layout.features();
        let mut sb = Superblock::new_zeroed();
        sb.inodes_count = U32::new(geometry.inodes());
        (sb.blocks_count_lo, sb.blocks_count_hi) = split(geometry.blocks);
        (sb.free_blocks_count_lo, sb.free_blocks_count_hi) = split(geometry.blocks - geometry.free);
        sb.free_inodes_count = U32::new(self.layout.free_inodes());
        // Both sizes are 1024 << 2.
        sb.log_block_size = U32::new(2);
        sb.log_cluster_size = U32::new(2);
        sb.blocks_per_group = U32::new(BLOCKS_PER_GROUP as u32);
        sb.clusters_per_group = U32::new(BLOCKS_PER_GROUP as u32);
        sb.inodes_per_group = U32::new(geometry.inodes_per_group);
        sb.max_mnt_count = U16::new(u16::MAX);
        sb.magic = U16::new(MAGIC);
        sb.state = U16::new(STATE_VALID);
        sb.errors = U16::new(ERRORS_CONTINUE);
        sb.rev_level = U32::new(DYNAMIC_REV);
        sb.first_ino = U32::new(LOST_AND_FOUND_INO);
        sb.inode_size = U16::new(INODE_SIZE as u16);
        sb.feature_compat = U32::new(features.compat);
        sb.feature_incompat = U32::new(features.incompat);
        sb.feature_ro_compat = U32::new(features.ro_compat);
        sb.uuid = options.uuid;
        put(&mut sb.volume_name, 0, options.label.as_bytes());
        sb.hash_seed = options.hash_seed.map(U32::new);
        sb.def_hash_version = HASH_HALF_MD4;
        sb.desc_size = U16::new(if geometry.is_64bit() { SIZE_64 as u16 } else { 0 });
        sb.default_mount_opts = U32::new(DEFAULT_MOUNT_OPTIONS);
        self.set_times(&mut sb);
        sb.min_extra_isize = U16::new(EXTRA_ISIZE);
        sb.want_extra_isize = U16::new(EXTRA_ISIZE);
        sb.flags = U32::new(FLAG_SIGNED_HASH);
        sb.log_groups_per_flex = LOG_GROUPS_PER_FLEX;
        sb.checksum_type = CHECKSUM_CRC32C;
        let journal = &self.layout.regions.journal;
        let overhead = geometry.payload + (journal.end - journal.start);
        sb.overhead_clusters = U32::new(u32::try_from(overhead).unwrap_or(0));
        if !journal.is_empty() {
            sb.journal_inum = U32::new(JOURNAL_INO);
            sb.jnl_backup_type = JOURNAL_BACKUP_BLOCKS;
            self.back_up_journal(&mut sb, (journal.end - journal.start) * BLOCK_SIZE as u64);
        }
        sb.seal();
        put(out, OFFSET, &sb);
    }

    /// The time of the last write stays 0: a tree's epoch may lie in the future, which `e2fsck` would mend.
    fn set_times(&self, sb: &mut Superblock) {
        let epoch = self.layout.epoch.clamp(0, (1 << 40) - 1);
        sb.mkfs_time = U32::new(epoch as u32);
        sb.mkfs_time_hi = (epoch >> 32) as u8;
        sb.lastcheck = sb.mkfs_time;
        sb.lastcheck_hi = sb.mkfs_time_hi;
    }

    /// Copies the journal inode's extents and size, for when that inode is lost.
    fn back_up_journal(&self, sb: &mut Superblock, size: u64) {
        let root = self.journal_extent_root();
        for (word, bytes) in sb.jnl_blocks.iter_mut().zip(root.chunks_exact(4)) {
            *word = U32::new(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
        let (low, high) = split(size);
        sb.jnl_blocks[15] = high;
        sb.jnl_blocks[16] = low;
    }
}

/// The lower and upper half of a 64-bit number.
fn split(number: u64) -> (U32, U32) {
    (U32::new(number as u32), U32::new((number >> 32) as u32))
}
