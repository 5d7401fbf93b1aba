//! Thin volumes: where their chunks are, by the metadata of their pool.
//!
//! The metadata is that of the kernel's dm-thin: a superblock (drivers/md/dm-thin-metadata.c) and trees of blocks (persistent-data/dm-btree-internal.h).
//! The tree of mappings has a tree for each device, which has the place of each chunk. A snapshot is a device that shares blocks with another. Numbers
//! are little-endian. Every block has a checksum and its own number, and trees are followed to a bounded depth.

use std::io;
use std::sync::Arc;

use inarch_block::{Backing, read_backing};

use crate::container::cache::{Cache, Key};
use crate::container::mapped::{Map, Mapped, Piece};
use crate::mapped::SECTOR;
use crate::read::{u32_at, u64_at};

/// Bytes of a block of metadata (`THIN_METADATA_BLOCK_SIZE`).
const BLOCK: usize = 4096;
/// `THIN_SUPERBLOCK_MAGIC`.
const MAGIC: u64 = 27_022_010;
/// `SUPERBLOCK_CSUM_XOR`.
pub(super) const SUPERBLOCK_XOR: u32 = 160_774;
/// `BTREE_CSUM_XOR`.
pub(super) const NODE_XOR: u32 = 121_107;
/// Bytes of a node before its keys.
const NODE_HEADER: usize = 32;
const INTERNAL: u32 = 1;
const LEAF: u32 = 2;
/// The most levels of a tree: a node has up to 252 children, and there are less than 2^40 chunks.
const DEEPEST: usize = 16;
/// Bits of a mapping below the chunk's number: when it was made.
const TIME_BITS: u32 = 24;
/// The most bytes of a chunk (`DATA_DEV_BLOCK_SIZE_MAX_SECTORS`), and what all are multiples of.
const MOST_CHUNK: u64 = 1 << 30;
const LEAST_CHUNK: u64 = 64 << 10;
/// The most bytes of nodes that are kept.
const CACHED: usize = 4 << 20;

/// The checksum of what follows it in a block: `dm_bm_checksum`.
pub(super) fn checksum(block: &[u8], xor: u32) -> u32 {
    !crc32c::crc32c(block.get(4..).unwrap_or_default()) ^ xor
}

