//! The log (`fs/xfs/libxfs/xfs_log_format.h`): records, the operations in them, and the items of transactions.
//!
//! The headers of records and operations are big-endian. What transactions log is in the byte order of the machine that
//! wrote it; here, little-endian.

use super::inode::{CORE, CORE_3};
use super::{be16, be32, be64};

/// Bytes of a block of the log.
pub(crate) const BLOCK: u64 = 512;
/// `XLOG_HEADER_MAGIC_NUM`
const MAGIC: u32 = 0xFEED_BABE;
/// Bytes of a record that a header of one block describes (`XLOG_HEADER_CYCLE_SIZE`).
const PER_HEADER: u32 = 32 << 10;
/// The same in blocks.
const BLOCKS_PER_HEADER: usize = 64;
/// The most bytes of a record (`XLOG_MAX_RECORD_BSIZE`).
pub(crate) const MAX_RECORD: u64 = 256 << 10;
/// `XLOG_FMT_LINUX_LE`
const LITTLE_ENDIAN: u32 = 1;
/// Where a record's checksum is, and the bytes of a header that it covers.
const CHECKSUM: (usize, usize) = (32, 328);

/// Flags of an operation.
pub(crate) mod operation {
    pub(crate) const START: u8 = 0x01;
    pub(crate) const COMMIT: u8 = 0x02;
    pub(crate) const WAS_CONTINUED: u8 = 0x08;
    pub(crate) const UNMOUNT: u8 = 0x20;
}

/// How often the log had been filled when a block of it was written (`xlog_get_cycle`).
pub(crate) fn cycle(block: &[u8]) -> u32 {
    let first = be32(block, 0).unwrap_or_default();
    if first == MAGIC { be32(block, 4).unwrap_or_default() } else { first }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Blocks of the header.
    pub(crate) header_blocks: u64,
    /// Blocks after it.
    pub(crate) blocks: u64,
    pub(crate) operations: u32,
    /// Bytes after the header.
    pub(crate) length: u32,
    /// The lap of the log in which it starts, and its block there.
    pub(crate) cycle: u32,
    pub(crate) block: u32,
    /// The block where the oldest change starts that is not where it belongs.
    pub(crate) tail: u32,
    /// The lap of that.
    pub(crate) tail_cycle: u32,
    pub(crate) is_little_endian: bool,
}

impl Record {
    /// `None` for a block that is no header.
    pub(crate) fn parse(block: &[u8]) -> Option<Record> {
        if be32(block, 0)? != MAGIC {
            return None;
        }
        let (version, length, size) = (be32(block, 8)?, be32(block, 12)?, be32(block, 320)?);
        let header_blocks = if version & 2 != 0 && size > PER_HEADER { size.div_ceil(PER_HEADER) } else { 1 };
        Some(Record {
            header_blocks: header_blocks.into(),
            blocks: u64::from(length).div_ceil(BLOCK),
            operations: be32(block, 40)?,
            length,
            cycle: be32(block, 4)?,
            block: be64(block, 16)? as u32,
            tail: be64(block, 24)? as u32,
            tail_cycle: be32(block, 24)?,
            is_little_endian: be32(block, 300)? == LITTLE_ENDIAN,
        })
    }

    /// Whether the checksum over a header of one block and what follows it is right; those without one are.
    pub(crate) fn checksum_matches(&self, header: &[u8], data: &[u8]) -> bool {
        let (at, covered) = CHECKSUM;
        let stored = header.get(at..at + 4).and_then(|bytes| bytes.first_chunk()).copied().map(u32::from_le_bytes);
        if self.header_blocks != 1 || stored == Some(0) {
            return true;
        }
        let (Some(before), Some(after)) = (header.get(..at), header.get(at + 4..covered)) else { return false };
        let Some(data) = data.get(..self.length as usize) else { return false };
        let start = crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]);
        stored == Some(crc32c::crc32c_append(crc32c::crc32c_append(start, after), data))
    }

    /// Puts the first word of each block of a record back, which the header has (`xlog_unpack_data`).
    pub(crate) fn unpack(&self, header: &[u8], data: &mut [u8]) -> Option<()> {
        for (number, block) in data.chunks_mut(BLOCK as usize).enumerate() {
            let at = match number / BLOCKS_PER_HEADER {
                0 => 44 + number * 4,
                // Further headers have the cycle before the words.
                more => more * BLOCK as usize + 4 + number % BLOCKS_PER_HEADER * 4,
            };
            block.get_mut(..4)?.copy_from_slice(header.get(at..at + 4)?);
        }
        Some(())
    }
}

