//! The journal: its superblock and the blocks of its log (`include/linux/jbd2.h`); all of it is big-endian.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::little_endian;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::crc32c;
use super::{BLOCK_SIZE, Block, put};

/// `JBD2_MAGIC_NUMBER`
pub(crate) const MAGIC: u32 = 0xC03B_3998;
/// `JBD2_SUPERBLOCK_V1`, which has no features.
const SUPERBLOCK_V1: u32 = 3;
/// `JBD2_SUPERBLOCK_V2`
const SUPERBLOCK_V2: u32 = 4;
/// Blocks of a journal at least (`JBD2_MIN_JOURNAL_BLOCKS`).
pub(crate) const MIN_BLOCKS: u64 = 1024;

/// `JBD2_FEATURE_COMPAT_CHECKSUM`: a commit block has the CRC-32 of its transaction.
pub(crate) const COMPAT_CHECKSUM: u32 = 0x1;

/// `JBD2_FEATURE_INCOMPAT_*`
pub(crate) mod incompat {
    pub(crate) const REVOKE: u32 = 0x1;
    pub(crate) const BIT64: u32 = 0x2;
    pub(crate) const ASYNC_COMMIT: u32 = 0x4;
    pub(crate) const CSUM_V2: u32 = 0x8;
    pub(crate) const CSUM_V3: u32 = 0x10;
    pub(crate) const FAST_COMMIT: u32 = 0x20;
}

/// `JBD2_CRC32C_CHKSUM`
const CHECKSUM_CRC32C: u8 = 4;
/// `JBD2_DEFAULT_FAST_COMMIT_BLOCKS`
const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// Offset of `s_checksum`.
const SUPERBLOCK_CHECKSUM: usize = 0xFC;
/// Bytes of the superblock.
const SUPERBLOCK_SIZE: usize = 1024;

/// The fields of `journal_superblock_t`, without the users of a journal that several file systems share.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct JournalSuperblock {
    magic: U32,
    block_type: U32,
    header_sequence: U32,
    pub(crate) block_size: U32,
    /// Blocks of the journal, this one included.
    pub(crate) max_len: U32,
    /// First block of the log.
    pub(crate) first: U32,
    /// The first transaction expected in the log.
    pub(crate) sequence: U32,
    /// The block where the log starts; 0 for an empty one.
    pub(crate) start: U32,
    pub(crate) errno: U32,
    pub(crate) feature_compat: U32,
    pub(crate) feature_incompat: U32,
    feature_ro_compat: U32,
    uuid: [u8; 16],
    nr_users: U32,
    dynsuper: U32,
    max_transaction: U32,
    max_trans_data: U32,
    checksum_type: u8,
    padding: [u8; 3],
    fast_commit_blocks: U32,
    head: U32,
}

impl JournalSuperblock {
    /// Parses the superblock in the journal's first block (`journal_get_superblock`), or returns what is wrong with
    /// it. `verify` says whether a wrong checksum counts.
    pub(crate) fn parse(block: &[u8], verify: bool) -> Result<JournalSuperblock, &'static str> {
        let bytes = block.get(..SUPERBLOCK_SIZE).ok_or("has no superblock")?;
        let (mut superblock, _) = JournalSuperblock::read_from_prefix(bytes).map_err(|_| "has no superblock")?;
        match (superblock.magic.get(), superblock.block_type.get()) {
            (MAGIC, SUPERBLOCK_V2) => {}
            (MAGIC, SUPERBLOCK_V1) => {
                (superblock.feature_compat, superblock.feature_incompat) = (U32::ZERO, U32::ZERO);
            }
            _ => return Err("has no superblock"),
        }
        let checksums = superblock.feature_incompat.get() & (incompat::CSUM_V2 | incompat::CSUM_V3);
        if checksums == incompat::CSUM_V2 | incompat::CSUM_V3 {
            return Err("has checksums of two versions at once");
        }
        if checksums != 0 && superblock.checksum_type != CHECKSUM_CRC32C {
            return Err("has checksums of an unknown kind");
        }
        let (stored, computed) = with_zeros(bytes, SUPERBLOCK_CHECKSUM, !0).ok_or("has no superblock")?;
        if checksums != 0 && verify && stored != computed {
            return Err("has a superblock with a wrong checksum");
        }
        Ok(superblock)
    }

    /// Whether one of these incompatible features is on.
    pub(crate) fn has(&self, features: u32) -> bool {
        self.feature_incompat.get() & features != 0
    }

    /// Blocks at the journal's end that fast commits take (`jbd2_journal_get_num_fc_blks`).
    pub(crate) fn fast_commit_blocks(&self) -> u32 {
        match (self.has(incompat::FAST_COMMIT), self.fast_commit_blocks.get()) {
            (false, _) => 0,
            (true, 0) => DEFAULT_FAST_COMMIT_BLOCKS,
            (true, blocks) => blocks,
        }
    }

    /// The seed of the journal's checksums of versions 2 and 3.
    pub(crate) fn seed(&self) -> u32 {
        crc32c(!0, &self.uuid)
    }
}

