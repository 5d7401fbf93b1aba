//! Inodes (`struct erofs_inode_compact`, `struct erofs_inode_extended`).

use inarch_tree::FileType;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where an inode's data is: bits 1 to 3 of its format (`EROFS_INODE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum DataLayout {
    /// In one run of blocks.
    Plain = 0,
    /// Compressed, eight bytes of index a cluster.
    CompressedFull = 1,
    /// Like `Plain`, but the tail follows the inode instead of filling a last block.
    Inline = 2,
    /// Compressed, two or four bytes of index a cluster.
    CompressedCompact = 3,
    /// In chunks, each with its address.
    Chunked = 4,
}

impl DataLayout {
    /// The layout in an inode's format; `None` for values without meaning.
    pub(crate) fn from_format(format: u16) -> Option<DataLayout> {
        Some(match format >> 1 & 7 {
            0 => DataLayout::Plain,
            1 => DataLayout::CompressedFull,
            2 => DataLayout::Inline,
            3 => DataLayout::CompressedCompact,
            4 => DataLayout::Chunked,
            _ => return None,
        })
    }
}

/// Bit 0 of an inode's format: it is an [`ExtendedInode`].
pub(crate) const FORMAT_EXTENDED: u16 = 1;
/// Bit 4: a compact inode has one link and its link count is the upper half of its block address; a directory's
/// listing leaves out `.`.
pub(crate) const FORMAT_NLINK_1_OR_NO_DOT: u16 = 0x10;
/// All bits of a format that have a meaning (`EROFS_I_ALL`).
pub(crate) const FORMAT_ALL: u16 = 0x1F;

/// `EROFS_CHUNK_FORMAT_*`: bits of the upper half of what else is an inode's block address.
pub(crate) mod chunk {
    /// The binary logarithm of blocks in a chunk.
    pub(crate) const BITS: u16 = 0x1F;
    /// The map has entries of eight bytes, not four.
    pub(crate) const INDEXES: u16 = 0x20;
    /// Entries of eight bytes hold addresses of 48 bits.
    pub(crate) const BIT48: u16 = 0x40;
}

/// 64 bytes at a multiple of 32.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct ExtendedInode {
    pub(crate) format: U16,
    /// Size of the attributes that follow; see [`super::xattr::area_size`].
    pub(crate) xattr_count: U16,
    pub(crate) mode: U16,
    /// Upper 16 bits of a block address of 48.
    pub(crate) block_high: U16,
    pub(crate) size: U64,
    /// First block, format of chunks, or device number.
    pub(crate) block: U32,
    pub(crate) ino: U32,
    pub(crate) uid: U32,
    pub(crate) gid: U32,
    pub(crate) mtime: U64,
    pub(crate) mtime_nanoseconds: U32,
    pub(crate) links: U32,
    pub(crate) reserved: [u8; 16],
}

/// 32 bytes at a multiple of 32.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct CompactInode {
    pub(crate) format: U16,
    pub(crate) xattr_count: U16,
    pub(crate) mode: U16,
    /// Or the upper 16 bits of a block address of 48, where the format says that there is one link.
    pub(crate) links: U16,
    pub(crate) size: U32,
    /// Seconds from the superblock's epoch.
    pub(crate) mtime: U32,
    pub(crate) block: U32,
    pub(crate) ino: U32,
    pub(crate) uid: U16,
    pub(crate) gid: U16,
    pub(crate) reserved: U32,
}

/// Bytes of an extended inode.
pub(crate) const EXTENDED_SIZE: u64 = 64;
/// Bytes of a compact inode.
pub(crate) const COMPACT_SIZE: u64 = 32;

const _: () = assert!(size_of::<ExtendedInode>() == EXTENDED_SIZE as usize);
const _: () = assert!(size_of::<CompactInode>() == COMPACT_SIZE as usize);

/// A device number as inodes hold it (`new_encode_dev` in `include/linux/kdev_t.h`); `None` beyond 12 bits of major
/// and 20 of minor number.
pub(crate) fn encode_device(major: u32, minor: u32) -> Option<u32> {
    (major < 1 << 12 && minor < 1 << 20).then_some(minor & 0xFF | major << 8 | (minor & !0xFF) << 12)
}

/// The reverse of [`encode_device`]: (major, minor).
pub(crate) fn decode_device(device: u32) -> (u32, u32) {
    (device >> 8 & 0xFFF, device & 0xFF | device >> 12 & 0xF_FF00)
}

/// The type of a file as a directory's entry holds it (`EROFS_FT_*`, the same as `FT_*` in `include/linux/fs_types.h`).
pub(crate) fn entry_type(file_type: FileType) -> u8 {
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

/// The reverse of [`entry_type`]; none for what it does not give.
pub(crate) fn file_type_of_entry(code: u8) -> Option<FileType> {
    use FileType::{BlockDevice, CharDevice, Directory, Fifo, Regular, Socket, Symlink};
    let all = [Regular, Directory, CharDevice, BlockDevice, Fifo, Socket, Symlink];
    all.into_iter().find(|file_type| entry_type(*file_type) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_come_back() {
        for (major, minor) in [(0, 0), (1, 3), (259, 70_000), (4095, (1 << 20) - 1), (8, 255), (8, 256)] {
            assert_eq!(decode_device(encode_device(major, minor).unwrap()), (major, minor));
        }
        assert_eq!(encode_device(4096, 0), None);
        assert_eq!(encode_device(0, 1 << 20), None);
        // mknod c 259 70000 as `new_encode_dev` gives it.
        assert_eq!(encode_device(259, 70_000), Some(0x1111_0370));
    }
}
