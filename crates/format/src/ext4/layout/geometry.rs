//! Computes the number of block groups, and the place of the fixed metadata.

use std::ops::Range;

use crate::ext4::layout::PlanError;
use crate::ext4::spec::{BLOCK_SIZE, BLOCKS_PER_GROUP, INODES_PER_BLOCK, MAX_INODES_PER_GROUP, group};

/// What the device must hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Inodes in use, the reserved ones included.
    pub(crate) used_inodes: u64,
    /// Inodes for what the guest creates.
    pub(crate) free_inodes: u64,
    /// Blocks after the inode tables.
    pub(crate) payload: u64,
    /// Blocks for what the guest writes.
    pub(crate) free_blocks: u64,
}

/// The solved layout; every number is in blocks unless it says otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) blocks: u64,
    pub(crate) groups: u32,
    pub(crate) inodes_per_group: u32,
    /// Bytes of a group descriptor: 64 from 2^32 blocks on, else 32.
    pub(crate) descriptor_size: usize,
    /// First block of the block bitmaps: one block a group.
    pub(crate) block_bitmaps: u64,
    /// First block of the inode bitmaps: one block a group.
    pub(crate) inode_bitmaps: u64,
    /// First block of the inode tables, all of them together.
    pub(crate) inode_table: u64,
    /// First block after the inode tables.
    pub(crate) payload: u64,
    /// First free block: everything before it is in use.
    pub(crate) free: u64,
}

impl Geometry {
    /// The smallest number of groups that holds `demand`.
    pub(crate) fn solve(demand: Demand) -> Result<Geometry, PlanError> {
        let inodes = demand.used_inodes.saturating_add(demand.free_inodes);
        if inodes > u64::from(u32::MAX) {
            return Err(PlanError::TooManyInodes { wanted: inodes });
        }
        let mut groups = inodes.div_ceil(MAX_INODES_PER_GROUP).max(1);
        let mut wide = false;
        loop {
            let geometry = Geometry::with_groups(groups, inodes, demand, wide)?;
            wide |= geometry.blocks > u64::from(u32::MAX);
            let needed = geometry.blocks.div_ceil(BLOCKS_PER_GROUP);
            if needed > groups {
                groups = needed;
            } else if wide == (geometry.descriptor_size == group::SIZE_64) {
                return Ok(geometry);
            }
        }
    }

    /// The layout of a device of `blocks` blocks, where `demand` without its free blocks fits.
    pub(crate) fn of_size(blocks: u64, demand: Demand) -> Result<Option<Geometry>, PlanError> {
        let inodes = demand.used_inodes.saturating_add(demand.free_inodes);
        let groups = blocks.div_ceil(BLOCKS_PER_GROUP);
        if groups == 0 || inodes.div_ceil(MAX_INODES_PER_GROUP) > groups {
            return Ok(None);
        }
        let demand = Demand { free_blocks: 0, ..demand };
        let geometry = Geometry::with_groups(groups, inodes, demand, blocks > u64::from(u32::MAX))?;
        Ok((geometry.free <= blocks).then_some(Geometry { blocks, ..geometry }))
    }

    /// The layout of at least `groups` groups; its blocks may want more of them.
    fn with_groups(groups: u64, inodes: u64, demand: Demand, wide: bool) -> Result<Geometry, PlanError> {
        let descriptor_size = if wide { group::SIZE_64 } else { group::SIZE_32 };
        let inodes_per_group = inodes.div_ceil(groups).next_multiple_of(INODES_PER_BLOCK);
        let block_bitmaps = 1 + (groups * descriptor_size as u64).div_ceil(BLOCK_SIZE as u64);
        let inode_bitmaps = block_bitmaps + groups;
        let inode_table = inode_bitmaps + groups;
        let payload = inode_table + groups * inodes_per_group / INODES_PER_BLOCK;
        let too_large = PlanError::DeviceTooLarge;
        let free = payload.checked_add(demand.payload).ok_or(too_large)?;
        let blocks = free.checked_add(demand.free_blocks).ok_or(PlanError::DeviceTooLarge)?;
        // The descriptors must lie within the first group, and inode numbers within 32 bits.
        if block_bitmaps > BLOCKS_PER_GROUP || groups * inodes_per_group > u64::from(u32::MAX) {
            return Err(PlanError::DeviceTooLarge);
        }
        // Where the inodes want more groups than the blocks do, the last group has one free block.
        let blocks = blocks.max((groups - 1) * BLOCKS_PER_GROUP + 1);
        Ok(Geometry {
            blocks,
            groups: groups as u32,
            inodes_per_group: inodes_per_group as u32,
            descriptor_size,
            block_bitmaps,
            inode_bitmaps,
            inode_table,
            payload,
            free,
        })
    }

    /// Whether block numbers need the `64bit` feature.
    pub(crate) fn is_64bit(&self) -> bool {
        self.descriptor_size == group::SIZE_64
    }

    /// Inodes of the whole file system, the reserved ones included.
    pub(crate) fn inodes(&self) -> u32 {
        self.groups * self.inodes_per_group
    }

    /// Blocks of the inode tables of one group.
    pub(crate) fn inode_table_blocks(&self) -> u64 {
        u64::from(self.inodes_per_group) / INODES_PER_BLOCK
    }

    /// The block of the inode table that holds inode `ino`.
    pub(crate) fn inode_block(&self, ino: u32) -> u64 {
        self.inode_table + u64::from(ino - 1) / INODES_PER_BLOCK
    }

    /// The inode numbers of group `group`.
    pub(crate) fn group_inodes(&self, group: u32) -> Range<u32> {
        let first = group * self.inodes_per_group + 1;
        first..first + self.inodes_per_group
    }

    /// Blocks of group `group`: fewer than the others in the last one.
    pub(crate) fn group_blocks(&self, group: u32) -> u64 {
        let start = u64::from(group) * BLOCKS_PER_GROUP;
        BLOCKS_PER_GROUP.min(self.blocks - start)
    }

    /// Blocks in use of group `group`: always its first ones.
    pub(crate) fn group_used_blocks(&self, group: u32) -> u64 {
        let start = u64::from(group) * BLOCKS_PER_GROUP;
        self.free.saturating_sub(start).min(self.group_blocks(group))
    }
}
