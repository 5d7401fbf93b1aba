//! Finds files with equal content, which is stored once.

use std::collections::HashMap;
use std::sync::Arc;

use inarch_tree::{FileType, InodeId, Tree};
use sha2::{Digest, Sha256};

use super::work::Hash;
use super::writer::Location;

/// Bytes of a hash that are kept: as many as make two different files of one hash out of reach.
const KEPT: usize = 20;

/// Candidates for equal content: files whose size another file has too.
pub(super) struct Duplicates {
    tree: Arc<Tree>,
    /// Sizes that several files have, ascending.
    sizes: Vec<u64>,
}

impl Duplicates {
    pub(super) fn new(tree: &Arc<Tree>) -> Duplicates {
        let regular = tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular);
        let mut all: Vec<u64> = regular.map(|(_, inode)| inode.size()).filter(|size| *size > 0).collect();
        all.sort_unstable();
        let several = all.chunk_by(|a, b| a == b).filter(|same| same.len() > 1);
        Duplicates { tree: Arc::clone(tree), sizes: several.filter_map(|same| same.first().copied()).collect() }
    }

    /// Whether another file has the size of this one.
    pub(super) fn may_have(&self, inode: InodeId) -> bool {
        self.sizes.binary_search(&self.tree.inode(inode).size()).is_ok()
    }
}

/// The hash of a file, block by block.
#[derive(Default)]
pub(super) struct FileHash(Sha256);

impl FileHash {
    pub(super) fn push(&mut self, block: &Hash) {
        self.0.update(block);
    }

    fn finish(self, size: u64) -> [u8; KEPT] {
        let hash: Hash = self.0.chain_update(size.to_le_bytes()).finalize().into();
        let mut kept = [0; KEPT];
        kept.copy_from_slice(&hash[..KEPT]);
        kept
    }
}

/// What has been stored so far, of files that may have duplicates.
#[derive(Default)]
pub(super) struct Stored {
    by_hash: HashMap<[u8; KEPT], u32>,
    locations: Vec<Location>,
}

impl Stored {
    /// Where a file of this content is stored. If it is not, `store` stores it.
    pub(super) fn find_or<E>(
        &mut self,
        hash: FileHash,
        size: u64,
        store: impl FnOnce() -> Result<Location, E>,
    ) -> Result<(Location, bool), E> {
        let hash = hash.finish(size);
        let known = self.by_hash.get(&hash).and_then(|place| self.locations.get(*place as usize));
        if let Some(known) = known {
            return Ok((known.clone(), true));
        }
        let location = store()?;
        self.by_hash.insert(hash, self.locations.len() as u32);
        self.locations.push(location.clone());
        Ok((location, false))
    }
}