/// An operation of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation<'a> {
    /// Its transaction.
    pub(crate) transaction: u32,
    pub(crate) flags: u8,
    pub(crate) data: &'a [u8],
}

/// The operation at the start of `bytes`, and what follows it.
pub(crate) fn split_operation(bytes: &[u8]) -> Option<(Operation<'_>, &[u8])> {
    let (transaction, length, flags) = (be32(bytes, 0)?, be32(bytes, 4)? as usize, *bytes.get(9)?);
    let (data, rest) = bytes.get(12..)?.split_at_checked(length)?;
    Some((Operation { transaction, flags, data }, rest))
}

/// Whether the first operation of a record, in the block after its header, says that the file system was unmounted.
pub(crate) fn is_unmount(block: &[u8]) -> bool {
    block.get(9).is_some_and(|flags| flags & operation::UNMOUNT != 0)
}

/// The little-endian number of two bytes at `at`.
fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    be16(bytes, at).map(u16::swap_bytes)
}

/// The little-endian number of four bytes at `at`.
fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    be32(bytes, at).map(u32::swap_bytes)
}

/// The number of regions of an item, which its first one says.
pub(crate) fn regions(first: &[u8]) -> Option<usize> {
    le16(first, 2).map(usize::from)
}

/// An item of a transaction, as far as it changes what is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Item<'a> {
    /// Parts of a buffer, or that earlier changes of it do not count.
    Buffer(Buffer<'a>),
    Inode(LoggedInode<'a>),
    Other,
}

/// A changed buffer (`struct xfs_buf_log_format`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer<'a> {
    flags: u16,
    /// In units of 512 bytes.
    pub(crate) start: u64,
    pub(crate) length: u16,
    map: &'a [u8],
}

/// A changed inode (`struct xfs_inode_log_format`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedInode<'a> {
    fields: u32,
    pub(crate) ino: u64,
    device: u32,
    /// Where the buffer with it starts, and its length, in units of 512 bytes.
    pub(crate) start: u64,
    pub(crate) length: u16,
    regions: &'a [Vec<u8>],
}

impl<'a> Item<'a> {
    /// `None` if it makes no sense.
    pub(crate) fn parse(regions: &'a [Vec<u8>]) -> Option<Item<'a>> {
        let first = regions.first()?;
        Some(match le16(first, 0)? {
            0x123C => {
                let words = le32(first, 16)? as usize;
                Item::Buffer(Buffer {
                    flags: le16(first, 4)?,
                    length: le16(first, 6)?,
                    start: be64(first, 8)?.swap_bytes(),
                    map: first.get(20..)?.get(..words.checked_mul(4)?)?,
                })
            }
            0x123B if first.len() == 56 => Item::Inode(LoggedInode {
                fields: le32(first, 4)?,
                ino: be64(first, 16)?.swap_bytes(),
                device: le32(first, 24)?,
                start: be64(first, 40)?.swap_bytes(),
                length: le16(first, 48)?,
                regions: regions.get(1..)?,
            }),
            0x123B => return None,
            _ => Item::Other,
        })
    }
}

impl Buffer<'_> {
    pub(crate) fn cancels(&self) -> bool {
        self.flags & 1 << 1 != 0
    }

    /// Whether it holds inodes (only the list of deleted ones counts) or quotas.
    pub(crate) fn is_skipped(&self) -> bool {
        self.flags & (1 | 1 << 2 | 1 << 3 | 1 << 4) != 0
    }

