//! Reads the superblock, the current checkpoint, and the node address table (NAT) that the checkpoint leads to.

use std::collections::HashMap;
use std::ops::Range;

use inarch_volume::{Pages, VolumeError};

use super::{BLOCK, damaged, u16_at, u32_at, u64_at, unsupported};

/// Where the superblock is (`F2FS_SUPER_OFFSET`); the other one is a block behind it.
pub(super) const SUPERBLOCK: u64 = 1024;
/// `F2FS_SUPER_MAGIC`
pub(super) const MAGIC: u32 = 0xF2F5_2010;
/// Bytes of the superblock that are read.
const SUPERBLOCK_BYTES: usize = 3072;
/// Blocks of a segment: no other number is allowed.
const SEGMENT: u64 = 512;

/// Flags of a checkpoint (`CP_*_FLAG`).
const UNMOUNTED: u32 = 0x1;
const COMPACT: u32 = 0x4;
const ERRORS: u32 = 0x8;
const FAST_BOOT: u32 = 0x20;
const LARGE_BITMAP: u32 = 0x400;

/// Features (`F2FS_FEATURE_*`).
pub(super) mod feature {
    pub(crate) const FLEXIBLE_XATTRS: u32 = 0x40;
    pub(crate) const CREATION_TIME: u32 = 0x100;
}

/// Entries of a block of the NAT, of nine bytes each: a version, the inode and the address.
const ENTRIES: u32 = 455;
const ENTRY: usize = 9;
/// Where the bitmaps of a checkpoint are.
const BITMAPS: usize = 192;
/// Where a summary block has its journal, and the bytes of that.
const JOURNAL: usize = 3584;
const JOURNAL_BYTES: usize = 507;
/// Bytes of an entry of the NAT's journal.
const JOURNAL_ENTRY: usize = 13;

/// What is known of the file system as a whole.
pub(super) struct Parameters {
    pub(super) features: u32,
    pub(super) root: u32,
    /// The addresses of blocks that are in use for files.
    pub(super) main: Range<u32>,
    pub(super) numbers: Numbers,
    pub(super) notes: Vec<String>,
    nat: Nat,
}

/// Numbers for statfs(2).
pub(super) struct Numbers {
    pub(super) blocks: u64,
    pub(super) free_blocks: u64,
    pub(super) inodes: u64,
    pub(super) free_inodes: u64,
}

/// Where nodes are.
struct Nat {
    start: u64,
    /// How many blocks of entries there are; each has a second copy.
    blocks: u32,
    /// Which copy counts: a bit for each block, the highest of a byte first.
    bitmap: Vec<u8>,
    /// The newest entries.
    journal: HashMap<u32, u32>,
}

impl Parameters {
    pub(super) fn read(pages: &Pages) -> Result<Parameters, VolumeError> {
        let mut superblock = Err(damaged("its superblock is damaged"));
        for at in [SUPERBLOCK, SUPERBLOCK + BLOCK as u64] {
            let mut bytes = vec![0; SUPERBLOCK_BYTES];
            if pages.holds(at, SUPERBLOCK_BYTES as u64) {
                pages.read(at, &mut bytes)?;
                superblock = Superblock::parse(&bytes);
                if superblock.is_ok() {
                    break;
                }
            }
        }
        let superblock = superblock?;
        let checkpoint = Checkpoint::newest(pages, &superblock)?;
        let journal = checkpoint.journal(pages)?;
        let blocks = superblock.nat_segments / 2 * SEGMENT as u32;
        let bitmap = checkpoint.bitmap(blocks)?;
        let nat = Nat { start: superblock.nat.into(), blocks, bitmap, journal };
        let mut notes = Vec::new();
        if checkpoint.flags & UNMOUNTED == 0 {
            notes.push("it was not unmounted: what was written after its last checkpoint is not shown".to_owned());
        }
        if checkpoint.flags & ERRORS != 0 {
            notes.push("its checkpoint says that errors were found; fsck.f2fs mends them".to_owned());
        }
        Ok(Parameters {
            features: superblock.features,
            root: superblock.root,
            main: superblock.main..superblock.end,
            numbers: checkpoint.numbers(&superblock, blocks),
            notes,
            nat,
        })
    }

