//! Finds keys in a tree, and goes from one to the next.

use std::sync::Arc;

use inarch_volume::VolumeError;

use super::block::Block;
use super::blocks::Blocks;
use super::damaged;
use super::spec::tree::Key;

/// The root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    /// Logical address of its block.
    pub(super) address: u64,
    pub(super) level: u8,
    pub(super) generation: u64,
}

/// An item of a tree, with the blocks above it.
///
/// A block begins with the key that the one above has for it, and ends before the next key there. So keys ascend from
/// one leaf to the next, no block is met twice, and every walk ends.
pub(super) struct Position<'a> {
    blocks: &'a Blocks,
    /// From the root to the leaf: each block, and the slot in it. A slot behind the last one is the end of the tree.
    path: Vec<(Arc<Block>, usize)>,
}

impl<'a> Position<'a> {
    /// The last item that is not behind `key`, or the tree's first one.
    pub(super) fn before(blocks: &'a Blocks, root: &Root, key: Key) -> Result<Position<'a>, VolumeError> {
        let mut position = Position { blocks, path: Vec::with_capacity(usize::from(root.level) + 1) };
        let block = blocks.get(root.address, root.level, root.generation)?;
        if block.level > 0 && block.count() == 0 {
            return Err(damaged(format!("the block at logical byte {} is a node of nothing", root.address)));
        }
        let slot = block.find(&key).unwrap_or(0);
        position.path.push((block, slot));
        position.descend(|block| block.find(&key).unwrap_or(0))?;
        Ok(position)
    }

    /// The first item that is not before `key`.
    pub(super) fn from(blocks: &'a Blocks, root: &Root, key: Key) -> Result<Position<'a>, VolumeError> {
        let mut position = Position::before(blocks, root, key)?;
        if position.key().is_some_and(|found| found < key) {
            position.advance()?;
        }
        Ok(position)
    }

    /// Goes down to a leaf, in each block to the slot that `choose` says.
    fn descend(&mut self, choose: impl Fn(&Block) -> usize) -> Result<(), VolumeError> {
        while let Some((block, slot)) = self.path.last()
            && block.level > 0
        {
            let Some(pointer) = block.pointer(*slot) else { return Ok(()) };
            let (address, first) = (pointer.address.get(), pointer.key.key());
            let child = self.blocks.get(address, block.level - 1, pointer.generation.get())?;
            let last = child.count().checked_sub(1).and_then(|last| child.key(last));
            let ends = last.is_some_and(|last| self.bound().is_none_or(|bound| last < bound));
            if child.key(0) != Some(first) || !ends {
                let text = format!("the block at logical byte {address} has other keys than the one above it says");
                return Err(damaged(text));
            }
            let slot = choose(&child);
            self.path.push((child, slot));
        }
        Ok(())
    }

    /// The key that follows those below the last slot of the path.
    fn bound(&self) -> Option<Key> {
        self.path.iter().rev().find_map(|(block, slot)| block.key(slot + 1))
    }

    /// Goes to the next item.
    pub(super) fn advance(&mut self) -> Result<(), VolumeError> {
        while let Some((block, slot)) = self.path.last_mut() {
            *slot += 1;
            if *slot < block.count() {
                return self.descend(|_| 0);
            }
            self.path.pop();
        }
        Ok(())
    }

    /// The item's key; `None` behind the last one.
    pub(super) fn key(&self) -> Option<Key> {
        let (block, slot) = self.path.last().filter(|(block, _)| block.level == 0)?;
        block.key(*slot)
    }

    /// The item.
    pub(super) fn item(&self) -> Option<(Key, &[u8])> {
        let (block, slot) = self.path.last().filter(|(block, _)| block.level == 0)?;
        Some((block.key(*slot)?, block.bytes(block.range(*slot)?)))
    }

    /// Byte of the image where the item's data lies.
    pub(super) fn at(&self) -> Option<u64> {
        let (block, slot) = self.path.last()?;
        block.at.checked_add(block.range(*slot)?.start as u64)
    }
}

impl Blocks {
    /// Gives `take` the item with a key; `None` if there is none.
    pub(super) fn with_item<T>(
        &self,
        root: &Root,
        key: Key,
        take: impl FnOnce(&[u8]) -> Result<T, VolumeError>,
    ) -> Result<Option<T>, VolumeError> {
        let position = Position::before(self, root, key)?;
        match position.item() {
            Some((found, item)) if found == key => take(item).map(Some),
            _ => Ok(None),
        }
    }
}
