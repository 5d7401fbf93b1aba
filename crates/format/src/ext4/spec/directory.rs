//! Directory blocks: linear ones (`struct ext4_dir_entry_2` in `fs/ext4/ext4.h`) and the index blocks of hashed
//! directories (`struct dx_root`, `dx_node`, `dx_tail` in `fs/ext4/namei.c`).

use inarch_tree::FileType;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::crc32c;
use super::{BLOCK_SIZE, Block, put};

/// Bytes of a name at most (`EXT4_NAME_LEN`).
pub(crate) const NAME_MAX: usize = 255;
/// Bytes of an entry before its name.
const ENTRY_HEADER: usize = 8;
/// `struct ext4_dir_entry_tail`: an unused entry that holds the block's checksum.
const TAIL: usize = 12;
/// `EXT4_FT_DIR_CSUM`
const TAIL_TYPE: u8 = 0xDE;
/// Bytes of the entry `.`.
const DOT: usize = 12;
/// Bytes of a block that entries share.
pub(crate) const LEAF_SPACE: usize = BLOCK_SIZE - TAIL;
/// Bytes that `.` and `..` take.
pub(crate) const DOTS: usize = 24;

/// Entries of the root index block, the one for hash 0 included.
pub(crate) const ROOT_LIMIT: usize = (BLOCK_SIZE - ROOT_ENTRIES_OFFSET - DX_TAIL) / DX_ENTRY;
/// Entries of an index block below the root.
pub(crate) const NODE_LIMIT: usize = (BLOCK_SIZE - NODE_ENTRIES_OFFSET - DX_TAIL) / DX_ENTRY;

const ROOT_ENTRIES_OFFSET: usize = 32;
const NODE_ENTRIES_OFFSET: usize = 8;
const DX_ENTRY: usize = 8;
const DX_TAIL: usize = 8;
/// `DX_HASH_HALF_MD4`
pub(crate) const HASH_HALF_MD4: u8 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryHeader {
    inode: U32,
    rec_len: U16,
    name_len: u8,
    file_type: u8,
}

/// `struct dx_root_info`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RootInfo {
    reserved_zero: U32,
    hash_version: u8,
    info_length: u8,
    indirect_levels: u8,
    unused_flags: u8,
}

/// The bytes an entry with a name of `name_len` bytes takes, padded to four.
pub(crate) fn entry_size(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len).next_multiple_of(4)
}

/// The type of an entry, `EXT4_FT_*`.
pub(crate) fn type_code(file_type: FileType) -> u8 {
    match file_type {
        FileType::Regular => 1,
        FileType::Directory => 2,
        FileType::CharDevice => 3,
        FileType::BlockDevice => 4,
        FileType::Fifo => 5,
        FileType::Socket => 6,
        FileType::Symlink => 7,
    }
}

/// The reverse of [`type_code`]; none for what it does not give.
pub(crate) fn file_type_of(code: u8) -> Option<FileType> {
    use FileType::{BlockDevice, CharDevice, Directory, Fifo, Regular, Socket, Symlink};
    let all = [Regular, Directory, CharDevice, BlockDevice, Fifo, Socket, Symlink];
    all.into_iter().find(|file_type| type_code(*file_type) == code)
}

/// Writes the entries of one linear block or leaf, which is all zeros at first.
pub(crate) struct LeafWriter<'a> {
    block: &'a mut Block,
    last: usize,
    end: usize,
}

impl<'a> LeafWriter<'a> {
    pub(crate) fn new(block: &'a mut Block) -> LeafWriter<'a> {
        LeafWriter { block, last: 0, end: 0 }
    }

    /// Adds an entry. The planner gave each block only what fits; anything beyond is left out.
    pub(crate) fn push(&mut self, ino: u32, name: &[u8], type_code: u8) {
        let size = entry_size(name.len());
        if self.end + size > LEAF_SPACE {
            return;
        }
        put_entry(self.block, self.end, ino, size, name, type_code);
        (self.last, self.end) = (self.end, self.end + size);
    }

    /// Adds `.` and `..`.
    pub(crate) fn push_dots(&mut self, own: u32, parent: u32) {
        let code = type_code(FileType::Directory);
        self.push(own, b".", code);
        self.push(parent, b"..", code);
    }

    /// Extends the last entry up to the tail and writes the tail (`ext4_dirblock_csum`). An empty block gets an
    /// unused entry.
    pub(crate) fn finish(self, inode_seed: u32) {
        put(self.block, self.last + 4, &U16::new((LEAF_SPACE - self.last) as u16));
        let checksum = crc32c(inode_seed, &self.block[..LEAF_SPACE]);
        put_entry(self.block, LEAF_SPACE, 0, TAIL, &[], TAIL_TYPE);
        put(self.block, BLOCK_SIZE - 4, &U32::new(checksum));
    }
}

/// Writes one index block, which is all zeros at first.
pub(crate) struct IndexWriter<'a> {
    block: &'a mut Block,
    entries: usize,
    count: u16,
}

