//! Finds a name in a hashed directory (htree) through its index (`dx_probe`, `ext4_htree_next_block` in `fs/ext4/namei.c`).

use inarch_volume::VolumeError;

use super::listing::Listing;
use crate::ext4::spec::directory::{HASH_HALF_MD4, Index};
use crate::ext4::spec::hash::half_md4;
use crate::ext4::spec::inode::flags;
use crate::ext4::spec::superblock::{FLAG_SIGNED_HASH, compat};

/// Levels of index blocks at most, the root's included (`EXT4_HTREE_LEVEL`).
const LEVELS: usize = 3;

/// Where a hashed directory has a name, if it has it.
pub(super) enum Leaves {
    /// In one of these blocks of the directory.
    Blocks(Vec<u64>),
    /// Its index does not tell: every block has to be looked at.
    Unknown,
}

/// The leaves that may contain a name. Values of the index that make no sense are ignored.
pub(super) fn leaves(listing: &mut Listing<'_>, name: &[u8]) -> Result<Leaves, VolumeError> {
    let superblock = &listing.disk.superblock;
    let is_hashed = listing.slot.inode.has(flags::INDEX) && superblock.has_compat(compat::DIR_INDEX);
    let folds = listing.slot.inode.has(flags::CASEFOLD | flags::ENCRYPT | flags::INLINE_DATA);
    // Bytes above 127 hash in another way where chars have no sign.
    let signed = superblock.flags.get() & FLAG_SIGNED_HASH != 0 || name.is_ascii();
    if !is_hashed || folds || !signed {
        return Ok(Leaves::Unknown);
    }
    let hash = half_md4(name, &superblock.hash_seed.map(|word| word.get())).major;
    let Some(block) = listing.block(0)? else { return Ok(Leaves::Unknown) };
    let Some((mut index, levels)) = Index::root(&block).filter(|(index, _)| index.version == HASH_HALF_MD4) else {
        return Ok(Leaves::Unknown);
    };
    let mut ahead = false;
    let mut node;
    for _ in 0..levels.min(LEVELS) {
        let (place, child) = index.find(hash);
        // The next node may go on with the same hash.
        ahead |= index.starts_at(place + 1, hash);
        node = match listing.block(child)? {
            Some(block) => block,
            None => return Ok(Leaves::Unknown),
        };
        let Some(next) = Index::node(&node) else { return Ok(Leaves::Unknown) };
        index = next;
    }
    let (place, leaf) = index.find(hash);
    let mut leaves = vec![leaf];
    for next in place + 1.. {
        match index.get(next).filter(|_| index.starts_at(next, hash)) {
            Some(leaf) => leaves.push(leaf),
            None if next >= index.len() && ahead => return Ok(Leaves::Unknown),
            None => break,
        }
    }
    Ok(Leaves::Blocks(leaves))
}
