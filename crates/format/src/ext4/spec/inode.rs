//! Inodes (`struct ext4_inode` in `fs/ext4/ext4.h`).

use inarch_tree::Timestamp;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::INODE_SIZE;
use super::checksum::{FsSeed, crc32c};

/// Bytes of the fields beyond the first 128 (`i_extra_isize`): up to and with `i_projid`.
pub(crate) const EXTRA_ISIZE: u16 = 32;
/// Where attributes within the inode start.
pub(crate) const XATTR_OFFSET: usize = 128 + EXTRA_ISIZE as usize;
/// Bytes for attributes within the inode, their magic number included.
pub(crate) const XATTR_SPACE: usize = INODE_SIZE - XATTR_OFFSET;
/// Bytes of `i_block`.
pub(crate) const BLOCK_FIELD: usize = 60;
/// Symlink targets of up to this many bytes live in `i_block`, which also wants a final NUL.
pub(crate) const FAST_SYMLINK_MAX: usize = BLOCK_FIELD - 1;
/// The greatest size of a file mapped by extents: logical block numbers are 32 bits, and the last is never used
/// (`ext4_max_size` in `fs/ext4/super.c`).
pub(crate) const MAX_FILE_SIZE: u64 = ((1 << 32) - 1) * super::BLOCK_SIZE as u64;

/// `EXT4_*_FL`
pub(crate) mod flags {
    /// A hashed directory.
    pub(crate) const INDEX: u32 = 0x1000;
    /// `i_block` is an extent tree's root.
    pub(crate) const EXTENTS: u32 = 0x8_0000;
    /// The inode holds the value of an extended attribute.
    pub(crate) const EA_INODE: u32 = 0x20_0000;
}

/// The fixed part of a 256-byte inode: 160 bytes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Inode {
    pub(crate) mode: U16,
    pub(crate) uid_lo: U16,
    pub(crate) size_lo: U32,
    pub(crate) atime: U32,
    pub(crate) ctime: U32,
    pub(crate) mtime: U32,
    pub(crate) dtime: U32,
    pub(crate) gid_lo: U16,
    pub(crate) links_count: U16,
    pub(crate) blocks_lo: U32,
    pub(crate) flags: U32,
    pub(crate) version_lo: U32,
    pub(crate) block: [u8; BLOCK_FIELD],
    pub(crate) generation: U32,
    pub(crate) file_acl_lo: U32,
    pub(crate) size_hi: U32,
    pub(crate) obsolete_faddr: U32,
    pub(crate) blocks_hi: U16,
    pub(crate) file_acl_hi: U16,
    pub(crate) uid_hi: U16,
    pub(crate) gid_hi: U16,
    pub(crate) checksum_lo: U16,
    pub(crate) reserved: U16,
    pub(crate) extra_isize: U16,
    pub(crate) checksum_hi: U16,
    pub(crate) ctime_extra: U32,
    pub(crate) mtime_extra: U32,
    pub(crate) atime_extra: U32,
    pub(crate) crtime: U32,
    pub(crate) crtime_extra: U32,
    pub(crate) version_hi: U32,
    pub(crate) projid: U32,
}

const _: () = assert!(size_of::<Inode>() == XATTR_OFFSET);

/// Offset of `i_checksum_lo`.
const CHECKSUM_LO: usize = 124;
/// Offset of `i_checksum_hi`.
const CHECKSUM_HI: usize = 130;

impl Inode {
    /// Sets a 64-bit size.
    pub(crate) fn set_size(&mut self, size: u64) {
        self.size_lo = U32::new(size as u32);
        self.size_hi = U32::new((size >> 32) as u32);
    }

    /// Sets how many file system blocks the inode takes, counted on disk in 512-byte sectors of 48 bits.
    pub(crate) fn set_blocks(&mut self, blocks: u64) {
        let sectors = blocks * (super::BLOCK_SIZE as u64 / 512);
        self.blocks_lo = U32::new(sectors as u32);
        self.blocks_hi = U16::new((sectors >> 32) as u16);
    }

    /// Sets a 48-bit block number of attributes.
    pub(crate) fn set_file_acl(&mut self, block: u64) {
        self.file_acl_lo = U32::new(block as u32);
        self.file_acl_hi = U16::new((block >> 32) as u16);
    }

    /// Sets the 32-bit owner and group.
    pub(crate) fn set_owner(&mut self, uid: u32, gid: u32) {
        self.uid_lo = U16::new(uid as u16);
        self.uid_hi = U16::new((uid >> 16) as u16);
        self.gid_lo = U16::new(gid as u16);
        self.gid_hi = U16::new((gid >> 16) as u16);
    }

    /// Sets all four times: the last access and the birth are that of the last change of content.
    pub(crate) fn set_times(&mut self, mtime: Timestamp, ctime: Timestamp) {
        let (seconds, extra) = encode_time(mtime);
        (self.mtime, self.mtime_extra) = (seconds, extra);
        (self.atime, self.atime_extra) = (seconds, extra);
        (self.crtime, self.crtime_extra) = (seconds, extra);
        (self.ctime, self.ctime_extra) = encode_time(ctime);
    }
}