impl<'a> IndexWriter<'a> {
    /// The first block of a hashed directory; `levels` is 1 if nodes lie between it and the leaves, else 0.
    pub(crate) fn root(block: &'a mut Block, own: u32, parent: u32, levels: u8) -> IndexWriter<'a> {
        let code = type_code(FileType::Directory);
        put_entry(block, 0, own, 12, b".", code);
        put_entry(block, 12, parent, BLOCK_SIZE - 12, b"..", code);
        let info = RootInfo {
            reserved_zero: U32::ZERO,
            hash_version: HASH_HALF_MD4,
            info_length: size_of::<RootInfo>() as u8,
            indirect_levels: levels,
            unused_flags: 0,
        };
        put(block, 24, &info);
        IndexWriter { block, entries: ROOT_ENTRIES_OFFSET, count: 0 }
    }

    /// A block between the root and the leaves.
    pub(crate) fn node(block: &'a mut Block) -> IndexWriter<'a> {
        put_entry(block, 0, 0, BLOCK_SIZE, &[], 0);
        IndexWriter { block, entries: NODE_ENTRIES_OFFSET, count: 0 }
    }

    /// Adds a child: the directory's block `child` holds names from `hash` on. The first child's hash is not stored;
    /// the limit and the count are in its place.
    pub(crate) fn push(&mut self, hash: u32, child: u32) {
        let at = self.entries + usize::from(self.count) * DX_ENTRY;
        put(self.block, at, &[U32::new(hash), U32::new(child)]);
        self.count += 1;
    }

    /// Writes the limit, the count and the checksum over the entries in use (`ext4_dx_csum`).
    pub(crate) fn finish(self, inode_seed: u32) {
        let limit = (BLOCK_SIZE - self.entries - DX_TAIL) / DX_ENTRY;
        put(self.block, self.entries, &[U16::new(limit as u16), U16::new(self.count)]);
        let used = self.entries + usize::from(self.count) * DX_ENTRY;
        // The tail itself counts as zeros: its reserved word, and its checksum while it is computed.
        let checksum = crc32c(crc32c(inode_seed, &self.block[..used]), &[0; DX_TAIL]);
        put(self.block, self.entries + limit * DX_ENTRY + 4, &U32::new(checksum));
    }
}

fn put_entry(block: &mut Block, at: usize, ino: u32, rec_len: usize, name: &[u8], file_type: u8) {
    let header =
        EntryHeader { inode: U32::new(ino), rec_len: U16::new(rec_len as u16), name_len: name.len() as u8, file_type };
    put(block, at, &header);
    put(block, at + ENTRY_HEADER, name);
}

/// A name in a directory, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawEntry<'a> {
    /// The inode; 0 for an entry that is not used.
    pub(crate) ino: u32,
    /// The name.
    pub(crate) name: &'a [u8],
    /// The code of its type; 0 where the directory has none.
    pub(crate) type_code: u8,
}

/// The entries of a linear block, including unused ones. An index block reads as a block without names; the first
/// block of every directory reads as its dots.
#[derive(Clone, Debug)]
pub(crate) struct LeafReader<'a> {
    rest: &'a [u8],
    /// Without the feature `filetype`, the byte of the type is the upper half of the name's length.
    has_types: bool,
}

impl<'a> LeafReader<'a> {
    /// All of a block, or of the space for names within an inode.
    pub(crate) fn new(block: &'a [u8], has_types: bool) -> LeafReader<'a> {
        LeafReader { rest: block, has_types }
    }

    /// The next entry (`__ext4_check_dir_entry`): `None` where its length leaves no room for its name, is no
    /// multiple of four, or reaches beyond the block.
    fn take(&mut self) -> Option<RawEntry<'a>> {
        let (header, _) = EntryHeader::read_from_prefix(self.rest).ok()?;
        let length = length(header.rec_len, self.rest.len());
        let upper = if self.has_types { 0 } else { usize::from(header.file_type) << 8 };
        let name_len = usize::from(header.name_len) | upper;
        if length < entry_size(name_len.max(1)) {
            return None;
        }
        let (entry, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        let type_code = if self.has_types { header.file_type } else { 0 };
        Some(RawEntry { ino: header.inode.get(), name: entry.get(ENTRY_HEADER..ENTRY_HEADER + name_len)?, type_code })
    }
}

impl<'a> Iterator for LeafReader<'a> {
    /// An error means that the rest of the block is malformed.
    type Item = Result<RawEntry<'a>, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let entry = self.take();
        if entry.is_none() {
            self.rest = &[];
        }
        Some(entry.ok_or(()))
    }
}

/// Bytes of an entry, `left` bytes before its block's end. Only a block of 64 KiB has entries too long for the field
/// (`ext4_rec_len_from_disk`).
fn length(rec_len: U16, left: usize) -> usize {
    match usize::from(rec_len.get()) {
        0 | 0xFFFF if left == 1 << 16 => 1 << 16,
        length => (length & !3) | (length & 3) << 16,
    }
}

/// An index block of a hashed directory, as read.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    /// How names are hashed, in the root.
    pub(crate) version: u8,
    /// Hashes, the first of them 0, and the directory's blocks that have names from that on.
    entries: Vec<(u32, u32)>,
}

