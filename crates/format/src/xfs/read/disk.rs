//! The bytes of a file system, and the parameters from its superblock.

use std::ops::Range;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_volume::{Pages, VolumeError};

use super::replay::Replayed;
use super::{damaged, unreadable};
use crate::xfs::NAME;
use crate::xfs::spec::seal::{Seal, checksum_matches};
use crate::xfs::spec::superblock::{CHECKSUM, Superblock, incompat, version};
use crate::{Damage, ReadError};

/// Pages of metadata that are kept: 4 MiB.
const PAGES: usize = 1024;
/// The largest sector, and inode.
const MAX_SECTOR: u64 = 32 << 10;
/// Bytes of a directory's block at most.
const MAX_BLOCK: u64 = 64 << 10;

/// A file system on a backing. Blocks are counted from its start, without gaps between the allocation groups.
pub(super) struct Disk {
    pub(super) pages: Pages,
    pub(super) superblock: Superblock,
    /// Bytes of a block: 512 to 64 KiB.
    pub(super) block_size: u64,
    /// Bytes of a directory's block.
    pub(super) directory_block: u64,
    /// Blocks of the file system.
    blocks: u64,
    pub(super) inode_size: usize,
    /// Whether metadata has checksums, addresses and owners.
    pub(super) is_sealed: bool,
    pub(super) uuid: [u8; 16],
    pub(super) has_types: bool,
    /// The view of the log's changes, if this is one.
    replayed: Option<Arc<Replayed>>,
}

impl Disk {
    /// The file system of an image as it is.
    pub(super) fn new(backing: Arc<dyn Backing>, damage: Damage, notes: &mut Vec<String>) -> Result<Disk, ReadError> {
        Disk::read(backing, None, damage, notes)
    }

    /// The file system with its log replayed.
    pub(super) fn replayed(view: Arc<Replayed>, damage: Damage, notes: &mut Vec<String>) -> Result<Disk, ReadError> {
        Disk::read(Arc::clone(&view) as _, Some(view), damage, notes)
    }

    /// Reads the superblock and checks what everything else depends on. Salvaged damage becomes a note.
    fn read(
        backing: Arc<dyn Backing>,
        replayed: Option<Arc<Replayed>>,
        damage: Damage,
        notes: &mut Vec<String>,
    ) -> Result<Disk, ReadError> {
        let pages = Pages::new(backing, PAGES);
        let of_volume = |error| ReadError::of_volume(NAME, error);
        let head: [u8; 512] = pages.array(0).map_err(of_volume)?;
        let superblock = Superblock::parse(&head)
            .ok_or_else(|| unreadable("there is no superblock (the magic number is missing)"))?;
        let disk = Disk { replayed, ..Disk::with_geometry(pages, superblock).map_err(unreadable)? };
        let mut found = |reason: &str| damage.or_refuse(NAME, reason.to_owned()).map(|reason| notes.push(reason));
        if disk.is_sealed && !disk.is_replayed(0, 1) {
            let mut sector = vec![0; disk.superblock.sector_size.get().into()];
            disk.pages.read(0, &mut sector).map_err(of_volume)?;
            if !checksum_matches(&sector, CHECKSUM) {
                found("the superblock's checksum is wrong; xfs_repair may restore it from a copy")?;
            }
        }
        if disk.superblock.in_progress != 0 {
            found("mkfs.xfs was interrupted while it made it")?;
        }
        if disk.superblock.has_incompat(incompat::NEEDS_REPAIR) {
            found("it says of itself that xfs_repair has to repair it")?;
        }
        let (wanted, there) = (disk.blocks * disk.block_size, disk.pages.size());
        if there < wanted {
            found(&format!("the image was cut off: it has {there} bytes, the file system {wanted}"))?;
        }
        Ok(disk)
    }