/// What a block of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogBlock {
    /// Lists where the following blocks belong.
    Descriptor,
    /// Ends a transaction.
    Commit,
    /// Says which blocks are not to be replayed.
    Revoke,
    /// Anything else.
    Other,
}

/// `struct journal_header_s`
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LogHeader {
    magic: U32,
    block_type: U32,
    sequence: U32,
}

/// The type of a log block, and its transaction; `None` without a header.
pub(crate) fn log_block(block: &[u8]) -> Option<(LogBlock, u32)> {
    let (header, _) = LogHeader::read_from_prefix(block).ok()?;
    let kind = match header.block_type.get() {
        1 => LogBlock::Descriptor,
        2 => LogBlock::Commit,
        5 => LogBlock::Revoke,
        _ => LogBlock::Other,
    };
    (header.magic.get() == MAGIC).then_some((kind, header.sequence.get()))
}

/// A block of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    /// Where it belongs on the device.
    pub(crate) block: u64,
    /// Whether its first four bytes, which were [`MAGIC`], are zeros in the log.
    pub(crate) escaped: bool,
    /// Its checksum: 32 bits in version 3, 16 in version 2, none in version 1.
    checksum: u32,
}

impl Tag {
    /// Whether the log's copy `block` has the tag's checksum (`jbd2_block_tag_csum_verify`).
    pub(crate) fn matches(&self, superblock: &JournalSuperblock, sequence: u32, block: &[u8]) -> bool {
        let checksum = || crc32c(crc32c(superblock.seed(), U32::new(sequence).as_bytes()), block);
        if superblock.has(incompat::CSUM_V3) {
            return checksum() == self.checksum;
        }
        !superblock.has(incompat::CSUM_V2) || checksum() & 0xFFFF == self.checksum
    }
}

const TAG_ESCAPED: u32 = 1;
const TAG_SAME_UUID: u32 = 2;
const TAG_LAST: u32 = 8;

/// `struct journal_block_tag_s` up to `t_flags`
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ShortTag {
    block: U32,
    checksum: U16,
    flags: U16,
}

/// `struct journal_block_tag3_s`
#[derive(FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LongTag {
    block: U32,
    flags: U32,
    block_high: U32,
    checksum: U32,
}

/// The tags of a descriptor block, in the order of the blocks after it (`count_tags`).
pub(crate) fn tags(superblock: &JournalSuperblock, block: &[u8]) -> Vec<Tag> {
    let mut rest = log_body(superblock, block);
    let mut tags = Vec::new();
    while let Some((tag, flags, length)) = tag(superblock, rest) {
        tags.push(tag);
        let uuid = if flags & TAG_SAME_UUID == 0 { 16 } else { 0 };
        rest = rest.get(length + uuid..).unwrap_or_default();
        if flags & TAG_LAST != 0 {
            break;
        }
    }
    tags
}

/// The first tag of `bytes`, its flags, and how many bytes it takes (`journal_tag_bytes`).
fn tag(superblock: &JournalSuperblock, bytes: &[u8]) -> Option<(Tag, u32, usize)> {
    let wide = superblock.has(incompat::BIT64);
    let high = |high: u32| if wide { u64::from(high) << 32 } else { 0 };
    if superblock.has(incompat::CSUM_V3) {
        let (tag, _) = LongTag::read_from_prefix(bytes).ok()?;
        let block = high(tag.block_high.get()) | u64::from(tag.block.get());
        let flags = tag.flags.get();
        let tag = Tag { block, escaped: flags & TAG_ESCAPED != 0, checksum: tag.checksum.get() };
        return Some((tag, flags, size_of::<LongTag>()));
    }
    // With checksums of version 2 a tag is two bytes longer than its fields.
    let length = size_of::<ShortTag>()
        + if wide { size_of::<U32>() } else { 0 }
        + if superblock.has(incompat::CSUM_V2) { size_of::<U16>() } else { 0 };
    let (tag, after) = ShortTag::read_from_prefix(bytes.get(..length)?).ok()?;
    let upper = if wide { U32::read_from_prefix(after).ok()?.0.get() } else { 0 };
    let flags = u32::from(tag.flags.get());
    let block = high(upper) | u64::from(tag.block.get());
    let tag = Tag { block, escaped: flags & TAG_ESCAPED != 0, checksum: u32::from(tag.checksum.get()) };
    Some((tag, flags, length))
}

/// The blocks that a revoke block names (`scan_revoke_records`); `None` where it claims more than fit.
pub(crate) fn revoked(superblock: &JournalSuperblock, block: &[u8]) -> Option<Vec<u64>> {
    let body = log_body(superblock, block);
    let (used, records) = U32::read_from_prefix(body).ok()?;
    let length = (used.get() as usize).checked_sub(size_of::<LogHeader>() + size_of::<U32>())?;
    let records = records.get(..length)?;
    let wide = |bytes: &[u8]| U64::read_from_bytes(bytes).map_or(0, U64::get);
    let narrow = |bytes: &[u8]| U32::read_from_bytes(bytes).map_or(0, |block| u64::from(block.get()));
    Some(match superblock.has(incompat::BIT64) {
        true => records.chunks_exact(8).map(wide).collect(),
        false => records.chunks_exact(4).map(narrow).collect(),
    })
}

