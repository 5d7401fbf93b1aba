//! The records of the log (`fs/xfs/libxfs/xfs_log_format.h`), as far as it takes to tell whether it is empty.

use super::be32;

/// Bytes of a block of the log.
pub(crate) const BLOCK: u64 = 512;
/// `XLOG_HEADER_MAGIC_NUM`
const MAGIC: u32 = 0xFEED_BABE;
/// Bytes of a record that a header of one block describes (`XLOG_HEADER_CYCLE_SIZE`).
const PER_HEADER: u32 = 32 << 10;
/// `XLOG_UNMOUNT_TRANS`
const UNMOUNT: u8 = 0x20;
/// The most bytes of a record (`XLOG_MAX_RECORD_BSIZE`).
pub(crate) const MAX_RECORD: u64 = 256 << 10;

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
        })
    }
}

/// Whether the first operation of a record, in the block after its header, says that the file system was unmounted.
pub(crate) fn is_unmount(block: &[u8]) -> bool {
    block.get(9).is_some_and(|flags| flags & UNMOUNT != 0)
}
