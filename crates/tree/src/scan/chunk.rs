//! The data that workers pass to the assembly: listings of directories, in chunks that are freed one by one.

use crate::inode::Inode;
use crate::{DataRange, Xattr};

use super::report::ReportPart;

/// A chunk with this many entries takes no further listing.
const CHUNK_ENTRIES: usize = 4096;

/// A directory's entries: a range of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listing {
    /// The serial number that the directory got when it was found; 0 is the root.
    pub(super) serial: u32,
    pub(super) chunk: usize,
    /// First entry, name byte and hard link in the chunk.
    pub(super) start: Position,
    /// Number of entries.
    pub(super) count: usize,
}

/// A place in a chunk's tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) entry: usize,
    pub(super) name: usize,
    pub(super) link: usize,
}

/// An entry whose inode has other names.
#[derive(Clone, Copy, Debug)]
pub(super) struct HardLink {
    /// Index of the entry in the chunk.
    pub(super) entry: usize,
    /// Device of the inode, whose number is in the entry.
    pub(super) device: u64,
}

/// The entries of some directories, sorted by name within each.
///
/// Until an inode is in the tree, its `detail` is: for a directory to be descended, its serial number; for a symlink,
/// the index of its target; for a sparse file, the index of its ranges. Its `xattrs` are an index into its worker's
/// sets.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) inodes: Vec<Inode>,
    pub(super) name_lengths: Vec<u8>,
    pub(super) names: Vec<u8>,
    /// Ascending by entry.
    pub(super) links: Vec<HardLink>,
    /// Where each target ends in `target_bytes`; it starts where the previous one ends.
    pub(super) target_ends: Vec<usize>,
    pub(super) target_bytes: Vec<u8>,
    pub(super) sparse: Vec<Box<[DataRange]>>,
    /// Listings that are not in the tree yet.
    pub(super) listings_left: usize,
}

impl Chunk {
    pub(super) fn new() -> Chunk {
        Chunk {
            inodes: Vec::with_capacity(CHUNK_ENTRIES),
            name_lengths: Vec::with_capacity(CHUNK_ENTRIES),
            names: Vec::with_capacity(CHUNK_ENTRIES * 16),
            ..Chunk::default()
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.inodes.len() >= CHUNK_ENTRIES
    }

    /// The position of the next entry.
    pub(super) fn end(&self) -> Position {
        Position { entry: self.inodes.len(), name: self.names.len(), link: self.links.len() }
    }

    pub(super) fn target(&self, index: u32) -> &[u8] {
        let index = index as usize;
        let start = index.checked_sub(1).and_then(|before| self.target_ends.get(before)).copied().unwrap_or(0);
        let end = self.target_ends.get(index).copied().unwrap_or(start);
        self.target_bytes.get(start..end).unwrap_or_default()
    }
}

/// Everything that one worker found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) chunks: Vec<Chunk>,
    pub(super) listings: Vec<Listing>,
    /// The sets of extended attributes; its inodes refer to them by index; 0 is the empty set.
    pub(super) xattr_sets: Vec<Vec<Xattr>>,
    /// The root directory's own inode, from the worker that read it.
    pub(super) root: Option<Inode>,
    pub(super) report: ReportPart,
}
