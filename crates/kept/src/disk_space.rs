//! Computes the size of a guest disk's file system from the free space for its writes. So a full disk is ENOSPC in
//! the guest, not a failed write.

use std::path::{Path, PathBuf};

use inarch_format::ext4;
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;

const MIB: u64 = 1 << 20;

/// The fraction of the free space that the guest's file system never counts on: rewriting blocks takes overlay space
/// that the guest does not count as used.
const RESERVED_FRACTION: u64 = 8;

/// The most free space that a guest is given, in bytes: block groups are not free for the kernel that mounts them.
const MOST_THROWN_AWAY: u64 = 256 << 30;
const MOST_KEPT: u64 = 64 << 30;

/// The least room, in bytes, where what a guest writes is kept.
const LEAST_ROOM: u64 = 64 * MIB;
/// The least free space of such a disk in bytes: the guest's kernel reserves up to 16 MiB of it
/// (`ext4_calculate_resv_clusters`).
const LEAST_FREE: u64 = 32 * MIB;
/// Bytes to leave free beside such a disk, for the layer made from it and for others.
const LEAST_BESIDE: u64 = 16 * MIB;

/// Sizes of a journal, in bytes: a sixteenth of the room, within these bounds.
const LEAST_JOURNAL: u64 = 4 * MIB;
const MOST_JOURNAL: u64 = 64 * MIB;

/// The most inodes that a guest may create.
const MOST_INODES: u64 = 1 << 20;

/// Why a disk has no space.
#[derive(Debug, thiserror::Error)]
pub enum DiskSpaceError {
    /// The free space is unknown.
    #[error(transparent)]
    Path(#[from] PathError),
    /// Too little is free.
    #[error(
        "{}: {mib} MiB are free, too little for what the guest writes; free some, or let XDG_STATE_HOME name another directory",
        shown(directory)
    )]
    TooLittle {
        /// Where the guest's writes would be kept.
        directory: PathBuf,
        /// Mebibytes that are free there.
        mib: u64,
    },
}

/// What a guest may write to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes that its file system has free.
    free: u64,
    /// Bytes of its journal.
    journal: Option<u64>,
}

impl DiskSpace {
    /// Nothing is written.
    pub const NONE: DiskSpace = DiskSpace { free: 0, journal: None };

    /// For one of `sharers` disks whose writes go to a nameless file in `dir`.
    pub fn thrown_away(dir: &Path, sharers: u64) -> Result<DiskSpace, DiskSpaceError> {
        let share = available(dir)? / sharers.max(1);
        Ok(DiskSpace { free: (share - share / RESERVED_FRACTION).min(MOST_THROWN_AWAY), journal: None })
    }

    /// For one of `sharers` disks whose writes are kept in `dir`. `beside` is the size of the host's stored tree,
    /// which exists already and is written once more by the next command.
    pub fn kept(dir: &Path, sharers: u64, beside: u64) -> Result<DiskSpace, DiskSpaceError> {
        let available = available(dir)?;
        let left = available.saturating_sub(beside.saturating_add((available / 20).max(LEAST_BESIDE)));
        let share = left / sharers.max(1);
        let room = share - share / RESERVED_FRACTION;
        let free = room.saturating_sub(journal_for(room)).min(MOST_KEPT) / MIB;
        match u32::try_from(free) {
            Ok(free) if u64::from(free) * MIB >= LEAST_FREE => Ok(DiskSpace::noted(free)),
            _ => Err(too_little(dir, available.saturating_add(beside))),
        }
    }

    /// Bytes that a guest may write.
    pub fn bytes(&self) -> u64 {
        self.free
    }

    /// The room of a kept disk, from its overlay's note.
    pub fn noted(mib: u32) -> DiskSpace {
        let free = u64::from(mib) * MIB;
        DiskSpace { free, journal: Some(journal_for(free)) }
    }

    /// The note for the overlay of a kept disk: by it the same disk can be made again, whatever room there is then.
    pub fn note(&self) -> u32 {
        u32::try_from(self.free / MIB).unwrap_or(u32::MAX)
    }

    /// The options of its file system.
    pub fn options(&self, uuid: [u8; 16]) -> ext4::Options {
        // One for each block: more could not be used. As the tables of block groups have so many, they add no groups of their own.
        let inodes = (self.free / inarch_block::BLOCK_SIZE as u64).min(MOST_INODES);
        ext4::Options {
            uuid,
            free_bytes: self.free,
            free_inodes: u32::try_from(inodes).unwrap_or(u32::MAX),
            journal: self.journal,
            lost_and_found: false,
            ..ext4::Options::default()
        }
    }
}

/// Fails where there is plainly no room to keep what a guest writes.
pub fn require(dir: &Path) -> Result<(), DiskSpaceError> {
    let available = available(dir)?;
    if available >= LEAST_ROOM { Ok(()) } else { Err(too_little(dir, available)) }
}

/// Bytes that are free in `dir` for its user.
fn available(dir: &Path) -> Result<u64, PathError> {
    let stat =
        rustix::fs::statvfs(dir).map_err(|error| PathError::new(dir, "cannot keep the guest's writes there", error))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn too_little(dir: &Path, available: u64) -> DiskSpaceError {
    DiskSpaceError::TooLittle { directory: dir.to_owned(), mib: available / MIB }
}

fn journal_for(bytes: u64) -> u64 {
    (bytes / 16).clamp(LEAST_JOURNAL, MOST_JOURNAL)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use inarch_tree::{Attributes, Builder};

    use super::*;

    #[test]
    fn a_kept_disk_has_the_room_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let available = available(dir.path()).unwrap();
        let room = DiskSpace::kept(dir.path(), 1, 0).unwrap();
        assert!(room.free <= MOST_KEPT && room.free + room.journal.unwrap() < available, "{room:?}");
        assert_eq!(DiskSpace::noted(room.note()), room, "it can be made again");
        let part = DiskSpace::kept(dir.path(), 10, 0).unwrap();
        assert!(part.free < available / 10);
        let error = DiskSpace::kept(dir.path(), 1, available - LEAST_ROOM / 4).unwrap_err().to_string();
        assert!(error.contains("MiB are free") && error.lines().count() == 1, "{error}");
    }

    #[test]
    fn small_disks_are_no_larger_than_they_say() {
        let root = Attributes { mode: 0o040_755, ..Attributes::default() };
        let tree = Arc::new(Builder::new(&root).unwrap().finish().unwrap());
        for mib in [8, 100, 127, 128, 129, 500, 5000, 65_536] {
            let plan = ext4::plan(Arc::clone(&tree), &DiskSpace::noted(mib).options([0; 16])).unwrap();
            let free = plan.summary.free_blocks * inarch_block::BLOCK_SIZE as u64 / MIB;
            assert_eq!(free, u64::from(mib), "{:?}", plan.summary);
        }
    }
}
