//! Renders group descriptors and bitmaps. The first blocks of the device and the first inodes are in use, so each
//! group is full, free, or the one in between.

use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32};

use super::Renderer;
use crate::ext4::layout::geometry::Geometry;
use crate::ext4::spec::checksum::FsSeed;
use crate::ext4::spec::group::{GroupDescriptor, flags};
use crate::ext4::spec::{BLOCK_SIZE, BLOCKS_PER_GROUP, Block, LOST_AND_FOUND_INO};

/// The checksums of bitmaps of full groups, which most are.
pub(super) struct FullBitmaps {
    blocks: u32,
    inodes: u32,
}

impl FullBitmaps {
    pub(super) fn new(seed: FsSeed, geometry: &Geometry) -> FullBitmaps {
        let full = [0xFF; BLOCK_SIZE];
        FullBitmaps { blocks: seed.bitmap(&full), inodes: seed.bitmap(&full[..inode_bitmap_bytes(geometry)]) }
    }
}

/// The bytes of an inode bitmap that stand for inodes; its checksum covers only them.
fn inode_bitmap_bytes(geometry: &Geometry) -> usize {
    geometry.inodes_per_group as usize / 8
}

impl Renderer {
    /// Block `index` of the group descriptors.
    pub(super) fn render_descriptors(&self, index: u64, out: &mut Block) {
        let size = self.layout.geometry.descriptor_size;
        let first = index as u32 * (BLOCK_SIZE / size) as u32;
        for (group, slot) in (first..self.layout.geometry.groups).zip(out.chunks_exact_mut(size)) {
            slot.copy_from_slice(self.descriptor(group).seal(self.seed, group, size));
        }
    }

    /// The block bitmap of a group: all zeros if the group is free and not the last.
    pub(super) fn render_block_bitmap(&self, group: u32, out: &mut Block) {
        if self.is_block_uninit(group) {
            return;
        }
        let geometry = &self.layout.geometry;
        set_bits(out, 0, geometry.group_used_blocks(group));
        set_bits(out, geometry.group_blocks(group), BLOCKS_PER_GROUP);
    }

    /// The inode bitmap of a group: all zeros if no inode of it is in use.
    pub(super) fn render_inode_bitmap(&self, group: u32, out: &mut Block) {
        let used = self.used_inodes(group);
        if used == 0 {
            return;
        }
        set_bits(out, 0, u64::from(used));
        set_bits(out, u64::from(self.layout.geometry.inodes_per_group), BLOCKS_PER_GROUP);
        if group == 0 && !self.layout.measured.has_lost_and_found() {
            let bit = LOST_AND_FOUND_INO - 1;
            out[bit as usize / 8] &= !(1 << (bit % 8));
        }
    }

    fn descriptor(&self, group: u32) -> GroupDescriptor {
        let geometry = &self.layout.geometry;
        let used_inodes = self.used_inodes(group);
        let unused = geometry.inodes_per_group - used_inodes;
        let hole = u32::from(group == 0 && !self.layout.measured.has_lost_and_found());
        let free_blocks = geometry.group_blocks(group) - geometry.group_used_blocks(group);
        let block_bitmap = geometry.block_bitmaps + u64::from(group);
        let inode_bitmap = geometry.inode_bitmaps + u64::from(group);
        let inode_table = geometry.inode_table + u64::from(group) * geometry.inode_table_blocks();
        let block_csum = self.block_bitmap_checksum(group);
        let inode_csum = self.inode_bitmap_checksum(group);
        let mut bits = flags::INODE_ZEROED;
        bits |= if used_inodes == 0 { flags::INODE_UNINIT } else { 0 };
        bits |= if self.is_block_uninit(group) { flags::BLOCK_UNINIT } else { 0 };

        let mut descriptor = GroupDescriptor::new_zeroed();
        descriptor.block_bitmap_lo = U32::new(block_bitmap as u32);
        descriptor.inode_bitmap_lo = U32::new(inode_bitmap as u32);
        descriptor.inode_table_lo = U32::new(inode_table as u32);
        // The metadata itself lies below 2^32 blocks even on larger devices: the upper halves matter only in theory.
        descriptor.block_bitmap_hi = U32::new((block_bitmap >> 32) as u32);
        descriptor.inode_bitmap_hi = U32::new((inode_bitmap >> 32) as u32);
        descriptor.inode_table_hi = U32::new((inode_table >> 32) as u32);
        // A group has at most 32,768 blocks and inodes: 16 bits hold every count.
        descriptor.free_blocks_lo = U16::new(free_blocks as u16);
        descriptor.free_inodes_lo = U16::new((unused + hole) as u16);
        descriptor.used_dirs_lo = U16::new(self.used_directories(group) as u16);
        descriptor.itable_unused_lo = U16::new(unused as u16);
        descriptor.flags = U16::new(bits);
        descriptor.block_bitmap_csum_lo = U16::new(block_csum as u16);
        descriptor.block_bitmap_csum_hi = U16::new((block_csum >> 16) as u16);
        descriptor.inode_bitmap_csum_lo = U16::new(inode_csum as u16);
        descriptor.inode_bitmap_csum_hi = U16::new((inode_csum >> 16) as u16);
        descriptor
    }

