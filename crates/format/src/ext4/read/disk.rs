//! The bytes of a file system, and the parameters from its superblock.

use std::sync::Arc;

use inarch_block::{Backing, read_backing};
use inarch_volume::VolumeError;
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use super::{ReadOptions, unreadable};
use crate::ReadError;
use crate::ext4::spec::checksum::FsSeed;
use crate::ext4::spec::group::{self, GroupDescriptor, SIZE_32, SIZE_64};
use crate::ext4::spec::inode::SIZE_128;
use crate::ext4::spec::superblock::{OFFSET, STATE_ERROR, STATE_VALID, Superblock, compat, incompat, ro_compat};
use crate::ext4::spec::{LOST_AND_FOUND_INO, ROOT_INO};

/// The incompatible features that this reader understands.
const KNOWN: u32 = incompat::FILETYPE
    | incompat::RECOVER
    | incompat::META_BG
    | incompat::EXTENTS
    | incompat::BIT64
    | incompat::MMP
    | incompat::FLEX_BG
    | incompat::EA_INODE
    | incompat::CSUM_SEED
    | incompat::LARGEDIR
    | incompat::INLINE_DATA
    | incompat::ENCRYPT
    | incompat::CASEFOLD;

/// A file system on a backing.
pub(super) struct Disk {
    pub(super) backing: Arc<dyn Backing>,
    pub(super) superblock: Superblock,
    pub(super) seed: FsSeed,
    /// Bytes of a block: 1 KiB to 64 KiB.
    pub(super) block_size: u64,
    /// Blocks of the file system.
    pub(super) blocks: u64,
    pub(super) inodes_per_group: u32,
    /// Bytes of an inode in its table.
    pub(super) inode_size: usize,
    /// Block groups.
    groups: u64,
    descriptor_size: usize,
    /// Whether structures with a wrong checksum are refused.
    pub(super) verify: bool,
    /// What was wrong with it as a whole, where damage is salvaged.
    pub(super) damage: Vec<String>,
}

impl Disk {
    /// Reads the superblock and checks what everything else depends on.
    pub(super) fn new(backing: Arc<dyn Backing>, options: &ReadOptions) -> Result<Disk, ReadError> {
        let mut bytes = [0; 1024];
        if backing.size() < (OFFSET + bytes.len()) as u64 {
            return Err(unreadable("the image is too small to hold a superblock"));
        }
        read_backing(&*backing, OFFSET as u64, &mut bytes)
            .map_err(|error| ReadError::Io { offset: OFFSET as u64, error })?;
        let superblock = Superblock::parse(&bytes)
            .ok_or_else(|| unreadable("there is no superblock at byte 1024 (the magic number 0xEF53 is missing)"))?;
        let mut damage = Vec::new();
        let mut found = |reason: String| options.damage.or_refuse("ext4", reason).map(|reason| damage.push(reason));
        if options.verify && !superblock.checksum_matches() {
            found("the superblock's checksum is wrong; e2fsck may restore it from a backup".to_owned())?;
        }
        let mut disk = Disk::with_geometry(backing, superblock, options.verify).map_err(unreadable)?;
        let (wanted, there) = (disk.blocks * disk.block_size, disk.backing.size());
        if there < wanted {
            found(format!("the image was cut off: it has {there} bytes, the file system {wanted}"))?;
        }
        disk.damage = damage;
        Ok(disk)
    }

    /// Follows `ext4_check_geometry`, `ext4_block_group_meta_init` and `ext4_inode_info_init` in `fs/ext4/super.c`.
    fn with_geometry(backing: Arc<dyn Backing>, sb: Superblock, verify: bool) -> Result<Disk, String> {
        check_features(&sb)?;
        let log = sb.log_block_size.get();
        if log > 6 {
            return Err(format!(
                "the superblock gives blocks of 2^{} bytes; 2^10 to 2^16 are possible",
                u64::from(log) + 10
            ));
        }
        let block_size = 1024u64 << log;
        let wide = sb.has_incompat(incompat::BIT64);
        let high = if wide { u64::from(sb.blocks_count_hi.get()) << 32 } else { 0 };
        let blocks = high | u64::from(sb.blocks_count_lo.get());
        let first = u64::from(sb.first_data_block.get());
        let per_group = u64::from(sb.blocks_per_group.get());
        if first >= blocks || blocks > u64::MAX / block_size || per_group == 0 {
            return Err(format!("the superblock gives {blocks} blocks from {first} on, {per_group} in a group"));
        }
        let inode_size = match sb.rev_level.get() {
            0 => SIZE_128,
            _ => usize::from(sb.inode_size.get()),
        };
        if inode_size < SIZE_128 || !inode_size.is_power_of_two() || inode_size as u64 > block_size {
            return Err(format!("the superblock gives inodes of {inode_size} bytes"));
        }
        let descriptor_size = if wide { usize::from(sb.desc_size.get()) } else { SIZE_32 };
        if wide && !(SIZE_64..=1024).contains(&descriptor_size) || !descriptor_size.is_power_of_two() {
            return Err(format!("the superblock gives group descriptors of {descriptor_size} bytes"));
        }
        let inodes_per_group = sb.inodes_per_group.get();
        if inodes_per_group == 0 || u64::from(inodes_per_group) > 8 * block_size {
            return Err(format!("the superblock gives {inodes_per_group} inodes in a group"));
        }
        let groups = (blocks - first).div_ceil(per_group);
        let seed = sb.seed();
        Ok(Disk {
            backing,
            superblock: sb,
            seed,
            block_size,
            blocks,
            inodes_per_group,
            inode_size,
            groups,
            descriptor_size,
            verify,
            damage: Vec::new(),
        })
    }