    /// The address of a node's block; `None` if there is no such node.
    pub(super) fn address(&self, pages: &Pages, node: u32) -> Result<Option<u32>, VolumeError> {
        let found = |address: u32| (address != 0 && address != u32::MAX).then_some(address);
        if let Some(address) = self.nat.journal.get(&node) {
            return Ok(found(*address));
        }
        let block = node / ENTRIES;
        if block >= self.nat.blocks {
            return Ok(None);
        }
        // Segments of first copies and of second ones take turns.
        let block = u64::from(block);
        let mut at = self.nat.start + 2 * block - block % SEGMENT;
        let bits = self.nat.bitmap.get((block / 8) as usize).copied().unwrap_or_default();
        if bits >> (7 - block % 8) & 1 == 1 {
            at += SEGMENT;
        }
        let within = (node % ENTRIES) as usize * ENTRY;
        let entry: [u8; ENTRY] = pages.array(at * BLOCK as u64 + within as u64)?;
        Ok(found(u32_at(&entry, 5)))
    }
}

/// What is needed of the superblock.
struct Superblock {
    checkpoint: u32,
    payload: u32,
    nat: u32,
    nat_segments: u32,
    main: u32,
    /// The first segment, and the end of the last one.
    first: u32,
    end: u32,
    root: u32,
    features: u32,
}

impl Superblock {
    fn parse(bytes: &[u8]) -> Result<Superblock, VolumeError> {
        let word = |at| u32_at(bytes, at);
        if word(0) != MAGIC {
            return Err(damaged("its superblock is damaged"));
        }
        if word(16) != 12 || word(20) != 9 {
            return Err(unsupported("has blocks or segments of an unusual size, which is not supported"));
        }
        if bytes.get(2201) != Some(&0) {
            return Err(unsupported("lies on several devices, which is not supported"));
        }
        let superblock = Superblock {
            checkpoint: word(76),
            payload: word(1664),
            nat: word(84),
            nat_segments: word(60),
            main: word(92),
            first: word(72),
            end: u32::try_from(u64_at(bytes, 36)).map_err(|_| damaged("its superblock has more blocks than can be"))?,
            root: word(96),
            features: word(2180),
        };
        let Superblock { checkpoint, nat, nat_segments, main, first, end, root, .. } = superblock;
        // As sanity_check_raw_super: the areas follow each other.
        let nat_end = u64::from(nat) + u64::from(nat_segments) * SEGMENT;
        let is_in_order = first <= checkpoint && checkpoint < nat && nat_end <= main.into() && main < end;
        if !is_in_order || nat_segments > 1 << 16 || nat_segments % 2 != 0 || root < 3 {
            return Err(damaged("its superblock has areas that cannot be"));
        }
        Ok(superblock)
    }
}

/// A checkpoint that is whole.
struct Checkpoint {
    bytes: Vec<u8>,
    /// The address of its first block.
    at: u64,
    version: u64,
    flags: u32,
    /// Blocks of the pack.
    blocks: u32,
    payload: u32,
}

/// The checksum of metadata: CRC-32 from a seed, without the usual inversions.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!MAGIC);
    hasher.update(bytes);
    !hasher.finalize()
}

