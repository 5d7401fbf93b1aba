//! [`Chunks`]: where the chunks of files lie in a remote's pack.

use inarch_tree::InodeId;

use super::chunks::CHUNK;
use super::error::Damage;
use super::generation::Generation;

/// A piece of a file, as it lies in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Where it begins in the pack.
    pub at: u64,
    /// At most [`CHUNK`].
    pub length: u32,
    pub inode: InodeId,
    /// Where it begins in the file.
    pub offset: u64,
    pub digest: [u8; 32],
}

impl Chunk {
    /// Where it ends in the pack.
    pub fn end(&self) -> u64 {
        self.at + u64::from(self.length)
    }
}

/// The chunks of a pack, in the order in which they lie there.
#[derive(Debug)]
pub(crate) struct Chunks(pub Vec<Chunk>);

impl Chunks {
    /// The chunks of the pack with this number.
    pub fn of(generation: &Generation, pack: u32) -> Result<Chunks, Damage> {
        let mut all = Vec::new();
        for (inode, stored) in generation.remote_files().filter(|(_, stored)| stored.pack == pack) {
            let size = generation.tree.inode(inode).size();
            if size <= CHUNK {
                let length = size as u32;
                all.push(Chunk { at: stored.at, length, inode, offset: 0, digest: stored.digest.0 });
                continue;
            }
            let list = generation.lists.get(&stored.digest).ok_or(Damage::Table("a file has no chunks"))?;
            for (digest, offset) in list.iter().zip((0..).step_by(CHUNK as usize)) {
                let length = (size - offset).min(CHUNK) as u32;
                all.push(Chunk { at: stored.at + offset, length, inode, offset, digest: *digest });
            }
        }
        all.sort_by_key(|chunk| (chunk.at, chunk.length));
        // Files with the same bytes are stored once.
        all.dedup_by(|next, one| (next.at, next.length, next.digest) == (one.at, one.length, one.digest));
        if all.windows(2).any(|pair| matches!(pair, [one, next] if one.end() > next.at)) {
            return Err(Damage::Table("files lie over each other"));
        }
        Ok(Chunks(all))
    }

    /// Where the last one ends.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, Chunk::end)
    }

    /// Whether the chunks of another generation, in the pack with the same name, can be in one file with these: chunks
    /// that overlap must be the same.
    pub fn agrees(&self, other: &Chunks) -> bool {
        let (mut ours, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(one), Some(two)) = (ours.peek(), theirs.peek()) {
            let are_same = (one.at, one.length, one.digest) == (two.at, two.length, two.digest);
            if !are_same && one.at < two.end() && two.at < one.end() {
                return false;
            }
            if one.end() <= two.end() {
                ours.next();
            } else {
                theirs.next();
            }
        }
        true
    }
}
