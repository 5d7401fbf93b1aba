//! Handles mounts inside the directory: other file systems, or bind mounts of the same one.
//!
//! As in a scan, the mount counts, not the device: a Btrfs subvolume has its own device number but is no mount. A
//! *closed* node is a mount point that is not to be shown. It has the attributes of the mounted root, as the host's
//! kernel has them cached without asking a server, and looks empty. No descriptor of it is kept, so that it can be
//! unmounted.

use std::os::fd::BorrowedFd;

use inarch_tree::scan::is_on_own_disk;
use rustix::fs::{AtFlags, Statx, StatxAttributes};
use rustix::io::Errno;

use super::attributes::{identity, permissions};
use super::table::{Found, is_directory};
use super::{HostDirectory, read};
use crate::{DirectoryEntry, DirectorySink, NodeId};

/// How to show mounts inside a directory. A file mounted over another file is always shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Submounts {
    /// As an empty directory in which nothing can be made (`EROFS`). The mounted file system is never touched.
    #[default]
    Empty,
    /// As part of the same file system.
    Merged,
    /// As file systems of their own (`is_submount` of [`Attributes`](crate::Attributes)).
    Separate,
}

/// The flags for statx(2): if mounted servers must not be contacted and the root is on a local file system, cached
/// attributes are correct.
pub(super) fn stat_flags(root: BorrowedFd<'_>, submounts: Submounts) -> AtFlags {
    let leaves_alone = submounts == Submounts::Empty && is_on_own_disk(root);
    if leaves_alone { AtFlags::STATX_DONT_SYNC } else { AtFlags::empty() }
}

impl HostDirectory {
    /// Converts attributes to a table entry.
    pub(super) fn found(&self, stat: &Statx) -> Found {
        let identity = identity(stat);
        let is_automount = stat.stx_attributes.contains(StatxAttributes::AUTOMOUNT);
        let is_mounted = self.options.submounts == Submounts::Empty && self.is_mounted_below(stat);
        Found {
            identity,
            on_root_mount: stat.stx_mnt_id == self.root_mount,
            is_closed: is_directory(identity.kind) && (is_mounted || is_automount),
            permissions: permissions(stat),
        }
    }

    /// Whether it is a mount point below the root.
    pub(super) fn is_mounted_below(&self, stat: &Statx) -> bool {
        let is_root_of_mount = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        is_root_of_mount && stat.stx_mnt_id != self.root_mount && is_directory(stat.stx_mode.into())
    }

    /// Whether a node is shown as an empty directory.
    pub(super) fn is_closed(&self, node: NodeId) -> Result<bool, Errno> {
        let table = read(&self.table);
        Ok(table.node(table.index(node)?)?.is_closed)
    }

    /// Refuses changes of a closed node, which would change the mounted file system.
    pub(super) fn require_open(&self, node: NodeId) -> Result<(), Errno> {
        if self.is_closed(node)? { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// The entries of a closed node.
    pub(super) fn list_nothing(&self, node: NodeId, offset: u64, sink: &mut dyn DirectorySink) -> Result<(), Errno> {
        let inode = self.get_attributes(node, None)?.inode;
        for (next, name) in [(1, &b"."[..]), (2, b"..")] {
            if next > offset {
                let entry = DirectoryEntry { inode, next, mode: libc::S_IFDIR, name, entry: None };
                if !sink.has_room(name.len()) || !sink.push(&entry) {
                    break;
                }
            }
        }
        Ok(())
    }
}
