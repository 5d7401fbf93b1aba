//! [`Pieces`]: where the compressed content of files is.

use inarch_tree::InodeId;

/// Where the pieces of compressed files are.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// Each file's first piece, ascending by both.
    pub(crate) files: Vec<(InodeId, usize)>,
    /// The first block of each piece; the last is the end of all.
    pub(crate) starts: Vec<u32>,
}

impl Pieces {
    /// The first block of piece `piece` of a file, and how many it has.
    pub(crate) fn of(&self, id: InodeId, piece: u64) -> Option<(u32, u32)> {
        let file = self.files.binary_search_by_key(&id, |(file, _)| *file).ok()?;
        let (_, first) = self.files.get(file)?;
        let index = first + piece as usize;
        let (start, end) = (self.starts.get(index)?, self.starts.get(index + 1)?);
        Some((*start, end - start))
    }
}
