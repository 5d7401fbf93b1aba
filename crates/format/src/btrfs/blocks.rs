//! Reads the blocks of trees, with a bounded cache.

use std::sync::Arc;

use inarch_block::{Backing, read_backing};
use inarch_volume::VolumeError;

use super::block::Block;
use super::chunks::Chunks;
use super::damaged;
use super::search::{Position, Root};
use super::spec::tree::Key;
use super::spec::{CHUNKS, kind};
use super::superblock::Parameters;
use crate::cache::Cache;

/// Bytes of blocks that are kept.
const CACHED_BYTES: usize = 16 << 20;

/// The metadata of an image.
pub(super) struct Blocks {
    pub(super) image: Arc<dyn Backing>,
    pub(super) parameters: Parameters,
    pub(super) chunks: Chunks,
    cache: Cache<Block>,
}

impl Blocks {
    /// Reads the chunk tree, by means of the chunks that the superblock lists.
    pub(super) fn open(image: Arc<dyn Backing>, parameters: Parameters) -> Result<Blocks, VolumeError> {
        let superblock = &parameters.superblock;
        let size = superblock.system_chunks_size.get() as usize;
        let array = superblock.system_chunks.get(..size);
        let array = array.ok_or_else(|| damaged(format!("the superblock's list of chunks has {size} bytes")))?;
        let chunks = Chunks::of_array(parameters.device, array)?;
        let root = Root {
            address: superblock.chunk_root.get(),
            level: superblock.chunk_root_level,
            generation: superblock.chunk_root_generation.get(),
        };
        let cache = Cache::new(CACHED_BYTES / parameters.node_size);
        let mut blocks = Blocks { image, parameters, chunks, cache };
        let mut found = Vec::new();
        let mut position = Position::from(&blocks, &root, Key::new(CHUNKS, kind::CHUNK_ITEM, 0))?;
        while let Some((key, item)) =
            position.item().filter(|(key, _)| (key.objectid, key.kind) == (CHUNKS, kind::CHUNK_ITEM))
        {
            found.push((key, item.to_vec()));
            position.advance()?;
        }
        drop(position);
        for (key, item) in found {
            blocks.chunks.add(&key, &item)?;
        }
        blocks.chunks.sort()?;
        Ok(blocks)
    }

    /// The block at a logical address, which must be of that level and generation. Of several copies, the first one that
    /// is sound.
    pub(super) fn get(&self, address: u64, level: u8, generation: u64) -> Result<Arc<Block>, VolumeError> {
        let wrong = |what: &str| damaged(format!("the block at logical byte {address} {what}"));
        let expected = |block: &Block| (block.level, block.generation) == (level, generation);
        const OTHER: &str = "is of another level or generation than the one above it says";
        if let Some(block) = self.cache.get(address) {
            return if expected(&block) { Ok(block) } else { Err(wrong(OTHER)) };
        }
        let size = self.parameters.node_size as u64;
        let run = self.chunks.run(address)?;
        run.place()?;
        if run.length < size {
            return Err(wrong("lies across the end of a chunk or stripe"));
        }
        let mut reason = None;
        for at in run.places() {
            if at.checked_add(size).is_none_or(|end| end > self.image.size()) {
                reason.get_or_insert_with(|| "lies behind the end of the image".to_owned());
                continue;
            }
            let mut bytes = vec![0; self.parameters.node_size];
            read_backing(&*self.image, at, &mut bytes).map_err(|error| VolumeError::Io { offset: at, error })?;
            match Block::new(bytes, at, address, &self.parameters) {
                Ok(block) if expected(&block) => {
                    let block = Arc::new(block);
                    self.cache.put(address, Arc::clone(&block));
                    return Ok(block);
                }
                Ok(_) => drop(reason.get_or_insert_with(|| OTHER.to_owned())),
                Err(why) => drop(reason.get_or_insert(why)),
            }
        }
        Err(wrong(&reason.unwrap_or_default()))
    }
}
