//! A file's extents, and the shape of its extent tree.

use inarch_tree::{DataRange, InodeId, Tree};

use crate::ext4::spec::BLOCK_SIZE;
use crate::ext4::spec::extent::{BLOCK_ENTRIES, Extent, MAX_LENGTH, ROOT_ENTRIES};

/// The ranges of a regular file that take blocks, as (first block, number of blocks): ascending, never adjacent.
#[derive(Clone, Debug)]
pub(crate) struct Runs<'a> {
    ranges: &'a [DataRange],
    next: usize,
    /// The one range of a file without holes.
    whole: Option<DataRange>,
}

impl<'a> Runs<'a> {
    /// The runs of `inode`; none unless it is a regular file with data.
    pub(crate) fn new(tree: &'a Tree, inode: InodeId) -> Runs<'a> {
        match tree.sparse_ranges(inode) {
            Some(ranges) => Runs { ranges, next: 0, whole: None },
            None => {
                let size = tree.inode(inode).size();
                let whole = (size > 0).then_some(DataRange { offset: 0, length: size });
                Runs { ranges: &[], next: 0, whole }
            }
        }
    }

    fn next_range(&mut self) -> Option<(u64, u64)> {
        let range = match self.ranges.get(self.next) {
            Some(range) => {
                self.next += 1;
                *range
            }
            None => self.whole.take()?,
        };
        let block = BLOCK_SIZE as u64;
        Some((range.offset / block, (range.offset + range.length).div_ceil(block)))
    }
}

impl Iterator for Runs<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let (start, mut end) = self.next_range()?;
        // Ranges need not end at a block's end: what comes next may begin in the same block or right after it.
        while let Some(range) = self.ranges.get(self.next)
            && range.offset / BLOCK_SIZE as u64 <= end
        {
            end = (range.offset + range.length).div_ceil(BLOCK_SIZE as u64).max(end);
            self.next += 1;
        }
        Some((start, end - start))
    }
}

/// The extents of a file whose data is contiguous on the device. A clone resumes at the original's position.
#[derive(Clone, Debug)]
pub(crate) struct Extents<'a> {
    runs: Runs<'a>,
    run: (u64, u64),
    physical: u64,
}

/// Where in a file's extents a leaf of its tree starts: what [`Extents::resume`] needs, without the borrow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    next_range: u32,
    logical: u32,
    remaining: u32,
    /// Blocks from the start of the file's data.
    offset: u64,
}

impl Cursor {
    /// The start of `blocks` blocks in one run without holes.
    pub(crate) fn contiguous(blocks: u32) -> Cursor {
        Cursor { next_range: 0, logical: 0, remaining: blocks, offset: 0 }
    }

    /// The first block within the file that the leaf maps.
    pub(crate) fn logical(&self) -> u32 {
        self.logical
    }
}

impl<'a> Extents<'a> {
    /// The extents of `inode`, whose data starts at device block `start`.
    pub(crate) fn new(tree: &'a Tree, inode: InodeId, start: u64) -> Extents<'a> {
        let mut runs = Runs::new(tree, inode);
        let run = runs.next().unwrap_or((0, 0));
        Extents { runs, run, physical: start }
    }

    /// The extents of `inode` from `cursor` on.
    pub(crate) fn resume(tree: &'a Tree, inode: InodeId, start: u64, cursor: Cursor) -> Extents<'a> {
        let mut runs = Runs::new(tree, inode);
        runs.next = cursor.next_range as usize;
        runs.whole = None;
        let run = (u64::from(cursor.logical), u64::from(cursor.remaining));
        Extents { runs, run, physical: start + cursor.offset }
    }

    /// Where these extents stand; `start` is what they were made with.
    pub(crate) fn cursor(&self, start: u64) -> Cursor {
        Cursor {
            next_range: self.runs.next as u32,
            logical: self.run.0 as u32,
            remaining: self.run.1 as u32,
            offset: self.physical - start,
        }
    }
}

impl Iterator for Extents<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let length = self.run.1.min(u64::from(MAX_LENGTH));
        if length == 0 {
            return None;
        }
        let extent = Extent { logical: self.run.0 as u32, length: length as u32, physical: self.physical };
        self.physical += length;
        self.run = (self.run.0 + length, self.run.1 - length);
        if self.run.1 == 0 {
            self.run = self.runs.next().unwrap_or((0, 0));
        }
        Some(extent)
    }
}

/// The shape of an extent tree that does not fit the inode: level by level from the leaves up, all nodes but the last
/// of a level full. The root, in the inode, points at the top level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeShape {
    leaves: usize,
}

/// One node of an extent tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeNode {
    /// 0 for a leaf.
    pub(crate) level: u16,
    /// Its place among its level.
    pub(crate) index: usize,
}

impl TreeShape {
    /// The tree for `extents` extents; `None` if the inode holds them.
    pub(crate) fn new(extents: u64) -> Option<TreeShape> {
        (extents > ROOT_ENTRIES as u64).then(|| TreeShape { leaves: extents.div_ceil(BLOCK_ENTRIES as u64) as usize })
    }

    /// The shape of a tree with this many leaves.
    pub(crate) fn with_leaves(leaves: usize) -> TreeShape {
        TreeShape { leaves }
    }

    /// Nodes of each level, from the leaves up to the one that fits the root.
    fn levels(self) -> impl Iterator<Item = usize> {
        let up = |nodes: &usize| (*nodes > ROOT_ENTRIES).then(|| nodes.div_ceil(BLOCK_ENTRIES));
        std::iter::successors(Some(self.leaves), up)
    }

    /// Blocks of all levels.
    pub(crate) fn blocks(self) -> u64 {
        self.levels().sum::<usize>() as u64
    }

    /// Which node the tree's block `block` is; `None` beyond its last.
    pub(crate) fn node(self, block: u64) -> Option<TreeNode> {
        let mut index = usize::try_from(block).ok()?;
        for (level, nodes) in self.levels().enumerate() {
            if index < nodes {
                return Some(TreeNode { level: level as u16, index });
            }
            index -= nodes;
        }
        None
    }

    /// The nodes the root points at: their level, and how many there are.
    pub(crate) fn top(self) -> (u16, usize) {
        self.levels().enumerate().last().map_or((0, 0), |(level, nodes)| (level as u16, nodes))
    }

    /// The nodes `first..` of `level`, up to a block's worth, each as (the tree's block, its first leaf).
    pub(crate) fn children(self, level: u16, first: usize) -> impl Iterator<Item = (u64, usize)> {
        let below: usize = self.levels().take(usize::from(level)).sum();
        let nodes = self.levels().nth(usize::from(level)).unwrap_or(0);
        let span = BLOCK_ENTRIES.pow(u32::from(level));
        (first..nodes.min(first + BLOCK_ENTRIES)).map(move |node| ((below + node) as u64, node * span))
    }
}