    /// Whether the group's block bitmap is left out. The last group's is written, as `mke2fs` does: it may be short.
    fn is_block_uninit(&self, group: u32) -> bool {
        let geometry = &self.layout.geometry;
        geometry.group_used_blocks(group) == 0 && group + 1 < geometry.groups
    }

    /// Inodes of the group up to its last one in use.
    fn used_inodes(&self, group: u32) -> u32 {
        let inodes = self.layout.geometry.group_inodes(group);
        (self.layout.nodes.last_ino() + 1).saturating_sub(inodes.start).min(inodes.end - inodes.start)
    }

    fn used_directories(&self, group: u32) -> u32 {
        let inodes = self.layout.geometry.group_inodes(group);
        let nodes = &self.layout.nodes;
        let directories = self.layout.measured.directories.list();
        let before = |ino: u32| directories.partition_point(|directory| nodes.ino(directory.inode.0) < ino) as u32;
        let added = u32::from(self.layout.measured.has_lost_and_found() && inodes.contains(&LOST_AND_FOUND_INO));
        before(inodes.end) - before(inodes.start) + added
    }

    fn block_bitmap_checksum(&self, group: u32) -> u32 {
        if self.is_block_uninit(group) {
            return 0;
        }
        if self.layout.geometry.group_used_blocks(group) == BLOCKS_PER_GROUP {
            return self.full_bitmaps.blocks;
        }
        let mut bitmap = [0; BLOCK_SIZE];
        self.render_block_bitmap(group, &mut bitmap);
        self.seed.bitmap(&bitmap)
    }

    fn inode_bitmap_checksum(&self, group: u32) -> u32 {
        let used = self.used_inodes(group);
        if used == 0 {
            return 0;
        }
        if group > 0 && used == self.layout.geometry.inodes_per_group {
            return self.full_bitmaps.inodes;
        }
        let mut bitmap = [0; BLOCK_SIZE];
        self.render_inode_bitmap(group, &mut bitmap);
        self.seed.bitmap(&bitmap[..inode_bitmap_bytes(&self.layout.geometry)])
    }
}

/// Sets the bits `start..end`, the lowest of each byte first.
fn set_bits(bitmap: &mut Block, start: u64, end: u64) {
    let (start, end) = (start as usize, end as usize);
    if start >= end {
        return;
    }
    let (first, last) = (start / 8, (end - 1) / 8);
    let head = 0xFF << (start % 8);
    let tail = 0xFF >> (7 - (end - 1) % 8);
    if first == last {
        bitmap[first] |= head & tail;
        return;
    }
    bitmap[first] |= head;
    bitmap[first + 1..last].fill(0xFF);
    bitmap[last] |= tail;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_from_the_lowest_and_between_the_ends_only() {
        for (start, end) in [(0, 0), (0, 1), (3, 5), (7, 9), (5, 64), (100, 32_768), (32_768, 32_768)] {
            let mut bitmap = [0; BLOCK_SIZE];
            set_bits(&mut bitmap, start, end);
            for bit in 0..BLOCKS_PER_GROUP {
                let set = bitmap[bit as usize / 8] >> (bit % 8) & 1 == 1;
                assert_eq!(set, (start..end).contains(&bit), "bit {bit} of {start}..{end}");
            }
        }
    }
}
