//! Places of inodes in the inode table, and of metadata blocks on disk.

use inarch_tree::InodeId;

use super::numbers::Numbers;
use crate::squashfs::spec::{METADATA_HEADER, METADATA_SIZE, Reference};

/// The places of inodes in the uncompressed inode table.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) numbers: &'a Numbers,
    /// For each inode, in the order of their numbers, the byte where it starts.
    pub(crate) positions: &'a [u32],
}

impl Places<'_> {
    pub(crate) fn number(&self, inode: InodeId) -> u32 {
        self.numbers.of(inode)
    }

    /// Where an inode starts.
    pub(crate) fn position(&self, inode: InodeId) -> u32 {
        let place = (self.number(inode) as usize).wrapping_sub(1);
        self.positions.get(place).copied().unwrap_or(0)
    }

    /// The metadata block in which it does, from 0.
    pub(crate) fn block(&self, inode: InodeId) -> u32 {
        self.position(inode) / METADATA_SIZE as u32
    }

    /// Where in that block.
    pub(crate) fn offset(&self, inode: InodeId) -> u16 {
        (self.position(inode) as usize % METADATA_SIZE) as u16
    }
}

/// Where the metadata blocks of a table lie on disk, as offsets from the table's start.
#[derive(Clone, Debug)]
pub(crate) enum Starts {
    /// All of them are stored.
    Stored,
    /// They are compressed.
    Packed(Vec<u64>),
}

impl Starts {
    pub(crate) fn of(&self, block: u64) -> u64 {
        match self {
            Starts::Stored => block * (METADATA_SIZE + METADATA_HEADER) as u64,
            Starts::Packed(starts) => starts.get(block as usize).copied().unwrap_or(0),
        }
    }

    /// A reference to an uncompressed byte of the table.
    pub(crate) fn reference(&self, position: u64) -> Reference {
        Reference::new(self.of(position / METADATA_SIZE as u64), (position % METADATA_SIZE as u64) as u16)
    }
}