    /// Follows `xfs_validate_sb_common` in `fs/xfs/libxfs/xfs_sb.c`.
    fn with_geometry(pages: Pages, sb: Superblock) -> Result<Disk, String> {
        check_features(&sb)?;
        let block_size = u64::from(sb.block_size.get());
        let is_power = |number: u64, log: u8, range: Range<u64>| {
            number.is_power_of_two() && number.trailing_zeros() == u32::from(log) && range.contains(&number)
        };
        let (inode_size, sector) = (u64::from(sb.inode_size.get()), u64::from(sb.sector_size.get()));
        let (groups, of_group) = (u64::from(sb.ag_count.get()), u64::from(sb.ag_blocks.get()));
        let per_block = u64::from(sb.inodes_per_block.get());
        let blocks = sb.blocks.get();
        let log = u32::from(sb.directory_log) + u32::from(sb.block_log);
        // The last group may be shorter, but it is there.
        let least = groups.saturating_sub(1).saturating_mul(of_group);
        let checks = [
            (is_power(block_size, sb.block_log, 512..MAX_BLOCK + 1), "the size of a block"),
            (is_power(inode_size, sb.inode_log, 256..2049), "the size of an inode"),
            (sector.is_power_of_two() && (512..=MAX_SECTOR).contains(&sector), "the size of a sector"),
            (
                inode_size <= block_size && block_size.checked_div(inode_size) == Some(per_block),
                "the number of inodes of a block",
            ),
            (is_power(per_block, sb.inodes_per_block_log, 1..257), "the number of inodes of a block"),
            (1u64 << sb.directory_log.min(16) <= MAX_BLOCK && log <= 16, "the size of a directory's block"),
            (
                of_group > 1 && of_group.next_power_of_two().trailing_zeros() == u32::from(sb.ag_blocks_log),
                "its groups",
            ),
            (groups > 0 && blocks > least && blocks - least <= of_group, "the number of its blocks"),
            (blocks.checked_mul(block_size).is_some_and(|bytes| bytes <= i64::MAX as u64), "the number of its blocks"),
        ];
        if let Some((_, what)) = checks.iter().find(|(is_sound, _)| !is_sound) {
            return Err(format!(
                "the superblock contradicts itself about {what}; xfs_repair may restore it from a copy"
            ));
        }
        Ok(Disk {
            pages,
            block_size,
            directory_block: block_size << sb.directory_log,
            blocks,
            inode_size: inode_size as usize,
            is_sealed: sb.is_sealed(),
            uuid: sb.metadata_uuid(),
            has_types: sb.has_types(),
            replayed: None,
            superblock: sb,
        })
    }

    /// The block with a number of the kind that metadata has, where the allocation group's number is above the block's
    /// within it; `None` if `length` blocks from there on are not within one group.
    pub(super) fn block(&self, number: u64, length: u64) -> Option<u64> {
        let log = u32::from(self.superblock.ag_blocks_log);
        let (group, within) = (number.checked_shr(log)?, number & ((1u64 << log) - 1));
        let of_group = u64::from(self.superblock.ag_blocks.get());
        if group >= self.superblock.ag_count.get().into() || within >= of_group || length > of_group - within {
            return None;
        }
        let first = group * of_group + within;
        (first + length <= self.blocks).then_some(first)
    }

    /// Where an inode lies, in bytes.
    pub(super) fn inode(&self, ino: u64) -> Option<u64> {
        let log = u32::from(self.superblock.inodes_per_block_log);
        let block = self.block(ino >> log, 1)?;
        let within = ino & ((1 << log) - 1);
        Some(block * self.block_size + within * self.inode_size as u64)
    }

    /// Whether the image holds all of these blocks.
    pub(super) fn has(&self, first: u64, length: u64) -> bool {
        self.pages.holds(first * self.block_size, length * self.block_size)
    }

    /// Fills `out` from the start of a block.
    pub(super) fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        self.pages.read(first.saturating_mul(self.block_size), out)
    }

    /// Checks metadata of the inode `owner`, which is in `blocks`.
    pub(super) fn check(&self, seal: Seal, bytes: &[u8], blocks: &[u64], owner: u64) -> Result<(), VolumeError> {
        if !self.is_sealed {
            return Ok(());
        }
        let is_replayed = blocks.iter().any(|block| self.is_replayed(block * self.block_size, self.block_size));
        if !is_replayed && !checksum_matches(bytes, seal.checksum) {
            return Err(damaged("has a wrong checksum"));
        }
        let at = blocks.first().copied().unwrap_or_default() * self.block_size;
        match seal.flaw(bytes, at, &self.uuid, owner) {
            Some(flaw) => Err(damaged(flaw)),
            None => Ok(()),
        }
    }

    /// Whether any of these bytes come from the log: the kernel computes their checksum when it writes them back.
    pub(super) fn is_replayed(&self, at: u64, length: u64) -> bool {
        self.replayed.as_ref().is_some_and(|replayed| replayed.covers(at, length))
    }

    /// Blocks for files: all but those of a log within.
    pub(super) fn blocks_for_files(&self) -> u64 {
        let log = if self.superblock.log_start.get() == 0 { 0 } else { self.superblock.log_blocks.get() };
        self.blocks.saturating_sub(log.into())
    }

    /// Whether names are looked up without regard to case.
    pub(super) fn ignores_case(&self) -> bool {
        self.superblock.version.get() & version::BORG != 0
    }
}

/// Refuses what would be misread.
fn check_features(sb: &Superblock) -> Result<(), String> {
    let number = sb.number();
    if number != 4 && number != 5 {
        return Err(format!("it is of version {number}; versions 4 and 5 can be read"));
    }
    if sb.version.get() & version::DIRV2 == 0 {
        return Err("its directories are of version 1, which cannot be read; only version 2 can".to_owned());
    }
    let unknown = if sb.is_sealed() { sb.incompat.get() & !incompat::KNOWN } else { 0 };
    if unknown != 0 {
        let names = incompat::OTHERS.iter().filter(|(bit, _)| unknown & bit != 0).map(|(_, name)| *name);
        let names: Vec<_> = names.collect();
        let names = if names.is_empty() { String::new() } else { format!("{} ", names.join(", ")) };
        return Err(format!("it has features that cannot be read: {names}(incompatible {unknown:#x})"));
    }
    Ok(())
}