    /// The runs of chunks of 128 bytes that were changed, as offset and length in bytes.
    pub(crate) fn runs(&self) -> Vec<(usize, usize)> {
        let bits =
            (0..self.map.len() * 8).filter(|bit| self.map.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1));
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for at in bits.map(|bit| bit * 128) {
            match runs.last_mut().filter(|(start, length)| start + length == at) {
                Some((_, length)) => *length += 128,
                None => runs.push((at, 128)),
            }
        }
        runs
    }
}

/// Where the fields of an inode are that are in the machine's byte order, and their bytes (`xfs_log_dinode_to_disk`).
const FIELDS: [(usize, usize); 22] = [
    (0, 2),
    (2, 2),
    (8, 4),
    (12, 4),
    (16, 4),
    (20, 2),
    (22, 2),
    (24, 8),
    (56, 8),
    (64, 8),
    (72, 4),
    (76, 4),
    (80, 2),
    (84, 4),
    (88, 2),
    (90, 2),
    (92, 4),
    (96, 4),
    (104, 8),
    (120, 8),
    (128, 4),
    (152, 8),
];
/// Where the times are.
const TIMES: [usize; 4] = [32, 40, 48, 144];

impl LoggedInode<'_> {
    /// Changes an inode's bytes to what was logged; `None` if that makes no sense.
    pub(crate) fn apply(&self, inode: &mut [u8], is_sealed: bool) -> Option<()> {
        let logged = self.regions.first()?;
        let length = if is_sealed { CORE_3 } else { CORE };
        let core = inode.get_mut(..length)?;
        let sequence: [u8; 8] = core.get(112..120).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or_default();
        let length = length.min(logged.len());
        core.get_mut(..length)?.copy_from_slice(logged.get(..length)?);
        let has_wide_times = is_sealed && core.get(120)? & 1 << 3 != 0;
        let halves = |at: usize| if has_wide_times { vec![(at, 8)] } else { vec![(at, 4), (at + 4, 4)] };
        let times = TIMES.into_iter().flat_map(halves);
        for (at, size) in FIELDS.into_iter().chain(times).filter(|(at, size)| at + size <= length) {
            core.get_mut(at..at + size)?.reverse();
        }
        if let Some(place) = core.get_mut(112..120) {
            place.copy_from_slice(&sequence);
        }
        let data_start = if is_sealed { CORE_3 } else { CORE };
        let attributes_start = match *inode.get(82)? {
            0 => inode.len(),
            offset => data_start + usize::from(offset) * 8,
        };
        let (before, attributes) = inode.split_at_mut_checked(attributes_start)?;
        let data = before.get_mut(data_start..)?;
        let mut regions = self.regions.iter().skip(1);
        match self.fields & 0x1E {
            0 => {}
            0x10 => data.get_mut(..4)?.copy_from_slice(&self.device.to_be_bytes()),
            kind => put_fork(data, regions.next()?, kind & 0x8 != 0, is_sealed)?,
        }
        match self.fields & 0x1C0 {
            0 => Some(()),
            kind => put_fork(attributes, regions.next()?, kind & 0x100 != 0, is_sealed),
        }
    }
}

/// Puts what was logged of a fork into it. A root of a tree has the header of a block in the log (`xfs_bmbt_to_bmdr`).
fn put_fork(fork: &mut [u8], logged: &[u8], is_root: bool, is_sealed: bool) -> Option<()> {
    if !is_root {
        fork.get_mut(..logged.len())?.copy_from_slice(logged);
        return Some(());
    }
    let (level, count) = (logged.get(4..6)?, logged.get(6..8)?);
    let items = logged.get(if is_sealed { 72 } else { 24 }..)?;
    let bytes = usize::from(be16(count, 0)?) * 8;
    let (keys, pointers) = items.split_at_checked(items.len() / 16 * 8)?;
    let room = (fork.len().checked_sub(4)?) / 16 * 8;
    fork.get_mut(..2)?.copy_from_slice(level);
    fork.get_mut(2..4)?.copy_from_slice(count);
    fork.get_mut(4..4 + room)?.get_mut(..bytes)?.copy_from_slice(keys.get(..bytes)?);
    fork.get_mut(4 + room..)?.get_mut(..bytes)?.copy_from_slice(pointers.get(..bytes)?);
    Some(())
}