fn damaged(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The trees of a pool.
struct Trees {
    metadata: Arc<dyn Backing>,
    cache: Cache,
}

/// What a tree has for a key.
struct Found {
    value: Option<u64>,
    /// If there is no value, the first key that may have one.
    next: u64,
}

impl Trees {
    /// A node whose checksum and sizes are right.
    fn node(&self, number: u64) -> io::Result<Arc<[u8]>> {
        let key = Key { file: 0, at: number, unpacked: false };
        if let Some(node) = self.cache.get(key) {
            return Ok(node);
        }
        let wrong = |what: &str| damaged(format!("block {number} of the pool's metadata {what}"));
        let at = number.checked_mul(BLOCK as u64).filter(|at| *at <= self.metadata.size().saturating_sub(BLOCK as u64));
        let at = at.ok_or_else(|| wrong("lies beyond its end"))?;
        let mut node = vec![0; BLOCK];
        read_backing(&*self.metadata, at, &mut node)?;
        let word = |at| u32_at(&node, at).unwrap_or_default();
        let (count, most, size) = (word(16), word(20) as usize, word(24));
        let room = most.checked_mul(8 + size as usize).and_then(|bytes| bytes.checked_add(NODE_HEADER));
        if word(0) != checksum(&node, NODE_XOR) || u64_at(&node, 8) != Some(number) {
            return Err(wrong("is damaged"));
        }
        if !matches!(word(4), INTERNAL | LEAF)
            || count as usize > most
            || size != 8
            || room.is_none_or(|room| room > BLOCK)
        {
            return Err(wrong("is no node of a tree"));
        }
        let node: Arc<[u8]> = node.into();
        self.cache.put(key, &node);
        Ok(node)
    }

    /// What the tree below `root` has for a key.
    fn find(&self, root: u64, key: u64) -> io::Result<Found> {
        let (mut number, mut next) = (root, u64::MAX);
        for _ in 0..DEEPEST {
            let node = self.node(number)?;
            let word = |at| u32_at(&node, at).unwrap_or_default() as usize;
            let (is_leaf, count, most) = (word(4) == LEAF as usize, word(16), word(20));
            let key_at = |index: usize| u64_at(&node, NODE_HEADER + 8 * index);
            let value_at = |index: usize| u64_at(&node, NODE_HEADER + 8 * (most + index));
            let after = position(count, &|index| key_at(index).is_some_and(|at| at <= key));
            if after < count {
                next = key_at(after).unwrap_or(next).min(next);
            }
            let Some(index) = after.checked_sub(1) else { return Ok(Found { value: None, next }) };
            if is_leaf {
                let value = value_at(index).filter(|_| key_at(index) == Some(key));
                return Ok(Found { value, next });
            }
            number = value_at(index).unwrap_or_default();
        }
        Err(damaged("a tree of the pool's metadata is too deep".to_owned()))
    }
}

/// How many of `count` come before the first for which `is_before` is false: `partition_point` of a slice.
fn position(count: usize, is_before: &dyn Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Where the chunks of a device are.
struct Chunks {
    trees: Trees,
    /// The device's tree.
    root: u64,
    /// Bytes of a chunk.
    chunk: u64,
    /// What takes the place of chunks that the pool does not have: zeros, or the origin outside of the pool.
    otherwise: Piece,
}

impl Map for Chunks {
    fn unit(&self) -> u64 {
        self.chunk
    }

    fn piece(&self, offset: u64, count: u64) -> io::Result<(Piece, u64)> {
        let (number, within) = (offset / self.chunk, offset % self.chunk);
        let found = self.trees.find(self.root, number)?;
        let Some(value) = found.value else {
            // Always after this one.
            let next = found.next.max(number + 1);
            let length = next.saturating_mul(self.chunk).saturating_sub(offset);
            return Ok((self.otherwise, length.min(count)));
        };
        let place = |value: u64| (value >> TIME_BITS).checked_mul(self.chunk);
        let start = place(value).ok_or_else(|| damaged(format!("chunk {number} is where nothing can be")))?;
        let mut length = self.chunk - within;
        let mut follows = number;
        // The following ones may follow it in the pool, too.
        while length < count {
            follows += 1;
            let is_next = start.checked_add((follows - number) * self.chunk);
            match self.trees.find(self.root, follows)?.value {
                Some(value) if place(value) == is_next => length += self.chunk,
                _ => break,
            }
        }
        let at = start.checked_add(within).ok_or_else(|| damaged(format!("chunk {number} is where nothing can be")))?;
        Ok((Piece::At(at), length.min(count)))
    }
}

/// A thin volume of `size` bytes: the device of that number in a pool. `origin` has what the pool does not.
///
/// # Errors
/// The text says what is wrong with the pool, or that it has no such device.
pub(super) fn open(
    (metadata, data): (Arc<dyn Backing>, Arc<dyn Backing>),
    device: u64,
    size: u64,
    origin: Option<Arc<dyn Backing>>,
) -> Result<Arc<dyn Backing>, String> {
    let fail = |error: io::Error| format!("the metadata of its pool: {error}");
    let mut block = vec![0; BLOCK];
    if metadata.size() < BLOCK as u64 {
        return Err("the metadata of its pool is cut off".to_owned());
    }
    read_backing(&*metadata, 0, &mut block).map_err(fail)?;
    let word = |at| u32_at(&block, at).unwrap_or_default();
    let number = |at| u64_at(&block, at).unwrap_or_default();
    if number(32) != MAGIC || word(0) != checksum(&block, SUPERBLOCK_XOR) || number(8) != 0 {
        return Err("the metadata of its pool is damaged, or was never written".to_owned());
    }
    let (version, chunk, unit) = (word(40), u64::from(word(336)) * SECTOR, u64::from(word(340)) * SECTOR);
    if !(1..=2).contains(&version) || word(360) != 0 || unit != BLOCK as u64 {
        return Err("the metadata of its pool has a version that is not supported".to_owned());
    }
    if !(LEAST_CHUNK..=MOST_CHUNK).contains(&chunk) || !chunk.is_multiple_of(LEAST_CHUNK) {
        return Err("the chunks of its pool have a size that cannot be".to_owned());
    }
    let trees = Trees { metadata, cache: Cache::new(CACHED) };
    let root = trees.find(number(320), device).map_err(fail)?.value;
    let root = root.ok_or_else(|| format!("its pool has no device {device}"))?;
    let otherwise = if origin.is_some() { Piece::Below } else { Piece::Zeros };
    let map = Chunks { trees, root, chunk, otherwise };
    Ok(Arc::new(Mapped { map, size, data, below: origin }))
}

#[cfg(test)]
mod tests;
