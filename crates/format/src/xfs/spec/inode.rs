//! Inodes (`struct xfs_dinode` in `fs/xfs/libxfs/xfs_format.h`).

use inarch_tree::Timestamp;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// `XFS_DINODE_MAGIC`
pub(crate) const MAGIC: [u8; 2] = *b"IN";
/// Bytes of the part that every version has; what the forks hold follows in versions 1 and 2.
pub(crate) const CORE: usize = 100;
/// Bytes of the part that version 3 has.
pub(crate) const CORE_3: usize = 176;
/// Where the checksum of version 3 is.
pub(crate) const CHECKSUM: usize = 100;

/// `enum xfs_dinode_fmt`: what a fork holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A device's number.
    Device,
    /// The content itself.
    Local,
    /// A list of extents.
    Extents,
    /// The root of a tree of extents.
    Tree,
    /// Something else.
    Other(u8),
}

impl Format {
    fn new(number: u8) -> Format {
        match number {
            0 => Format::Device,
            1 => Format::Local,
            2 => Format::Extents,
            3 => Format::Tree,
            other => Format::Other(other),
        }
    }
}

/// Flags of `di_flags`.
pub(crate) mod flags {
    /// Content is on the realtime device.
    pub(crate) const REALTIME: u16 = 1;
    /// What chattr(1) shows and sets, with its letter.
    pub(crate) const OF_CHATTR: [(u16, char); 5] =
        [(1 << 3, 'i'), (1 << 4, 'a'), (1 << 5, 'S'), (1 << 6, 'A'), (1 << 7, 'd')];
}

/// Flags of `di_flags2`.
mod flags2 {
    pub(super) const BIGTIME: u64 = 1 << 3;
    pub(super) const NREXT64: u64 = 1 << 4;
}

/// The fields of an inode. Those behind `next_unlinked` are of version 3, and zeros in others.
#[derive(Clone, Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Core {
    pub(crate) magic: [u8; 2],
    pub(crate) mode: U16,
    pub(crate) version: u8,
    format: u8,
    /// The link count of version 1.
    old_links: U16,
    pub(crate) uid: U32,
    pub(crate) gid: U32,
    links: U32,
    project: U32,
    /// The number of the data fork's extents, with many of them.
    many_extents: U64,
    atime: U64,
    mtime: U64,
    ctime: U64,
    pub(crate) size: U64,
    /// Blocks of both forks.
    pub(crate) blocks: U64,
    extent_size: U32,
    extents: U32,
    attribute_extents: U16,
    /// Where the attribute fork starts, in units of 8 bytes; 0 without one.
    pub(crate) fork_offset: u8,
    attribute_format: u8,
    dmapi: [u8; 6],
    pub(crate) flags: U16,
    pub(crate) generation: U32,
    next_unlinked: U32,
    checksum: [u8; 4],
    change_count: U64,
    last_sequence: U64,
    flags2: U64,
    cow_extent_size: U32,
    padding: [u8; 12],
    birth: U64,
    pub(crate) ino: U64,
    pub(crate) uuid: [u8; 16],
}

impl Core {
    /// The fields at the start of an inode's bytes; `None` if they are too few, or the magic number is missing.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Core> {
        let old: &[u8; CORE] = bytes.first_chunk()?;
        let mut whole = [0; CORE_3];
        let version = *old.get(4)?;
        let used = if version >= 3 { CORE_3 } else { CORE };
        whole.get_mut(..used)?.copy_from_slice(bytes.get(..used)?);
        Core::read_from_bytes(&whole).ok().filter(|core| core.magic == MAGIC)
    }

    /// Bytes before the forks.
    pub(crate) fn length(&self) -> usize {
        if self.version >= 3 { CORE_3 } else { CORE }
    }

    pub(crate) fn links(&self) -> u32 {
        if self.version == 1 { self.old_links.get().into() } else { self.links.get() }
    }

    pub(crate) fn data_format(&self) -> Format {
        Format::new(self.format)
    }

    pub(crate) fn attribute_format(&self) -> Format {
        Format::new(self.attribute_format)
    }

    fn has(&self, flag: u64) -> bool {
        self.version >= 3 && self.flags2.get() & flag != 0
    }

    /// The number of extents of the data fork (`xfs_dfork_data_extents`).
    pub(crate) fn data_extents(&self) -> u64 {
        if self.has(flags2::NREXT64) { self.many_extents.get() } else { self.extents.get().into() }
    }

    /// The number of extents of the attribute fork.
    pub(crate) fn attribute_extents(&self) -> u64 {
        if self.has(flags2::NREXT64) { self.extents.get().into() } else { self.attribute_extents.get().into() }
    }

    pub(crate) fn atime(&self) -> Timestamp {
        self.time(self.atime)
    }

    pub(crate) fn mtime(&self) -> Timestamp {
        self.time(self.mtime)
    }

    pub(crate) fn ctime(&self) -> Timestamp {
        self.time(self.ctime)
    }

    /// The time of creation, which version 3 has.
    pub(crate) fn birth(&self) -> Option<Timestamp> {
        (self.version >= 3).then(|| self.time(self.birth))
    }

    /// A time: seconds and nanoseconds of 32 bits each, or nanoseconds since 1901 (`xfs_inode_from_disk_ts`).
    fn time(&self, stored: U64) -> Timestamp {
        const SECOND: u64 = 1_000_000_000;
        let stored = stored.get();
        let (seconds, nanoseconds) = match self.has(flags2::BIGTIME) {
            true => ((stored / SECOND).cast_signed() - (1 << 31), (stored % SECOND) as u32),
            false => (i64::from(((stored >> 32) as u32).cast_signed()), stored as u32),
        };
        Timestamp { seconds, nanoseconds: nanoseconds.min(999_999_999) }
    }
}

/// Major and minor number of a device (`sysv_major` in `include/linux/kdev_t.h`).
pub(crate) fn device(number: u32) -> (u32, u32) {
    (number >> 18 & 0x3FFF, number & 0x3_FFFF)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_are_where_the_kernel_has_them() {
        assert_eq!(size_of::<Core>(), CORE_3);
        assert_eq!(offset_of!(Core, many_extents), 24);
        assert_eq!(offset_of!(Core, size), 56);
        assert_eq!(offset_of!(Core, fork_offset), 82);
        assert_eq!(offset_of!(Core, flags), 90);
        assert_eq!(offset_of!(Core, checksum), CHECKSUM);
        assert_eq!(offset_of!(Core, flags2), 120);
        assert_eq!(offset_of!(Core, ino), 152);
    }

    #[test]
    fn times_are_those_of_both_kinds() {
        let mut bytes = [0; CORE_3];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[4] = 3;
        bytes[40..48].copy_from_slice(&[0xFF, 0xFF, 0xFF, 0xFE, 0, 0, 0, 7]);
        let mtime = Core::parse(&bytes).unwrap().mtime();
        assert_eq!((mtime.seconds, mtime.nanoseconds), (-2, 7));
        bytes[127] = 8;
        bytes[40..48].copy_from_slice(&(((1u64 << 31) + 5) * 1_000_000_000 + 9).to_be_bytes());
        let mtime = Core::parse(&bytes).unwrap().mtime();
        assert_eq!((mtime.seconds, mtime.nanoseconds), (5, 9));
    }
}
