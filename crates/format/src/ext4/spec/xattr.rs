//! Extended attributes (`fs/ext4/xattr.h`, `fs/ext4/xattr.c`).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::FsSeed;
use super::{BLOCK_SIZE, Block, put};

/// `EXT4_XATTR_MAGIC`
const MAGIC: u32 = 0xEA02_0000;
/// Inodes that may share one attribute block (`EXT4_XATTR_REFCOUNT_MAX`).
pub(crate) const MAX_REFERENCES: u32 = 1024;
/// Bytes before the entries within an inode.
pub(crate) const INODE_HEADER: usize = 4;
/// Bytes before the entries in a block.
pub(crate) const BLOCK_HEADER: usize = size_of::<BlockHeader>();
/// Bytes of zeros that end a list of entries.
pub(crate) const END: usize = 4;

const ENTRY_HEADER: usize = size_of::<EntryHeader>();

/// `EXT4_XATTR_INDEX_*`: the prefix of a name is stored as such an index.
pub(crate) mod index {
    pub(crate) const USER: u8 = 1;
    pub(crate) const POSIX_ACL_ACCESS: u8 = 2;
    pub(crate) const POSIX_ACL_DEFAULT: u8 = 3;
    pub(crate) const TRUSTED: u8 = 4;
    pub(crate) const SECURITY: u8 = 6;
    pub(crate) const SYSTEM: u8 = 7;
    pub(crate) const ENCRYPTION: u8 = 9;
}

/// `struct ext4_xattr_header`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockHeader {
    magic: U32,
    refcount: U32,
    blocks: U32,
    hash: U32,
    checksum: U32,
    reserved: [U32; 3],
}

/// `struct ext4_xattr_entry`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryHeader {
    name_len: u8,
    name_index: u8,
    value_offs: U16,
    value_inum: U32,
    value_size: U32,
    hash: U32,
}

/// Where an attribute's value is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    /// Beside the entry.
    Inline(&'a [u8]),
    /// In an inode of its own.
    Inode {
        /// That inode's number.
        ino: u32,
        /// Bytes of the value.
        size: u32,
        /// [`value_hash`] of the value.
        hash: u32,
    },
}

/// The bytes an entry takes without its value.
pub(crate) fn entry_size(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len).next_multiple_of(4)
}

/// The size of a value stored apart from its entry.
pub(crate) fn value_size(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// The hash of a value in an inode of its own (`ext4_xattr_inode_hash`).
pub(crate) fn value_hash(seed: FsSeed, value: &[u8]) -> u32 {
    super::checksum::crc32c(seed.0, value)
}

/// The hash of an entry (`ext4_xattr_hash_entry`): its name, then its value as words. Bytes of a name count as
/// unsigned, as kernels since 6.2 do on every architecture.
fn entry_hash(name: &[u8], words: impl Iterator<Item = u32>) -> u32 {
    let named = name.iter().fold(0u32, |hash, byte| hash.rotate_left(5) ^ u32::from(*byte));
    words.fold(named, |hash, word| hash.rotate_left(16) ^ word)
}

fn value_words(value: &[u8]) -> impl Iterator<Item = u32> {
    value.chunks(4).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(word)
    })
}

/// Writes entries from the front of an area and their values from its back.
pub(crate) struct AreaWriter<'a> {
    area: &'a mut [u8],
    /// Where value offsets count from: the first entry within an inode, the header in a block.
    base: usize,
    hashed: bool,
    entry: usize,
    value: usize,
    hash: u32,
    unshared: bool,
}

