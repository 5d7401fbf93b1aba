//! Cuts the content of all files into pieces for threads.

use inarch_tree::{FileType, InodeId, Tree};

use crate::squashfs::layout::blocks::Blocks;

/// Bytes of content that a thread takes at once, unless a block is larger.
const BATCH: u64 = 128 << 10;
/// Files that a thread takes at once.
const MAX_PIECES: usize = 256;

/// A range of a file: whole blocks, or up to the file's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) inode: InodeId,
    /// Where it starts, in bytes.
    pub(super) offset: u64,
    /// Bytes, not 0.
    pub(super) length: u64,
    /// Whether no block of it has any data.
    pub(super) hole: bool,
    /// Whether the file ends with it.
    pub(super) last: bool,
}

/// The remaining content, in the order of the image.
pub(super) struct Jobs<'a> {
    tree: &'a Tree,
    order: std::slice::Iter<'a, InodeId>,
    block_size: u32,
    /// A file that was given out in part, and where the rest starts.
    current: Option<(InodeId, u64)>,
}

impl<'a> Jobs<'a> {
    pub(super) fn new(tree: &'a Tree, order: &'a [InodeId], block_size: u32) -> Jobs<'a> {
        Jobs { tree, order: order.iter(), block_size, current: None }
    }

    /// The next file with content, and where its rest starts.
    fn file(&mut self) -> Option<(InodeId, u64)> {
        let tree = self.tree;
        let has_content =
            |id: &&InodeId| tree.inode(**id).file_type() == FileType::Regular && tree.inode(**id).size() > 0;
        self.current.take().or_else(|| self.order.by_ref().find(has_content).map(|id| (*id, 0)))
    }
}

impl Iterator for Jobs<'_> {
    type Item = Vec<Piece>;

    /// The next pieces for one thread; a file's first piece may follow the last of others.
    fn next(&mut self) -> Option<Vec<Piece>> {
        let batch = BATCH.max(self.block_size.into());
        let mut pieces = Vec::new();
        let mut left = batch;
        while left > 0
            && pieces.len() < MAX_PIECES
            && let Some((inode, offset)) = self.file()
        {
            let size = self.tree.inode(inode).size();
            let (length, hole) = self.cut(inode, offset, batch);
            if !hole && length > left && !pieces.is_empty() {
                self.current = Some((inode, offset));
                break;
            }
            let last = offset + length == size;
            pieces.push(Piece { inode, offset, length, hole, last });
            left = left.saturating_sub(if hole { 0 } else { length });
            if !last {
                self.current = Some((inode, offset + length));
            }
        }
        (!pieces.is_empty()).then_some(pieces)
    }
}

impl Jobs<'_> {
    /// Bytes of a file's next piece from `offset`, and whether it is a hole: `batch` of them at most, if not.
    fn cut(&self, inode: InodeId, offset: u64, batch: u64) -> (u64, bool) {
        let block_size = u64::from(self.block_size);
        let size = self.tree.inode(inode).size();
        let first = offset / block_size;
        let run = Blocks::new(self.tree, inode, self.block_size).runs_from(first).next();
        match run {
            Some(run) if run.start <= first => ((run.end * block_size).min(size).min(offset + batch) - offset, false),
            Some(run) => (run.start * block_size - offset, true),
            None => (size - offset, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use inarch_tree::{Attributes, Builder, DataRange};

    use super::*;

    #[test]
    fn pieces_cover_every_file_in_order() {
        let mut b = Builder::new(&Attributes { mode: 0o040755, ..Attributes::default() }).unwrap();
        b.list(InodeId::ROOT).unwrap();
        let mut add = |name: &str, size| {
            b.add(name.as_bytes(), &Attributes { mode: 0o100644, size, ..Attributes::default() }).unwrap()
        };
        let ids = [add("a", 10), add("b", 0), add("c", 300_000), add("d", 1), add("e", 1 << 40)];
        let ranges = [(1 << 30, 5), (1 << 39, 4097)].map(|(offset, length)| DataRange { offset, length });
        b.set_sparse(ids[4], &ranges).unwrap();
        let tree = b.finish().unwrap();
        let pieces: Vec<Piece> = Jobs::new(&tree, &ids, 4096).flatten().collect();
        let mut ends = [0; 6];
        for piece in &pieces {
            let end = &mut ends[piece.inode.index()];
            assert_eq!(piece.offset, *end);
            *end += piece.length;
            assert_eq!(piece.last, *end == tree.inode(piece.inode).size());
            assert!(piece.hole || piece.length <= BATCH);
        }
        assert_eq!(ends, [0, 10, 0, 300_000, 1, 1 << 40]);
        let of_e: Vec<_> = pieces.iter().filter(|p| p.inode == ids[4]).map(|p| (p.length, p.hole)).collect();
        let between = (1 << 39) - (1 << 30) - 4096;
        let behind = (1 << 40) - (1 << 39) - 8192;
        assert_eq!(of_e, [(1 << 30, true), (4096, false), (between, true), (8192, false), (behind, true)]);
    }
}