    /// Whether the journal holds what has not reached its place.
    pub(super) fn needs_recovery(&self) -> bool {
        self.superblock.has_incompat(incompat::RECOVER) && self.superblock.has_compat(compat::HAS_JOURNAL)
    }

    /// What the superblock says of the state it was left in.
    pub(super) fn warnings(&self) -> Vec<String> {
        let state = self.superblock.state.get();
        let unclean = state & STATE_VALID == 0 && !self.superblock.has_compat(compat::HAS_JOURNAL);
        let told = [
            (unclean, "it was not unmounted cleanly and has no journal: what was written last may be missing"),
            (state & STATE_ERROR != 0, "the kernel or e2fsck has marked it as damaged"),
        ];
        let told = told.iter().filter(|(is_so, _)| *is_so).map(|(_, text)| (*text).to_owned());
        told.chain(self.damage.iter().cloned()).collect()
    }

    /// Whether metadata has checksums that are to be believed only if they are right.
    pub(super) fn verifies(&self) -> bool {
        self.verify && self.superblock.has_ro_compat(ro_compat::METADATA_CSUM)
    }

    /// Whether an inode number may be named by a directory (`ext4_valid_inum`).
    pub(super) fn is_nameable(&self, ino: u32) -> bool {
        let first = match self.superblock.rev_level.get() {
            0 => LOST_AND_FOUND_INO,
            _ => self.superblock.first_ino.get(),
        };
        ino == ROOT_INO || (ino >= first && self.is_inode(ino))
    }

    /// Whether there is such an inode.
    pub(super) fn is_inode(&self, ino: u32) -> bool {
        ino > 0 && ino <= self.superblock.inodes_count.get()
    }

    /// Whether `count` blocks from `first` on are within the image, which may have been cut off.
    pub(super) fn has(&self, first: u64, count: u64) -> bool {
        let end = first.checked_add(count).and_then(|end| end.checked_mul(self.block_size));
        end.is_some_and(|end| end <= self.backing.size())
    }

    /// Whether `count` blocks from `first` on are ones that a file can have.
    pub(super) fn holds(&self, first: u64, count: u64) -> bool {
        first > u64::from(self.superblock.first_data_block.get())
            && first.checked_add(count).is_some_and(|end| end <= self.blocks)
    }

