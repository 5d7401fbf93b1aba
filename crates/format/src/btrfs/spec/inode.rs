//! Items of inodes: attributes, names, extents.

use inarch_tree::{FileType, Timestamp};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::tree::DiskKey;

/// `struct btrfs_timespec`
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Time {
    seconds: I64,
    nanoseconds: U32,
}

impl Time {
    pub(crate) fn timestamp(&self) -> Timestamp {
        Timestamp { seconds: self.seconds.get(), nanoseconds: self.nanoseconds.get().min(999_999_999) }
    }
}

/// `struct btrfs_inode_item`
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Inode {
    pub(crate) generation: U64,
    transaction: U64,
    pub(crate) size: U64,
    /// Bytes that its content takes.
    pub(crate) allocated: U64,
    block_group: U64,
    pub(crate) links: U32,
    pub(crate) uid: U32,
    pub(crate) gid: U32,
    pub(crate) mode: U32,
    /// The kernel's own `dev_t`: twelve bits for the major number, twenty for the minor.
    pub(crate) device: U64,
    /// [`flags`]
    pub(crate) flags: U64,
    sequence: U64,
    reserved: [U64; 4],
    pub(crate) atime: Time,
    pub(crate) ctime: Time,
    pub(crate) mtime: Time,
    pub(crate) otime: Time,
}

impl Inode {
    /// Major and minor number.
    pub(crate) fn numbers(&self) -> (u32, u32) {
        let number = self.device.get();
        ((number >> 20) as u32 & 0xfff, number as u32 & 0xf_ffff)
    }
}

/// `BTRFS_INODE_*`
pub(crate) mod flags {
    /// fs-verity, a flag of the upper half (`BTRFS_INODE_RO_VERITY`).
    pub(crate) const VERITY: u64 = 1 << 32;
    /// Those that chattr(1) sets, with its letters. Not `m`, which the kernel sets itself where nothing is gained.
    pub(crate) const OF_CHATTR: [(u64, char); 8] = [
        (1 << 1, 'C'),
        (1 << 5, 'S'),
        (1 << 6, 'i'),
        (1 << 7, 'a'),
        (1 << 8, 'd'),
        (1 << 9, 'A'),
        (1 << 10, 'D'),
        (1 << 11, 'c'),
    ];
}

/// `struct btrfs_dir_item`: a name in a directory, or an extended attribute. The name follows, then the attribute's value.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DirectoryItem {
    /// The key of what has the name: an inode of the same tree, or a subvolume.
    pub(crate) location: DiskKey,
    transaction: U64,
    pub(crate) value: U16,
    pub(crate) name: U16,
    kind: u8,
}

impl DirectoryItem {
    /// `BTRFS_FT_*`
    pub(crate) fn file_type(&self) -> Option<FileType> {
        Some(match self.kind {
            1 => FileType::Regular,
            2 => FileType::Directory,
            3 => FileType::CharDevice,
            4 => FileType::BlockDevice,
            5 => FileType::Fifo,
            6 => FileType::Socket,
            7 => FileType::Symlink,
            _ => return None,
        })
    }
}

/// The hash of a name in keys (`btrfs_name_hash`): CRC-32C from `~1` on, not inverted at its end.
pub(crate) fn name_hash(name: &[u8]) -> u64 {
    u64::from(!crc32c::crc32c_append(1, name))
}

/// `struct btrfs_file_extent_item`, as far as an inline extent has it; its bytes follow.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ExtentHead {
    generation: U64,
    /// Bytes when it is decompressed, all of it.
    pub(crate) unpacked: U64,
    /// `compression`
    pub(crate) compression: u8,
    pub(crate) encryption: u8,
    pub(crate) encoding: U16,
    /// [`extent`]
    pub(crate) kind: u8,
}

/// Kinds of extents (`BTRFS_FILE_EXTENT_*`).
pub(crate) mod extent {
    pub(crate) const INLINE: u8 = 0;
    pub(crate) const REGULAR: u8 = 1;
    pub(crate) const PREALLOCATED: u8 = 2;
}

/// The rest of an extent that is not inline.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ExtentBody {
    /// Logical address of the whole extent; 0 for a hole.
    pub(crate) address: U64,
    /// Bytes of the whole extent.
    pub(crate) stored: U64,
    /// Where in the (decompressed) extent the file's part starts.
    pub(crate) offset: U64,
    /// Bytes of the file.
    pub(crate) length: U64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<Inode>(), size_of::<DirectoryItem>()), (160, 30));
        assert_eq!((size_of::<ExtentHead>(), size_of::<ExtentBody>()), (21, 32));
    }

    /// `btrfs inspect-internal dump-tree` of an empty file system: the root tree's item of "default" has this offset.
    #[test]
    fn names_have_the_kernels_hashes() {
        assert_eq!(name_hash(b"default"), 2_378_154_706);
    }
}
