//! [`DiskNote`]: what the user should know when a disk is no longer served: files of the host that changed, and writes that found no room.

use std::fmt;
use std::path::PathBuf;

use inarch_block::{ChangeReason, Device};
use inarch_lifecycle::{counted, shown};
use inarch_source::Source;

/// How many files whose reads failed are named; the rest are counted.
const CHANGED_NAMED: usize = 20;

/// How many files that were read as they had been are named.
const HELD_NAMED: usize = 3;

/// The guest may see a full disk while this much is free: a mounted ext4 reserves up to 16 MiB for its own growth,
/// and its metadata is not completely written yet.
const HELD_BACK: u64 = 20 << 20;

/// What the use of a disk showed. Its text is one line.
#[derive(Clone, Debug)]
pub enum DiskNote {
    /// A file changed on the host: the guest's reads of it failed.
    Changed {
        /// The file.
        path: PathBuf,
        /// What differs from the scan.
        reason: ChangeReason,
    },
    /// Further files changed, and are not named.
    MoreChanged {
        /// How many.
        files: u64,
    },
    /// Files changed on the host, and the guest read the copies that were made before.
    Held {
        /// The first of them.
        named: Vec<PathBuf>,
        /// How many in all.
        files: u64,
    },
    /// Reads failed because this process had no file descriptor left.
    OutOfDescriptors {
        /// How many.
        reads: u64,
    },
    /// The file system that keeps the guest's writes was full: some failed.
    NoRoomOnHost,
    /// The guest used all the room that its disk has for writes.
    DiskFull {
        /// The room, in bytes.
        room: u64,
    },
}

impl fmt::Display for DiskNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskNote::Changed { path, reason } => {
                write!(f, "{} read as an I/O error in the guest: {reason}", shown(path))
            }
            DiskNote::MoreChanged { files } => {
                write!(f, "so did {} that changed on the host", counted(*files, "more file", "more files"))
            }
            DiskNote::Held { named, files } => {
                let names = named.iter().map(|path| shown(path)).collect::<Vec<_>>().join(", ");
                let more = match files.saturating_sub(named.len() as u64) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                let what = if *files == 1 { "it as it was" } else { "them as they were" };
                write!(f, "{names}{more} changed on the host; the guest read {what} when the run began")
            }
            DiskNote::OutOfDescriptors { reads } => {
                write!(f, "{reads} reads failed in the guest for want of file descriptors here; raise ulimit -n")
            }
            DiskNote::NoRoomOnHost => f.write_str(
                "the disk that keeps the guest's writes was full: some failed; free some, or use --overlay-dir, or for a \
                 kept run another XDG_STATE_HOME",
            ),
            DiskNote::DiskFull { room } => write!(
                f,
                "the guest wrote all of its {} MiB of free space; free more on the host, or use --overlay-dir, or for a \
                 kept run another XDG_STATE_HOME",
                room >> 20
            ),
        }
    }
}

impl DiskNote {
    /// What there is to know of `device`, which shows `source`. `writable` is the number of bytes that the guest could write, if bounded.
    pub(crate) fn of(device: &Device, source: &Source, writable: Option<u64>) -> Vec<DiskNote> {
        let events = device.events();
        let named = events.changed.named.iter().take(CHANGED_NAMED);
        let mut notes: Vec<DiskNote> = named
            .map(|file| DiskNote::Changed { path: source.name_of(&file.path), reason: file.reason.clone() })
            .collect();
        let files = events.changed.count.saturating_sub(notes.len() as u64);
        notes.extend((files > 0).then_some(DiskNote::MoreChanged { files }));
        let held = &events.held;
        let named = held.named.iter().take(HELD_NAMED).map(|file| source.name_of(&file.path)).collect();
        notes.extend((held.count > 0).then_some(DiskNote::Held { named, files: held.count }));
        let reads = events.out_of_descriptors;
        notes.extend((reads > 0).then_some(DiskNote::OutOfDescriptors { reads }));
        let nearly = |bytes: u64| bytes - HELD_BACK.max(bytes / 16).min(bytes / 2);
        if events.overlay_out_of_space {
            notes.push(DiskNote::NoRoomOnHost);
        } else if let Some(room) = writable.filter(|bytes| events.overlay_bytes >= nearly(*bytes)) {
            notes.push(DiskNote::DiskFull { room });
        }
        notes
    }
}
