//! Computes the data blocks of a regular file from its size and holes.

use std::ops::Range;

use inarch_tree::{DataRange, InodeId, Tree};

/// A file cut into blocks. A block without any data is not stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks<'a> {
    size: u64,
    block_size: u64,
    /// Where it has data, if not everywhere.
    ranges: Option<&'a [DataRange]>,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(tree: &'a Tree, id: InodeId, block_size: u32) -> Blocks<'a> {
        Blocks { size: tree.inode(id).size(), block_size: block_size.into(), ranges: tree.sparse_ranges(id) }
    }

    /// How many blocks there are, stored or not.
    pub(crate) fn count(&self) -> u64 {
        self.size.div_ceil(self.block_size)
    }

    /// Bytes of a block.
    pub(crate) fn length(&self, block: u64) -> u64 {
        self.size.saturating_sub(block * self.block_size).min(self.block_size)
    }

    /// The blocks with data, as ascending ranges with holes between them.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u64>> + use<'a> {
        self.runs_from(0)
    }

    /// As [`Blocks::runs`], from the run that ends beyond `block`.
    pub(crate) fn runs_from(&self, block: u64) -> impl Iterator<Item = Range<u64>> + use<'a> {
        let (size, block_size) = (self.size, self.block_size);
        let whole = (self.ranges.is_none() && size > 0).then_some(0..self.count());
        let all = self.ranges.unwrap_or_default();
        let first = all.partition_point(|range| (range.offset + range.length).div_ceil(block_size) <= block);
        let mut ranges = all.get(first..).unwrap_or_default().iter().peekable();
        let holed = std::iter::from_fn(move || {
            let range = ranges.next()?;
            let start = range.offset / block_size;
            let mut end = (range.offset + range.length).div_ceil(block_size);
            while let Some(next) = ranges.next_if(|next| next.offset / block_size <= end) {
                end = end.max((next.offset + next.length).div_ceil(block_size));
            }
            Some(start..end)
        });
        whole.into_iter().chain(holed)
    }

    /// Bytes of the blocks in a range.
    pub(crate) fn bytes(&self, blocks: &Range<u64>) -> u64 {
        blocks.end.saturating_mul(self.block_size).min(self.size) - blocks.start * self.block_size
    }

    /// Bytes that lie in blocks without data.
    pub(crate) fn sparse_bytes(&self) -> u64 {
        self.size - self.runs().map(|run| self.bytes(&run)).sum::<u64>()
    }
}
