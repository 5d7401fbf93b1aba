//! What version 5 adds to each block of metadata: a checksum, its own address, the file system's UUID and its owner.

use super::{be32, be64};

/// Where the fields are in one kind of block, as byte offsets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seal {
    /// The checksum, crc32c, little-endian.
    pub(crate) checksum: usize,
    /// The block's address in units of 512 bytes.
    pub(crate) address: usize,
    pub(crate) uuid: usize,
    /// The inode's number.
    pub(crate) owner: usize,
}

/// `xfs_dir3_blk_hdr`: a directory's block with names.
pub(crate) const NAMES: Seal = Seal { checksum: 4, address: 8, uuid: 24, owner: 40 };
/// `xfs_da3_blkinfo`: nodes and leaves of the trees of directories and attributes.
pub(crate) const TREE: Seal = Seal { checksum: 12, address: 16, uuid: 32, owner: 48 };
/// `xfs_btree_block_lhdr`: a block of a tree of extents.
pub(crate) const EXTENTS: Seal = Seal { checksum: 64, address: 24, uuid: 40, owner: 56 };
/// `xfs_dsymlink_hdr` and `xfs_attr3_rmt_hdr`: a block of a symlink's target, or of an attribute's value.
pub(crate) const REMOTE: Seal = Seal { checksum: 12, address: 40, uuid: 16, owner: 32 };

/// Whether the crc32c of `bytes`, with zeros in place of the checksum at `at`, is that checksum (`xfs_verify_cksum`).
pub(crate) fn checksum_matches(bytes: &[u8], at: usize) -> bool {
    let (Some(before), Some(stored), Some(after)) = (bytes.get(..at), bytes.get(at..at + 4), bytes.get(at + 4..))
    else {
        return false;
    };
    let crc = crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), after);
    crc.to_le_bytes() == *stored
}

impl Seal {
    /// What is wrong with a block that lies at byte `at` and belongs to the inode `owner`, except for its checksum; `None`
    /// if nothing is.
    pub(crate) fn flaw(&self, block: &[u8], at: u64, uuid: &[u8; 16], owner: u64) -> Option<String> {
        if be64(block, self.address) != Some(at / 512) {
            return Some("says that it lies elsewhere".to_owned());
        }
        if block.get(self.uuid..self.uuid + 16) != Some(uuid) {
            return Some("is of another file system".to_owned());
        }
        match be64(block, self.owner) {
            Some(other) if other == owner => None,
            other => Some(format!("belongs to the inode {}", other.unwrap_or_default())),
        }
    }
}

/// The magic number of four bytes at a block's start.
pub(crate) fn magic(block: &[u8]) -> u32 {
    be32(block, 0).unwrap_or_default()
}
