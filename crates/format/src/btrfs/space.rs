//! How full a file system is, as statfs(2) tells it (`btrfs_statfs` in fs/btrfs/super.c): how much of each chunk is used, and how much of
//! the device is in no chunk yet.

use inarch_volume::VolumeError;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::blocks::Blocks;
use super::damaged;
use super::spec::chunk::{STRIPE, profile};
use super::spec::superblock::compat_ro;
use super::spec::tree::Key;
use super::spec::{BLOCK_GROUP_TREE, EXTENT_TREE, kind};
use super::subvolumes::Roots;

/// `BTRFS_DEVICE_RANGE_RESERVED`: bytes at the start of a device that become no chunk.
const RESERVED: u64 = 1 << 20;

/// Bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Space {
    /// Of the file system.
    pub(super) all: u64,
    /// That no file and no metadata uses.
    pub(super) free: u64,
    /// Of those, what files can get. The rest is set aside for metadata.
    pub(super) available: u64,
}

impl Space {
    /// Reads it. Of a file system of several devices, only the total is known here, and counts as available.
    pub(super) fn read(blocks: &Blocks, roots: &Roots) -> Result<Space, VolumeError> {
        let superblock = &blocks.parameters.superblock;
        let (total, used) = (superblock.total_bytes.get(), superblock.bytes_used.get());
        if superblock.devices.get() != 1 {
            let free = total.saturating_sub(used);
            return Ok(Space { all: total, free, available: free });
        }
        let tree = match superblock.compat_ro.get() & compat_ro::BLOCK_GROUP_TREE {
            0 => EXTENT_TREE,
            _ => BLOCK_GROUP_TREE,
        };
        let root = roots.tree_of(blocks, tree)?.ok_or_else(|| damaged("it has no tree of extents"))?;
        let (mut used_on_device, mut free_in_data, mut copies_of_data) = (0_u64, 0_u64, 1);
        for (start, length, chunk_kind) in blocks.chunks.ranges() {
            let copies = if chunk_kind & profile::TWO_COPIES != 0 { 2 } else { 1 };
            let key = Key::new(start, kind::BLOCK_GROUP_ITEM, length);
            let used = blocks.with_item(&root, key, |item| {
                let cut = |_| damaged(format!("the chunk at logical byte {start} has a count that is cut off"));
                U64::read_from_prefix(item).map(|(used, _)| used.get()).map_err(cut)
            })?;
            let used = used.unwrap_or(0).min(length);
            used_on_device = used_on_device.saturating_add(used.saturating_mul(copies));
            if chunk_kind & profile::DATA != 0 {
                free_in_data = free_in_data.saturating_add(length - used);
                copies_of_data = copies;
            }
        }
        let device = &superblock.device;
        let in_no_chunk = device.total_bytes.get().saturating_sub(device.bytes_used.get()) / STRIPE * STRIPE;
        let usable = if in_no_chunk > RESERVED + STRIPE { in_no_chunk - RESERVED } else { 0 };
        let all = total / copies_of_data;
        let free = all.saturating_sub(used_on_device / copies_of_data);
        let available = free_in_data.saturating_add(usable / copies_of_data).min(free);
        Ok(Space { all, free, available })
    }
}
