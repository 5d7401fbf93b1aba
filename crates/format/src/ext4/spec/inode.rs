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
    /// Content and names are encrypted.
    pub(crate) const ENCRYPT: u32 = 0x800;
    /// A hashed directory.
    pub(crate) const INDEX: u32 = 0x1000;
    /// `i_blocks` counts blocks of the file system, not of 512 bytes.
    pub(crate) const HUGE_FILE: u32 = 0x4_0000;
    /// `i_block` is an extent tree's root.
    pub(crate) const EXTENTS: u32 = 0x8_0000;
    /// Content has a Merkle tree after its end.
    pub(crate) const VERITY: u32 = 0x10_0000;
    /// The inode holds the value of an extended attribute.
    pub(crate) const EA_INODE: u32 = 0x20_0000;
    /// Content is in `i_block` and in an extended attribute of the inode.
    pub(crate) const INLINE_DATA: u32 = 0x1000_0000;
    /// Names of the directory are found whatever their case.
    pub(crate) const CASEFOLD: u32 = 0x4000_0000;
    /// What chattr(1) sets, with its letters; `FS_*_FL` of include/uapi/linux/fs.h.
    pub(crate) const OF_CHATTR: [(u32, char); 11] = [
        (0x8, 'S'),
        (0x10, 'i'),
        (0x20, 'a'),
        (0x40, 'd'),
        (0x80, 'A'),
        (0x4000, 'j'),
        (0x8000, 't'),
        (0x1_0000, 'D'),
        (0x2_0000, 'T'),
        (0x200_0000, 'x'),
        (0x2000_0000, 'P'),
    ];
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

/// Bytes of an inode without extra fields (`EXT4_GOOD_OLD_INODE_SIZE`).
pub(crate) const SIZE_128: usize = 128;

impl Inode {
    /// Parses an inode from a slot of the inode table, which has at least 128 bytes. Extra fields for which it has no
    /// room are zero. `None` if `i_extra_isize` is invalid (`__ext4_iget`).
    pub(crate) fn parse(slot: &[u8]) -> Option<Inode> {
        let mut fixed = [0; XATTR_OFFSET];
        let extra = match slot.get(SIZE_128..SIZE_128 + 2) {
            Some(bytes) => usize::from(U16::read_from_bytes(bytes).ok()?.get()),
            None => 0,
        };
        let used = slot.get(..SIZE_128 + extra).filter(|_| extra.is_multiple_of(4))?;
        fixed.iter_mut().zip(used).for_each(|(to, from)| *to = *from);
        Some(zerocopy::transmute!(fixed))
    }

    /// The size as 64 bits.
    pub(crate) fn size(&self) -> u64 {
        u64::from(self.size_hi.get()) << 32 | u64::from(self.size_lo.get())
    }

    /// Bytes of the blocks that the inode takes (`ext4_inode_blocks`).
    pub(crate) fn allocated(&self, block_size: u64) -> u64 {
        let count = u64::from(self.blocks_hi.get()) << 32 | u64::from(self.blocks_lo.get());
        count.saturating_mul(if self.has(flags::HUGE_FILE) { block_size } else { 512 })
    }

    /// The block of attributes; 0 for none.
    pub(crate) fn file_acl(&self) -> u64 {
        u64::from(self.file_acl_hi.get()) << 32 | u64::from(self.file_acl_lo.get())
    }

    /// Owner and group.
    pub(crate) fn owner(&self) -> (u32, u32) {
        let join = |hi: U16, lo: U16| u32::from(hi.get()) << 16 | u32::from(lo.get());
        (join(self.uid_hi, self.uid_lo), join(self.gid_hi, self.gid_lo))
    }

    /// Whether any of these flags is set.
    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags.get() & flags != 0
    }

    /// Major and minor number of a device node (`ext4_iget`): the old form in the first word of `i_block`, otherwise
    /// the new form in the second.
    pub(crate) fn device(&self) -> (u32, u32) {
        let word = |at: usize| self.block.get(at..at + 4).and_then(|bytes| U32::read_from_bytes(bytes).ok());
        let (old, new) = (word(0).map_or(0, U32::get), word(4).map_or(0, U32::get));
        match old {
            0 => (new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xF_FF00),
            old => (old >> 8 & 0xFF, old & 0xFF),
        }
    }
}

/// Whether the checksum of inode `ino`, all of its slot given, is right (`ext4_inode_csum_verify`).
pub(crate) fn checksum_matches(slot: &[u8], inode: &Inode, seed: FsSeed, ino: u32) -> bool {
    let has_hi = usize::from(inode.extra_isize.get()) >= CHECKSUM_HI + 2 - SIZE_128;
    let low = slot.split_at_checked(CHECKSUM_LO).zip(slot.get(CHECKSUM_LO + 2..));
    let Some(((before, _), after)) = low else { return false };
    let checksum = crc32c(crc32c(seed.inode_of(ino, inode.generation.get()), before), &[0; 2]);
    if !has_hi {
        return crc32c(checksum, after) as u16 == inode.checksum_lo.get();
    }
    let Some((between, rest)) = after.split_at_checked(CHECKSUM_HI - CHECKSUM_LO - 2) else { return false };
    let checksum = crc32c(crc32c(checksum, between), &[0; 2]);
    let checksum = crc32c(checksum, rest.get(2..).unwrap_or_default());
    checksum == u32::from(inode.checksum_hi.get()) << 16 | u32::from(inode.checksum_lo.get())
}

/// A time from seconds and `*_extra` (`ext4_decode_extra_time`).
pub(crate) fn decode_time(seconds: U32, extra: U32) -> Timestamp {
    let epoch = i64::from(extra.get() & 3) << 32;
    Timestamp { seconds: i64::from(seconds.get() as i32) + epoch, nanoseconds: (extra.get() >> 2).min(999_999_999) }
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

/// A time as the file system stores it: out-of-range times become the nearest limit.
pub fn stored_time(time: Timestamp) -> Timestamp {
    let (seconds, extra) = encode_time(time);
    decode_time(seconds, extra)
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
        let stored = |seconds| stored_time(Timestamp { seconds, nanoseconds: 7 });
        assert_eq!(stored(-5), Timestamp { seconds: -5, nanoseconds: 7 });
        assert_eq!(stored(1 << 40), Timestamp { seconds: TIME_MAX, nanoseconds: 0 });
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