impl Index {
    /// The first block of a hashed directory, and how many levels lie between it and the leaves.
    pub(crate) fn root(block: &[u8]) -> Option<(Index, usize)> {
        let (info, _) = RootInfo::read_from_prefix(block.get(DOTS..)?).ok()?;
        let is_known = info.reserved_zero.get() == 0 && usize::from(info.info_length) == size_of::<RootInfo>();
        let entries = Index::entries(block, ROOT_ENTRIES_OFFSET).filter(|_| is_known && info.unused_flags & 1 == 0)?;
        Some((Index { version: info.hash_version, entries }, info.indirect_levels.into()))
    }

    /// A block between the root and the leaves.
    pub(crate) fn node(block: &[u8]) -> Option<Index> {
        Some(Index { version: 0, entries: Index::entries(block, NODE_ENTRIES_OFFSET)? })
    }

    fn entries(block: &[u8], at: usize) -> Option<Vec<(u32, u32)>> {
        let ([limit, count], _) = <[U16; 2]>::read_from_prefix(block.get(at..)?).ok()?;
        let (limit, count) = (usize::from(limit.get()), usize::from(count.get()));
        let bytes = block.get(at..at + count * DX_ENTRY).filter(|_| (1..=limit).contains(&count))?;
        let entry =
            |bytes: &[u8]| <[U32; 2]>::read_from_bytes(bytes).ok().map(|[hash, block]| (hash.get(), block.get()));
        let mut entries: Vec<_> = bytes.chunks_exact(DX_ENTRY).map(entry).collect::<Option<_>>()?;
        // The place of the first hash holds limit and count.
        entries.first_mut()?.0 = 0;
        entries.is_sorted_by_key(|(hash, _)| *hash).then_some(entries)
    }

    /// How many children there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The last child that starts at `hash` or before, and its place.
    pub(crate) fn find(&self, hash: u32) -> (usize, u64) {
        let place = self.entries.partition_point(|(from, _)| *from <= hash).saturating_sub(1);
        (place, self.get(place).unwrap_or(0))
    }

    /// A child's block in the directory (`dx_get_block`).
    pub(crate) fn get(&self, place: usize) -> Option<u64> {
        self.entries.get(place).map(|(_, block)| u64::from(block & 0x0FFF_FFFF))
    }

    /// Whether a child continues with names of `hash`, which the previous child has too: the lowest bit says so.
    pub(crate) fn starts_at(&self, place: usize, hash: u32) -> bool {
        self.entries.get(place).is_some_and(|(from, _)| from & !1 == hash && from & 1 == 1)
    }
}

/// Whether the checksum of a block of a directory is right (`ext4_dirblock_csum_verify`, `ext4_dx_csum_verify`): it
/// is in a tail of a linear block, or behind the limit of an index block, which may still have the tail of the linear
/// block that it was.
pub(crate) fn checksum_matches(block: &[u8], inode_seed: u32) -> bool {
    match index_entries(block) {
        Some(entries) => index_checksum_matches(block, entries, inode_seed).unwrap_or(false),
        None => linear_checksum_matches(block, inode_seed).unwrap_or(false),
    }
}

/// Where the entries of an index block start; `None` for a linear block (`get_dx_countlimit`). With checksums an entry
/// of a linear block cannot reach to the block's end.
fn index_entries(block: &[u8]) -> Option<usize> {
    let (first, _) = EntryHeader::read_from_prefix(block).ok()?;
    if length(first.rec_len, block.len()) == block.len() {
        return Some(NODE_ENTRIES_OFFSET);
    }
    let (second, _) = EntryHeader::read_from_prefix(block.get(DOT..)?).ok()?;
    let rest = block.len() - DOT;
    let is_root = usize::from(first.rec_len.get()) == DOT && length(second.rec_len, rest) == rest;
    is_root.then_some(ROOT_ENTRIES_OFFSET)
}

fn linear_checksum_matches(block: &[u8], inode_seed: u32) -> Option<bool> {
    let (covered, tail) = block.split_at_checked(block.len().checked_sub(TAIL)?)?;
    let (header, stored) = EntryHeader::read_from_prefix(tail).ok()?;
    let is_tail = header.inode.get() == 0 && usize::from(header.rec_len.get()) == TAIL;
    let is_tail = is_tail && header.name_len == 0 && header.file_type == TAIL_TYPE;
    let stored = U32::read_from_bytes(stored).ok()?;
    Some(is_tail && stored.get() == crc32c(inode_seed, covered))
}

fn index_checksum_matches(block: &[u8], entries: usize, inode_seed: u32) -> Option<bool> {
    let ([limit, count], _) = <[U16; 2]>::read_from_prefix(block.get(entries..)?).ok()?;
    let used = block.get(..entries + usize::from(count.get()) * DX_ENTRY)?;
    let tail = block.get(entries + usize::from(limit.get()) * DX_ENTRY..)?;
    let ([reserved, stored], _) = <[U32; 2]>::read_from_prefix(tail).ok()?;
    let checksum = crc32c(crc32c(crc32c(inode_seed, used), reserved.as_bytes()), &[0; 4]);
    Some(checksum == stored.get())
}
