//! What is mounted beneath the directory: another file system, or a bind mount of the same one.
//!
//! As in a scan, the mount decides, not the device: a subvolume of btrfs has a device of its own and is no mount. A *closed*
//! node is a directory on which something is mounted that is not to be shown: it has the attributes of what is mounted there, as
//! the host's kernel gives them without asking a server, and nothing in it. No descriptor of it is held, so that it can be
//! unmounted.

use std::os::fd::BorrowedFd;

use inarch_tree::scan::is_on_own_disk;
use rustix::fs::{AtFlags, Statx, StatxAttributes};
use rustix::io::Errno;

use super::attributes::{identity, permissions};
use super::table::{Found, is_directory};
use super::{HostDirectory, read};
use crate::{DirectoryEntry, DirectorySink, NodeId};

/// What becomes of what is mounted beneath a directory. Single files on which others are mounted are always shown as those.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Submounts {
    /// The mount point is an empty directory in which nothing can be made (`EROFS`), and nobody is asked for what is there.
    #[default]
    Empty,
    /// It is shown as if it were of the same file system.
    Merged,
    /// It is shown, and clients are told where it begins (`is_submount` of [`Attributes`](crate::Attributes)).
    Separate,
}

/// How attributes are asked for: where mounted servers are to be left alone, and the directory is of this machine's own, those
/// at hand are right.
pub(super) fn stat_flags(root: BorrowedFd<'_>, submounts: Submounts) -> AtFlags {
    let leaves_alone = submounts == Submounts::Empty && is_on_own_disk(root);
    if leaves_alone { AtFlags::STATX_DONT_SYNC } else { AtFlags::empty() }
}

impl HostDirectory {
    /// What the table has to know.
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

    /// Whether it is a directory on which something is mounted, beneath the root.
    pub(super) fn is_mounted_below(&self, stat: &Statx) -> bool {
        let is_root_of_mount = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        is_root_of_mount && stat.stx_mnt_id != self.root_mount && is_directory(stat.stx_mode.into())
    }

    /// Whether a node is shown as an empty directory.
    pub(super) fn is_closed(&self, node: NodeId) -> Result<bool, Errno> {
        let table = read(&self.table);
        Ok(table.node(table.index(node)?)?.is_closed)
    }

    /// Refuses to change a node that is shown as an empty directory: it would be changed where it is mounted.
    pub(super) fn require_open(&self, node: NodeId) -> Result<(), Errno> {
        if self.is_closed(node)? { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// The entries of a directory that is shown empty.
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