impl<'a> AreaWriter<'a> {
    /// The area within an inode: all bytes after its fixed part. Entries carry no hash there.
    pub(crate) fn in_inode(area: &'a mut [u8]) -> AreaWriter<'a> {
        put(area, 0, &U32::new(MAGIC));
        let value = area.len();
        AreaWriter { area, base: INODE_HEADER, hashed: false, entry: INODE_HEADER, value, hash: 0, unshared: false }
    }

    /// A block of attributes.
    pub(crate) fn in_block(block: &'a mut Block) -> AreaWriter<'a> {
        AreaWriter {
            area: block,
            base: 0,
            hashed: true,
            entry: BLOCK_HEADER,
            value: BLOCK_SIZE,
            hash: 0,
            unshared: false,
        }
    }

    /// Adds an attribute; a block needs them in the order of [`sort_key`]. The planner gives each area only what
    /// fits; anything beyond is dropped.
    pub(crate) fn push(&mut self, index: u8, name: &[u8], value: Value<'_>) {
        let (bytes, ino, size) = match value {
            Value::Inline(bytes) => (bytes, 0, bytes.len() as u32),
            Value::Inode { ino, size, .. } => (&[][..], ino, size),
        };
        let end = self.entry + entry_size(name.len());
        let Some(start) = self.value.checked_sub(value_size(bytes.len())).filter(|start| *start >= end + END) else {
            return;
        };
        let hash = match value {
            Value::Inode { hash, .. } => entry_hash(name, [hash].into_iter()),
            Value::Inline(bytes) if self.hashed => entry_hash(name, value_words(bytes)),
            Value::Inline(_) => 0,
        };
        let header = EntryHeader {
            name_len: name.len() as u8,
            name_index: index,
            value_offs: U16::new(if bytes.is_empty() { 0 } else { (start - self.base) as u16 }),
            value_inum: U32::new(ino),
            value_size: U32::new(size),
            hash: U32::new(hash),
        };
        put(self.area, self.entry, &header);
        put(self.area, self.entry + ENTRY_HEADER, name);
        put(self.area, start, bytes);
        // `ext4_xattr_rehash`: an entry without a hash makes the block one that is not shared.
        self.unshared |= hash == 0;
        self.hash = self.hash.rotate_left(16) ^ hash;
        (self.entry, self.value) = (end, start);
    }

    /// Writes the header of a block that `references` inodes share and that is device block `number`.
    pub(crate) fn finish_block(self, block: BlockIdentity) {
        let Ok(area) = <&mut Block>::try_from(self.area) else { return };
        let mut header = BlockHeader {
            magic: U32::new(MAGIC),
            refcount: U32::new(block.references),
            blocks: U32::new(1),
            hash: U32::new(if self.unshared { 0 } else { self.hash }),
            checksum: U32::ZERO,
            reserved: [U32::ZERO; 3],
        };
        put(area, 0, &header);
        header.checksum = block.seed.xattr_block(block.number, area);
        put(area, 0, &header);
    }
}

/// The identity of an attribute block, from its header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockIdentity {
    pub(crate) seed: FsSeed,
    /// Its number on the device, which its checksum covers.
    pub(crate) number: u64,
    /// Inodes that share it.
    pub(crate) references: u32,
}

/// The order of entries in a block (`ext4_xattr_find_entry`): by prefix, length of name, name.
pub(crate) fn sort_key(index: u8, name: &[u8]) -> (u8, usize, &[u8]) {
    (index, name.len(), name)
}

/// An attribute as listed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    /// The prefix of the name.
    pub(crate) index: u8,
    /// The rest of the name.
    pub(crate) name: &'a [u8],
    /// The value. For a value in an inode of its own, the hash is the entry's, not the value's.
    pub(crate) value: Value<'a>,
    /// The offset in the area of a value stored apart from its entry.
    pub(crate) at: usize,
}

/// The attributes in an area that was read.
#[derive(Clone, Debug)]
pub(crate) struct AreaReader<'a> {
    /// From where value offsets count.
    values: &'a [u8],
    /// Where in the area that is.
    base: usize,
    rest: &'a [u8],
}

