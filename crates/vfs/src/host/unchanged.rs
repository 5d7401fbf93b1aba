//! Decides at each open whether a client may keep what it has cached of a file or directory that anybody may change.
//!
//! A client's kernel drops cached content at an open unless the server lets it stay. It may stay if size, mtime and
//! ctime are the same as at the open before, and if no change in between can have left them the same:
//!
//! - The last change must be older than [`SETTLED`]. Changes within one tick of the file system's clock get the same
//!   time. And a shared memory mapping sets the times only at its first write to a page; later writes to that page set
//!   them again only after the kernel has written the page back.
//! - The file system must be one whose files this kernel alone changes, and which notices writes through mappings.
//!
//! This assumes one client, or clients that cache nothing (9P). With several, the open before may have been another
//! client's.

use std::hash::BuildHasher;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Statx, fstatfs};

use super::table::Node;
use super::{HostDirectory, attributes, read};
use crate::{Caching, Changes, NodeId};

/// The kernel writes back what is older than 30 seconds, and looks for it every 5 (`dirty_expire_centisecs` and
/// `dirty_writeback_centisecs` of Linux's Documentation/admin-guide/sysctl/vm.rst).
pub(super) const SETTLED: Duration = Duration::from_secs(60);

/// How long after the last look-up in a directory its listing stays. It is longer than the TTL of attributes, because a program that
/// looks at all files of a large tree first comes to the listings later.
const ASKED: Duration = Duration::from_secs(4);

/// ext2 to ext4, XFS, Btrfs, F2FS, bcachefs, squashfs and EROFS (linux/magic.h). Not tmpfs: writes through mappings change no times
/// there. Not overlayfs: somebody else may write below it.
const TELLING: [u32; 7] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x7371_7368, 0xe0f5_e1e2];

impl HostDirectory {
    /// How a client that opens a node as `file` may cache it.
    pub(super) fn caching_at_open(&self, node: NodeId, file: BorrowedFd<'_>) -> Caching {
        if self.options.changes != Changes::Host || self.options.uncached {
            return self.options.caching();
        }
        // Without the node or its attributes nothing stays.
        let stamp = self.stamp(file).unwrap_or(0);
        let table = read(&self.table);
        let is_unchanged = table.index(node).and_then(|index| table.node(index)).is_ok_and(|node| node.is_again(stamp));
        if is_unchanged { Caching::Keep } else { Caching::Fresh }
    }

    /// How a client that opens a directory may cache its listing.
    ///
    /// A listing that stays spares its requests. But if the client's attributes of the entries are past their TTL and it wants them, it
    /// asks for each, while one READDIRPLUS refreshes dozens. So a listing stays where the client has just asked for entries one by one
    /// (`git status`, which looks at all files before it lists directories), and where its listings come without attributes.
    pub(super) fn listing_at_open(&self, node: NodeId, directory: BorrowedFd<'_>) -> Caching {
        let caching = self.caching_at_open(node, directory);
        if self.options.changes != Changes::Host || !self.lists_attributes.load(Ordering::Relaxed) {
            return caching;
        }
        let table = read(&self.table);
        let asked = table.index(node).and_then(|index| table.node(index)).ok().and_then(Node::last_asked);
        let knows_entries = asked.is_some_and(|asked| self.started.elapsed().saturating_sub(asked) < ASKED);
        if knows_entries { caching } else { Caching::Fresh }
    }

    /// A number that identifies the content, from size and times; `None` if these do not tell whether it has changed.
    fn stamp(&self, file: BorrowedFd<'_>) -> Option<u64> {
        let stat = attributes::stat(file, b"", AtFlags::empty()).ok()?;
        let changed = last_change(&stat);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        let is_settled = now.checked_sub(changed).is_some_and(|age| age >= self.settled);
        let tells = || fstatfs(file).is_ok_and(|fs| TELLING.contains(&(fs.f_type as u32)));
        let times = [&stat.stx_mtime, &stat.stx_ctime].map(|time| (time.tv_sec, time.tv_nsec));
        // 0 is no stamp.
        (is_settled && tells()).then(|| self.stamps.hash_one((stat.stx_size, times)) | 1)
    }
}

/// When content or attributes changed last.
fn last_change(stat: &Statx) -> Duration {
    let since = |time: &rustix::fs::StatxTimestamp| {
        Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), time.tv_nsec.min(999_999_999))
    };
    since(&stat.stx_mtime).max(since(&stat.stx_ctime))
}