impl Checkpoint {
    /// The newer of the two that are whole.
    fn newest(pages: &Pages, superblock: &Superblock) -> Result<Checkpoint, VolumeError> {
        let first = u64::from(superblock.checkpoint);
        let mut newest: Option<Checkpoint> = None;
        for at in [first, first + SEGMENT] {
            match Checkpoint::read(pages, at, superblock.payload) {
                // Versions may wrap around.
                Ok(found)
                    if newest.as_ref().is_none_or(|newest| found.version.wrapping_sub(newest.version) as i64 > 0) =>
                {
                    newest = Some(found);
                }
                Ok(_) | Err(VolumeError::Damaged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        newest.ok_or_else(|| damaged("both of its checkpoints are damaged"))
    }

    /// The pack at `at`: its first block and its last one are the same if it was written to its end.
    fn read(pages: &Pages, at: u64, payload: u32) -> Result<Checkpoint, VolumeError> {
        let bytes = Checkpoint::block(pages, at)?;
        let (version, flags, blocks) = (u64_at(&bytes, 0), u32_at(&bytes, 132), u32_at(&bytes, 136));
        if !(2..=SEGMENT as u32).contains(&blocks) {
            return Err(damaged("a checkpoint has a size that cannot be"));
        }
        let last = Checkpoint::block(pages, at + u64::from(blocks) - 1)?;
        if u64_at(&last, 0) != version {
            return Err(damaged("a checkpoint was not written to its end"));
        }
        Ok(Checkpoint { bytes, at, version, flags, blocks, payload })
    }

    fn block(pages: &Pages, at: u64) -> Result<Vec<u8>, VolumeError> {
        let mut bytes = vec![0; BLOCK];
        pages.read(at * BLOCK as u64, &mut bytes)?;
        let end = u32_at(&bytes, 164) as usize;
        let sum = if (BITMAPS..=BLOCK - 4).contains(&end) { bytes.get(..end).map(checksum) } else { None };
        if sum == Some(u32_at(&bytes, end)) { Ok(bytes) } else { Err(damaged("a checkpoint is damaged")) }
    }

    /// The NAT's bitmap, for so many blocks.
    fn bitmap(&self, blocks: u32) -> Result<Vec<u8>, VolumeError> {
        let (of_sit, of_nat) = (u32_at(&self.bytes, 156) as usize, u32_at(&self.bytes, 160) as usize);
        let at = if self.flags & LARGE_BITMAP != 0 {
            // A checksum comes first.
            BITMAPS + 4
        } else if self.payload > 0 {
            BITMAPS
        } else {
            BITMAPS.saturating_add(of_sit)
        };
        let needed = blocks.div_ceil(8) as usize;
        let bitmap = at.checked_add(of_nat).and_then(|end| self.bytes.get(at..end)).filter(|bits| bits.len() >= needed);
        bitmap.map(<[u8]>::to_vec).ok_or_else(|| damaged("its checkpoint has a bitmap of a size that cannot be"))
    }

    /// The newest entries of the NAT: they are in the summary of the segment for hot data.
    fn journal(&self, pages: &Pages) -> Result<HashMap<u32, u32>, VolumeError> {
        let (block, within) = if self.flags & COMPACT != 0 {
            (u32_at(&self.bytes, 140), 0)
        } else {
            // The last blocks of the pack but one: those of data, and of nodes if they were written.
            let summaries = if self.flags & (UNMOUNTED | FAST_BOOT) != 0 { 6 } else { 3 };
            (self.blocks.saturating_sub(summaries + 1), JOURNAL)
        };
        if block == 0 || block >= self.blocks {
            return Err(damaged("its checkpoint has its summaries where none can be"));
        }
        let at = (self.at + u64::from(block)) * BLOCK as u64 + within as u64;
        let journal: [u8; JOURNAL_BYTES] = pages.array(at)?;
        let (entries, _) = journal.get(2..).unwrap_or_default().as_chunks::<JOURNAL_ENTRY>();
        let count = usize::from(u16_at(&journal, 0));
        if count > entries.len() {
            return Err(damaged("its checkpoint has a journal of more entries than can be"));
        }
        Ok(entries.iter().take(count).map(|entry| (u32_at(entry, 0), u32_at(entry, 9))).collect())
    }

    fn numbers(&self, superblock: &Superblock, nat_blocks: u32) -> Numbers {
        let (user, used) = (u64_at(&self.bytes, 8), u64_at(&self.bytes, 16));
        let (nodes, inodes) = (u64::from(u32_at(&self.bytes, 144)), u64::from(u32_at(&self.bytes, 148)));
        let free_blocks = user.saturating_sub(used);
        let all = u64::from(nat_blocks) * u64::from(ENTRIES);
        // Three numbers are reserved (`F2FS_RESERVED_NODE_NUM`).
        let free = all.saturating_sub(3).saturating_sub(nodes).min(free_blocks);
        Numbers {
            blocks: u64::from(superblock.end - superblock.first),
            free_blocks,
            inodes: inodes.saturating_add(free),
            free_inodes: free,
        }
    }
}