/// A block's bytes between its header and its checksum.
fn log_body<'a>(superblock: &JournalSuperblock, block: &'a [u8]) -> &'a [u8] {
    let tail = if superblock.has(incompat::CSUM_V2 | incompat::CSUM_V3) { size_of::<U32>() } else { 0 };
    block.get(size_of::<LogHeader>()..block.len().saturating_sub(tail)).unwrap_or_default()
}

/// Whether the checksum at the end of a descriptor or revoke block is right, where it has one
/// (`jbd2_descriptor_block_csum_verify`).
pub(crate) fn log_checksum_matches(superblock: &JournalSuperblock, block: &[u8]) -> bool {
    if !superblock.has(incompat::CSUM_V2 | incompat::CSUM_V3) {
        return true;
    }
    let at = block.len().saturating_sub(size_of::<U32>());
    with_zeros(block, at, superblock.seed()).is_some_and(|(stored, computed)| stored == computed)
}

/// What a commit block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// When it was made: seconds since 1970.
    pub(crate) seconds: u64,
    /// The kind, the size and the value of the transaction's checksum of version 1.
    pub(crate) checksum: (u8, u8, u32),
}

/// Offset of `h_chksum` in `struct commit_header`.
const COMMIT_CHECKSUM: usize = 16;
/// Bytes of `struct commit_header`.
const COMMIT_SIZE: usize = 60;

/// The fields of a commit block.
pub(crate) fn commit(block: &[u8]) -> Option<Commit> {
    let (kind, size) = (*block.get(12)?, *block.get(13)?);
    let value = U32::read_from_bytes(block.get(COMMIT_CHECKSUM..COMMIT_CHECKSUM + 4)?).ok()?;
    let seconds = U64::read_from_bytes(block.get(48..56)?).ok()?;
    Some(Commit { seconds: seconds.get(), checksum: (kind, size, value.get()) })
}

/// Whether a commit block's own checksum is right, where it has one (`jbd2_commit_block_csum_verify`): over all of it,
/// or over its fields and zeros, as some kernels wrote it.
pub(crate) fn commit_checksum_matches(superblock: &JournalSuperblock, block: &[u8]) -> bool {
    if !superblock.has(incompat::CSUM_V2 | incompat::CSUM_V3) {
        return true;
    }
    let matches = |block: &[u8]| {
        with_zeros(block, COMMIT_CHECKSUM, superblock.seed()).is_some_and(|(stored, computed)| stored == computed)
    };
    let mut fields = vec![0; block.len()];
    fields.iter_mut().zip(block).take(COMMIT_SIZE).for_each(|(to, from)| *to = *from);
    matches(block) || matches(&fields)
}

/// The big-endian checksum at `at`, and what it is computed to be with zeros in its place.
fn with_zeros(bytes: &[u8], at: usize, seed: u32) -> Option<(u32, u32)> {
    let (before, rest) = bytes.split_at_checked(at)?;
    let (stored, after) = U32::read_from_prefix(rest).ok()?;
    Some((stored.get(), crc32c(crc32c(crc32c(seed, before), &[0; 4]), after)))
}

/// The transaction of a block of fast commits, if it is the first of them. Unlike everything else in a journal, they
/// are little-endian (`struct ext4_fc_tl` and `ext4_fc_head` in `fs/ext4/fast_commit.h`).
pub(crate) fn fast_commit_transaction(block: &[u8]) -> Option<u32> {
    const TAG_HEAD: u16 = 9;
    let ([tag, _], rest) = <[little_endian::U16; 2]>::read_from_prefix(block).ok()?;
    let ([_, transaction], _) = <[little_endian::U32; 2]>::read_from_prefix(rest).ok()?;
    (tag.get() == TAG_HEAD).then_some(transaction.get())
}

/// Continues the CRC-32 of version 1's checksums: polynomial 0x04C11DB7, highest bit first (`crc32_be`).
pub(crate) fn crc32_be(seed: u32, data: &[u8]) -> u32 {
    data.iter().fold(seed, |crc, byte| crc << 8 ^ CRC32_BE[(crc >> 24) as usize ^ usize::from(*byte)])
}

static CRC32_BE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = crc << 1 ^ if crc >> 31 == 1 { 0x04C1_1DB7 } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Writes the first block of an empty journal of `blocks` blocks; the others are zeros.
pub(crate) fn render_superblock(out: &mut Block, blocks: u32, uuid: [u8; 16]) {
    let superblock = JournalSuperblock {
        magic: U32::new(MAGIC),
        block_type: U32::new(SUPERBLOCK_V2),
        block_size: U32::new(BLOCK_SIZE as u32),
        max_len: U32::new(blocks),
        first: U32::new(1),
        sequence: U32::new(1),
        uuid,
        nr_users: U32::new(1),
        ..JournalSuperblock::new_zeroed()
    };
    put(out, 0, &superblock);
}
