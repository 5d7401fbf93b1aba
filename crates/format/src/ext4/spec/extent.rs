//! Extent trees (`fs/ext4/ext4_extents.h`).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::crc32c;
use super::{BLOCK_SIZE, Block, put};

/// `EXT4_EXT_MAGIC`
const MAGIC: u16 = 0xF30A;
/// Blocks of an initialised extent at most (`EXT_INIT_MAX_LEN`).
pub(crate) const MAX_LENGTH: u32 = 32_768;
/// Levels of index nodes at most (`EXT4_MAX_EXTENT_DEPTH`).
const MAX_DEPTH: u16 = 5;
/// Entries of the root, in the inode.
pub(crate) const ROOT_ENTRIES: usize = 4;
/// Entries of a block.
pub(crate) const BLOCK_ENTRIES: usize = (SPACE - HEADER) / ENTRY;

/// Bytes of a block before its tail.
pub(crate) const SPACE: usize = BLOCK_SIZE - TAIL;

const HEADER: usize = size_of::<Header>();
const ENTRY: usize = size_of::<LeafEntry>();
/// `struct ext4_extent_tail`: a checksum.
const TAIL: usize = 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: U16,
    entries: U16,
    max: U16,
    depth: U16,
    generation: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LeafEntry {
    block: U32,
    length: U16,
    start_hi: U16,
    start_lo: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct IndexEntry {
    block: U32,
    leaf_lo: U32,
    leaf_hi: U16,
    unused: U16,
}

/// Blocks of a file that lie together on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block within the file.
    pub(crate) logical: u32,
    /// Blocks, 1 to [`MAX_LENGTH`].
    pub(crate) length: u32,
    /// First block on the device, 48 bits.
    pub(crate) physical: u64,
}

/// Writes one node: `out` is the root's `i_block` or a block without its tail.
pub(crate) struct NodeWriter<'a> {
    out: &'a mut [u8],
    entries: u16,
    depth: u16,
}

impl<'a> NodeWriter<'a> {
    /// A node `depth` levels above the leaves.
    pub(crate) fn new(out: &'a mut [u8], depth: u16) -> NodeWriter<'a> {
        NodeWriter { out, entries: 0, depth }
    }

    /// Adds an extent to a leaf.
    pub(crate) fn push_extent(&mut self, extent: Extent) {
        let entry = LeafEntry {
            block: U32::new(extent.logical),
            length: U16::new(extent.length as u16),
            start_hi: U16::new((extent.physical >> 32) as u16),
            start_lo: U32::new(extent.physical as u32),
        };
        self.push(&entry);
    }

    /// Adds the child node at device block `node`, whose first extent starts at `logical`.
    pub(crate) fn push_child(&mut self, logical: u32, node: u64) {
        let entry = IndexEntry {
            block: U32::new(logical),
            leaf_lo: U32::new(node as u32),
            leaf_hi: U16::new((node >> 32) as u16),
            unused: U16::ZERO,
        };
        self.push(&entry);
    }

    /// Writes the header.
    pub(crate) fn finish(self) {
        let header = Header {
            magic: U16::new(MAGIC),
            entries: U16::new(self.entries),
            max: U16::new(((self.out.len() - HEADER) / ENTRY) as u16),
            depth: U16::new(self.depth),
            generation: U32::ZERO,
        };
        put(self.out, 0, &header);
    }

    fn push<T: IntoBytes + Immutable>(&mut self, entry: &T) {
        put(self.out, HEADER + usize::from(self.entries) * ENTRY, entry);
        self.entries += 1;
    }
}

/// Sets the checksum of a node that is a block (`ext4_extent_block_csum`).
pub(crate) fn seal(block: &mut Block, inode_seed: u32) {
    let checksum = crc32c(inode_seed, &block[..SPACE]);
    put(block, SPACE, &U32::new(checksum));
}

/// An entry of a node, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Of a leaf. Blocks that are allocated and never written read as zeros.
    Extent {
        /// Where it is.
        extent: Extent,
        /// Whether it was written.
        written: bool,
    },
    /// Of an index node: the child at device block `node` maps blocks from `logical` on.
    Child {
        /// First block within the file.
        logical: u32,
        /// The child's block on the device.
        node: u64,
    },
}

impl Item {
    /// First block within the file.
    pub(crate) fn logical(&self) -> u32 {
        match self {
            Item::Extent { extent, .. } => extent.logical,
            Item::Child { logical, .. } => *logical,
        }
    }
}

/// A node that was read: the root's `i_block`, or a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    entries: &'a [[u8; ENTRY]],
    /// Levels above the leaves.
    pub(crate) depth: u16,
}

impl<'a> Node<'a> {
    /// Checks the header (`__ext4_ext_check`): magic number, depth, and that the entries in use lie within the bytes.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Node<'a>> {
        let (header, rest) = Header::read_from_prefix(bytes).ok()?;
        let (slots, _) = rest.as_chunks::<ENTRY>();
        let fits = usize::from(header.max.get()) <= slots.len() && header.entries.get() <= header.max.get();
        if header.magic.get() != MAGIC || header.depth.get() > MAX_DEPTH || !fits {
            return None;
        }
        Some(Node { entries: slots.get(..usize::from(header.entries.get()))?, depth: header.depth.get() })
    }

    /// Its entries, in the order stored.
    pub(crate) fn items(self) -> impl ExactSizeIterator<Item = Item> + 'a {
        self.entries.iter().map(move |bytes| match self.depth {
            0 => Item::extent(zerocopy::transmute!(*bytes)),
            _ => Item::child(zerocopy::transmute!(*bytes)),
        })
    }
}

impl Item {
    fn extent(entry: LeafEntry) -> Item {
        let stored = u32::from(entry.length.get());
        let written = stored <= MAX_LENGTH;
        let physical = u64::from(entry.start_hi.get()) << 32 | u64::from(entry.start_lo.get());
        let length = if written { stored } else { stored - MAX_LENGTH };
        Item::Extent { extent: Extent { logical: entry.block.get(), length, physical }, written }
    }

    fn child(entry: IndexEntry) -> Item {
        let node = u64::from(entry.leaf_hi.get()) << 32 | u64::from(entry.leaf_lo.get());
        Item::Child { logical: entry.block.get(), node }
    }
}

/// Whether the checksum of a node that is a block is right; it lies behind the last slot for an entry
/// (`ext4_extent_block_csum_verify`).
pub(crate) fn checksum_matches(block: &[u8], inode_seed: u32) -> bool {
    let Ok((header, _)) = Header::read_from_prefix(block) else { return false };
    let space = HEADER + usize::from(header.max.get()) * ENTRY;
    let Some((covered, tail)) = block.split_at_checked(space) else { return false };
    U32::read_from_prefix(tail).is_ok_and(|(stored, _)| stored.get() == crc32c(inode_seed, covered))
}