    /// Fills `out` with the device's bytes from `offset`.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let size = self.backing.size();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > size) {
            return Err(VolumeError::Damaged(format!("lies at byte {offset}, beyond the end of the image at {size}")));
        }
        read_backing(&*self.backing, offset, out).map_err(|error| VolumeError::Io { offset, error })
    }

    /// Fills `out` with the blocks from `first` on.
    pub(super) fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let count = (out.len() as u64).div_ceil(self.block_size);
        if !self.holds(first, count) {
            return Err(VolumeError::Damaged(format!("lies at block {first}, where no file's blocks are")));
        }
        self.read(first * self.block_size, out)
    }

    /// Where the inode table of a group starts, in bytes.
    pub(super) fn inode_table(&self, group: u32) -> Result<u64, VolumeError> {
        if u64::from(group) >= self.groups {
            return Err(VolumeError::Damaged(format!("is in block group {group} of {}", self.groups)));
        }
        let per_block = self.descriptors_per_block();
        let block = self.descriptor_block(u64::from(group) / per_block);
        let within = u64::from(group) % per_block * self.descriptor_size as u64;
        let mut bytes = vec![0; self.descriptor_size];
        let at = block.checked_mul(self.block_size).and_then(|at| at.checked_add(within));
        self.read(at.unwrap_or(u64::MAX), &mut bytes)?;
        self.table_in(group, &bytes)
    }

    fn descriptors_per_block(&self) -> u64 {
        self.block_size / self.descriptor_size as u64
    }

    /// Checks the descriptors of all groups.
    pub(super) fn check_groups(&self) -> Result<(), VolumeError> {
        self.each_descriptor(|group, bytes| self.table_in(group as u32, bytes).map(drop)).map_err(|(group, error)| {
            match error {
                VolumeError::Io { .. } => error,
                reason => VolumeError::Damaged(format!(
                    "the descriptor of block group {group} is damaged: a file of it {reason}"
                )),
            }
        })
    }

    /// Free blocks and inodes by the descriptors of all groups. A kernel that has the file system mounted writes the superblock's numbers
    /// only at the end.
    pub(super) fn free_in_groups(&self) -> Option<(u64, u64)> {
        let (mut blocks, mut inodes) = (0u64, 0u64);
        let counted = self.each_descriptor(|group, bytes| {
            self.table_in(group as u32, bytes)?;
            let descriptor = GroupDescriptor::parse(bytes);
            let whole = |low: U16, high: U16| u64::from(high.get()) << 16 | u64::from(low.get());
            blocks = blocks.saturating_add(whole(descriptor.free_blocks_lo, descriptor.free_blocks_hi));
            inodes = inodes.saturating_add(whole(descriptor.free_inodes_lo, descriptor.free_inodes_hi));
            Ok(())
        });
        counted.ok().map(|()| (blocks.min(self.blocks), inodes.min(self.superblock.inodes_count.get().into())))
    }

    /// Calls `take` with the descriptor of each group. Stops at the first failure, and returns it with the group's number.
    fn each_descriptor(
        &self,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), VolumeError>,
    ) -> Result<(), (u64, VolumeError)> {
        let per_block = self.descriptors_per_block();
        let mut block = vec![0; self.block_size as usize];
        for first in (0..self.groups).step_by(per_block as usize) {
            let number = self.descriptor_block(first / per_block);
            self.read(number.saturating_mul(self.block_size), &mut block).map_err(|error| (first, error))?;
            for (group, bytes) in (first..self.groups).zip(block.chunks_exact(self.descriptor_size)) {
                take(group, bytes).map_err(|error| (group, error))?;
            }
        }
        Ok(())
    }

    /// Where the inode table of a group starts, in bytes, by the group's descriptor.
    fn table_in(&self, group: u32, bytes: &[u8]) -> Result<u64, VolumeError> {
        let matches = if self.verifies() {
            group::checksum_matches(bytes, self.seed, group)
        } else if self.verify && self.superblock.has_ro_compat(ro_compat::GDT_CSUM) {
            group::crc16_matches(bytes, &self.superblock.uuid, group)
        } else {
            true
        };
        if !matches {
            return Err(VolumeError::Damaged(format!(
                "is in block group {group}, whose descriptor has a wrong checksum"
            )));
        }
        let descriptor = GroupDescriptor::parse(bytes);
        let start = descriptor.inode_table();
        let table = u64::from(self.inodes_per_group) * self.inode_size as u64;
        if !self.holds(start, table.div_ceil(self.block_size)) {
            return Err(VolumeError::Damaged(format!(
                "is in block group {group}, whose inode table is given as block {start}"
            )));
        }
        Ok(start * self.block_size)
    }

    /// The block with the descriptors of a run of groups (`descriptor_loc`).
    fn descriptor_block(&self, number: u64) -> u64 {
        let sb = &self.superblock;
        if !sb.has_incompat(incompat::META_BG) || number < u64::from(sb.first_meta_bg.get()) {
            return OFFSET as u64 / self.block_size + number + 1;
        }
        let first_data_block = u64::from(sb.first_data_block.get());
        let group = self.block_size / self.descriptor_size as u64 * number;
        // With blocks of 1 KiB the superblock of group 0 is in block 1, whether the group starts there or not.
        let shifted = self.block_size == 1024 && number == 0 && first_data_block == 0;
        let before = u64::from(self.has_superblock(group)) + u64::from(shifted);
        first_data_block
            .saturating_add(group.saturating_mul(u64::from(sb.blocks_per_group.get())))
            .saturating_add(before)
    }

    /// Whether a group starts with a copy of the superblock (`ext4_bg_has_super`).
    fn has_superblock(&self, group: u64) -> bool {
        let sb = &self.superblock;
        if group == 0 {
            return true;
        }
        if sb.has_compat(compat::SPARSE_SUPER2) {
            return sb.backup_bgs.iter().any(|backup| u64::from(backup.get()) == group);
        }
        let is_power = |base: u64| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        group == 1 || !sb.has_ro_compat(ro_compat::SPARSE_SUPER) || [3, 5, 7].into_iter().any(is_power)
    }
}

/// Refuses what would be misread.
fn check_features(sb: &Superblock) -> Result<(), String> {
    let features = if sb.rev_level.get() == 0 { 0 } else { sb.feature_incompat.get() };
    if features & incompat::JOURNAL_DEV != 0 {
        return Err("this is the journal of another file system, not a file system".to_owned());
    }
    if features & !KNOWN != 0 {
        let named = [(incompat::COMPRESSION, "compression"), (incompat::DIRDATA, "dirdata")];
        let names: Vec<_> = named.iter().filter(|(bit, _)| features & bit != 0).map(|(_, name)| *name).collect();
        let unknown = features & !KNOWN;
        return Err(format!("it has features that cannot be read: {} (incompatible {unknown:#x})", names.join(", ")));
    }
    Ok(())
}

/// The 32-bit word at `index` of a block of words.
pub(super) fn word(block: &[u8], index: usize) -> u32 {
    let bytes = index.checked_mul(4).and_then(|at| block.get(at..at + 4));
    bytes.and_then(|bytes| U32::read_from_bytes(bytes).ok()).map_or(0, U32::get)
}
