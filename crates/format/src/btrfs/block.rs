//! A block of a tree, checked once when it is read.

use std::ops::Range;

use zerocopy::FromBytes;

use super::spec::tree::{HEADER, Header, Item, Key, Pointer};
use super::superblock::Parameters;

/// A node or a leaf, whose keys ascend and whose items lie within it.
pub(super) struct Block {
    bytes: Vec<u8>,
    /// Byte of the image where it lies.
    pub(super) at: u64,
    pub(super) level: u8,
    pub(super) generation: u64,
    count: usize,
}

impl Block {
    /// Checks the block with a logical address. The error follows "the block at logical byte N".
    pub(super) fn new(bytes: Vec<u8>, at: u64, address: u64, parameters: &Parameters) -> Result<Block, String> {
        if !parameters.checksum.matches(&bytes) {
            return Err("has a wrong checksum".to_owned());
        }
        let Ok((header, _)) = Header::read_from_prefix(&bytes) else { return Err("is cut off".to_owned()) };
        if header.address.get() != address || header.fsid != parameters.fsid {
            return Err("belongs to another place, or to another file system".to_owned());
        }
        let entry = if header.level == 0 { size_of::<Item>() } else { size_of::<Pointer>() };
        let count = header.items.get() as usize;
        if count > (bytes.len() - HEADER) / entry {
            return Err(format!("says that it has {count} items, more than there is room for"));
        }
        let block = Block { bytes, at, level: header.level, generation: header.generation.get(), count };
        block.check()
    }

    fn check(self) -> Result<Block, String> {
        let mut last = None;
        let list_end = HEADER + self.count * size_of::<Item>();
        for slot in 0..self.count {
            let key = self.key(slot);
            if key <= last {
                return Err(format!("has keys out of order, at its item {slot}"));
            }
            last = key;
            if self.level == 0 {
                let range = self.range(slot).filter(|range| range.start >= list_end && range.end <= self.bytes.len());
                range.ok_or_else(|| format!("has its item {slot} outside of itself"))?;
            }
        }
        Ok(self)
    }

    /// Items, or blocks below.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn entry<T: FromBytes>(&self, slot: usize) -> Option<T> {
        let from = HEADER + slot.checked_mul(size_of::<T>())?;
        T::read_from_prefix(self.bytes.get(from..)?).ok().map(|(entry, _)| entry)
    }

    pub(super) fn key(&self, slot: usize) -> Option<Key> {
        if slot >= self.count {
            return None;
        }
        match self.level {
            0 => self.entry::<Item>(slot).map(|item| item.key.key()),
            _ => self.entry::<Pointer>(slot).map(|pointer| pointer.key.key()),
        }
    }

    /// In a node: the block below.
    pub(super) fn pointer(&self, slot: usize) -> Option<Pointer> {
        if self.level > 0 && slot < self.count { self.entry(slot) } else { None }
    }

    /// In a leaf: the bytes of an item, counted from the block's start.
    pub(super) fn range(&self, slot: usize) -> Option<Range<usize>> {
        if self.level > 0 || slot >= self.count {
            return None;
        }
        let item: Item = self.entry(slot)?;
        let start = HEADER.checked_add(item.offset.get() as usize)?;
        Some(start..start.checked_add(item.size.get() as usize)?)
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.bytes.get(range).unwrap_or_default()
    }

    /// The last slot whose key is not behind `key`.
    pub(super) fn find(&self, key: &Key) -> Option<usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle)? <= *key {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low.checked_sub(1)
    }
}