/// Sets the checksum of the inode `ino` in its slot of the inode table (`ext4_inode_csum`). Inodes without extra
/// fields keep only the lower half.
pub(crate) fn seal(slot: &mut [u8; INODE_SIZE], seed: FsSeed, ino: u32) {
    let has_extra = slot[128..130] != [0; 2];
    slot[CHECKSUM_LO..CHECKSUM_LO + 2].fill(0);
    if has_extra {
        slot[CHECKSUM_HI..CHECKSUM_HI + 2].fill(0);
    }
    let checksum = crc32c(seed.inode(ino), slot).to_le_bytes();
    slot[CHECKSUM_LO..CHECKSUM_LO + 2].copy_from_slice(&checksum[..2]);
    if has_extra {
        slot[CHECKSUM_HI..CHECKSUM_HI + 2].copy_from_slice(&checksum[2..]);
    }
}

/// The earliest second that the encoding holds.
const TIME_MIN: i64 = i32::MIN as i64;
/// The latest: 2446-05-10 (`EXT4_EXTRA_TIMESTAMP_MAX`).
const TIME_MAX: i64 = i32::MAX as i64 + (3 << 32);

/// A time as seconds and `*_extra`: two more bits of seconds, then nanoseconds (`ext4_encode_extra_time`).
/// Times outside 1901-12-13 to 2446-05-10 become the nearest end.
pub(crate) fn encode_time(time: Timestamp) -> (U32, U32) {
    let seconds = time.seconds.clamp(TIME_MIN, TIME_MAX);
    let nanoseconds = if seconds == time.seconds { time.nanoseconds.min(999_999_999) } else { 0 };
    let epoch = (seconds - i64::from(seconds as i32)) >> 32;
    (U32::new(seconds as u32), U32::new(nanoseconds << 2 | (epoch as u32 & 3)))
}

/// A device number as the first two words of `i_block` (`old_encode_dev`, `new_encode_dev` in
/// `include/linux/kdev_t.h`); `None` beyond 12 bits of major or 20 of minor number.
pub(crate) fn encode_device(major: u32, minor: u32) -> Option<[U32; 2]> {
    if major < 256 && minor < 256 {
        return Some([U32::new(major << 8 | minor), U32::ZERO]);
    }
    if major >= 1 << 12 || minor >= 1 << 20 {
        return None;
    }
    Some([U32::ZERO, U32::new((minor & 0xFF) | major << 8 | (minor & !0xFF) << 12)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(seconds: i64, nanoseconds: u32) -> (u32, u32) {
        let (seconds, extra) = encode_time(Timestamp { seconds, nanoseconds });
        (seconds.get(), extra.get())
    }

    /// The first two as Linux 6.18 stored `touch -d '2400-01-01 00:00:00.123456789 UTC'` and
    /// `touch -d '1902-01-01 00:00:00.5 UTC'`.
    #[test]
    fn times_are_encoded_as_in_the_kernel() {
        assert_eq!(encoded(13_569_465_600, 123_456_789), (0x28cd_9d00, 0x1d6f_3457));
        assert_eq!(encoded(-2_145_916_800, 500_000_000), (0x8017_e880, 0x7735_9400));
        assert_eq!(encoded(0, 0), (0, 0));
        assert_eq!(encoded(-1, 0), (0xffff_ffff, 0));
        assert_eq!(encoded(1 << 31, 0), (0x8000_0000, 1));
    }

    #[test]
    fn times_out_of_range_become_the_nearest() {
        assert_eq!(encoded(i64::MIN, 5), (0x8000_0000, 0));
        assert_eq!(encoded(i64::MAX, 5), (0x7fff_ffff, 3));
        assert_eq!(encoded(5, u32::MAX), (5, 999_999_999 << 2));
    }

    /// As Linux 6.18 stored `mknod c c 1 3` and `mknod b b 259 70000`.
    #[test]
    fn devices_are_encoded_as_in_the_kernel() {
        let encoded = |major, minor| encode_device(major, minor).map(|words| words.map(U32::get));
        assert_eq!(encoded(1, 3), Some([0x103, 0]));
        assert_eq!(encoded(259, 70_000), Some([0, 0x1111_0370]));
        assert_eq!(encoded(4095, (1 << 20) - 1), Some([0, 0xffff_ffff]));
        assert_eq!(encoded(4096, 0), None);
        assert_eq!(encoded(0, 1 << 20), None);
    }

    /// `lost+found` as mke2fs 1.47.0 wrote it to a file system with the UUID 01020304-0506-0708-090a-0b0c0d0e0f10.
    #[test]
    fn a_checksum_is_as_mke2fs_computes_it() {
        let mut inode = Inode::read_from_bytes(&[0; XATTR_OFFSET]).unwrap();
        inode.mode = U16::new(0o040700);
        inode.set_size(16_384);
        let time = Timestamp { seconds: 0x6b01_2ad7, nanoseconds: 0 };
        inode.set_times(time, time);
        inode.links_count = U16::new(2);
        inode.set_blocks(4);
        inode.flags = U32::new(flags::EXTENTS);
        inode.extra_isize = U16::new(EXTRA_ISIZE);
        let mut node = crate::ext4::spec::extent::NodeWriter::new(&mut inode.block, 0);
        node.push_extent(crate::ext4::spec::extent::Extent { logical: 0, length: 4, physical: 4 });
        node.finish();
        let mut slot = [0; INODE_SIZE];
        super::super::put(&mut slot, 0, &inode);
        seal(&mut slot, FsSeed::new(&std::array::from_fn(|i| i as u8 + 1)), 11);
        assert_eq!((&slot[CHECKSUM_LO..][..2], &slot[CHECKSUM_HI..][..2]), (&[0xd6, 0xd5][..], &[0xad, 0x63][..]));
    }
}