impl<'a> AreaReader<'a> {
    /// The area within an inode: all bytes after its fixed part. `None` where there is none.
    pub(crate) fn in_inode(area: &'a [u8]) -> Option<AreaReader<'a>> {
        let (magic, values) = U32::read_from_prefix(area).ok()?;
        (magic.get() == MAGIC).then_some(AreaReader { values, base: INODE_HEADER, rest: values })
    }

    /// A block of attributes; `None` if its header is no such block's.
    pub(crate) fn in_block(block: &'a [u8]) -> Option<AreaReader<'a>> {
        let (header, rest) = BlockHeader::read_from_prefix(block).ok()?;
        let known = header.magic.get() == MAGIC && header.blocks.get() == 1;
        known.then_some(AreaReader { values: block, base: 0, rest })
    }

    fn take(&mut self) -> Option<Entry<'a>> {
        let (header, after) = EntryHeader::read_from_prefix(self.rest).ok()?;
        let name = after.get(..usize::from(header.name_len))?;
        let (ino, size) = (header.value_inum.get(), header.value_size.get());
        let start = usize::from(header.value_offs.get());
        let value = match ino {
            0 if size == 0 => Value::Inline(&[]),
            0 => Value::Inline(self.values.get(start..start.checked_add(size as usize)?)?),
            _ => Value::Inode { ino, size, hash: header.hash.get() },
        };
        self.rest = self.rest.get(entry_size(name.len())..)?;
        Some(Entry { index: header.name_index, name, value, at: self.base + start })
    }
}

impl<'a> Iterator for AreaReader<'a> {
    /// An error means that the rest of the area is malformed (`check_xattrs`).
    type Item = Result<Entry<'a>, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        // Four bytes of zeros end the list (`IS_LAST_ENTRY`), or there is no room for more.
        match U32::read_from_prefix(self.rest) {
            Ok((word, _)) if word.get() != 0 => {}
            _ => return None,
        }
        let entry = self.take();
        if entry.is_none() {
            self.rest = &[];
        }
        Some(entry.ok_or(()))
    }
}

/// Whether the checksum of the attribute block `number` is right (`ext4_xattr_block_csum_verify`).
pub(crate) fn checksum_matches(block: &[u8], seed: FsSeed, number: u64) -> bool {
    const CHECKSUM: usize = 16;
    let (Some(before), Some(rest)) = (block.get(..CHECKSUM), block.get(CHECKSUM + 4..)) else { return false };
    let Ok(header) = BlockHeader::read_from_prefix(block) else { return false };
    seed.xattr_block(number, &[before, &[0; 4], rest].concat()) == header.0.checksum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18 wrote this block, number 19, for two files after three `setfattr` each, on a file system with the
    /// UUID 01020304-0506-0708-090a-0b0c0d0e0f10. These are its first bytes; the checksum covers the others.
    const KERNEL_BLOCK: [u32; 22] = [
        0xea02_0000,
        2,
        1,
        0x0366_f720,
        0xf94e_a40d,
        0,
        0,
        0,
        0x0e08_0102,
        0,
        501,
        0x7a7a_7622,
        0x6262,
        0x0cdc_0103,
        0,
        300,
        0xf97a_7978,
        0x63_6363,
        0x0c10_0401,
        0,
        202,
        0x0064_7878,
    ];

    #[test]
    fn a_block_is_as_the_kernel_writes_it() {
        let mut block = [0; BLOCK_SIZE];
        let mut writer = AreaWriter::in_block(&mut block);
        writer.push(index::USER, b"bb", Value::Inline(&[b'z'; 501]));
        writer.push(index::USER, b"ccc", Value::Inline(&[b'y'; 300]));
        writer.push(index::TRUSTED, b"d", Value::Inline(&[b'x'; 202]));
        let seed = FsSeed::new(&std::array::from_fn(|i| i as u8 + 1));
        writer.finish_block(BlockIdentity { seed, number: 19, references: 2 });
        let words: Vec<_> = block.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words[..KERNEL_BLOCK.len()], KERNEL_BLOCK);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        let mut area = [0; 96];
        let mut writer = AreaWriter::in_inode(&mut area);
        writer.push(index::USER, b"a", Value::Inline(&[1; 60]));
        writer.push(index::USER, b"b", Value::Inline(&[0xEE; 60]));
        assert!(!area.contains(&0xEE));
        assert_eq!(area[36..], [1; 60]);
    }
}
