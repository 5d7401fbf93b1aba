//! Checks a caller's permissions in the server, where the client's kernel cannot be trusted to have checked them.
//!
//! Usually the kernel checks, and the file system only compares the permissions that the kernel saw with those of now. That is not enough in
//! two cases:
//!
//! 1. A node's permissions changed behind the back of the client's kernel, so that it may still check against the old ones
//!    ([`FileSystem::is_contested`]).
//! 2. Extended attributes whose names begin with `system.` can grant permissions. Linux passes them on without a permission check
//!    (`xattr_permission` of its fs/xattr.c), unless it enforces access control lists itself.
//!
//! A request does not carry the caller's capabilities and supplementary groups. In these two cases, therefore, the group's permissions count for every
//! caller but the owner, and capabilities of a caller who is not root do not count.

use inarch_vfs::{Attributes, FileSystem, NodeId, OPEN_TO_EXECUTE, SetAttributes, SetTime};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::answer::Asked;
use crate::wire::init_flag;

/// Permission to read, write, and execute or search.
pub(super) const READ: u32 = 4;
pub(super) const WRITE: u32 = 2;
pub(super) const EXECUTE: u32 = 1;

/// Extended attributes of file systems, such as ACLs.
const OF_SYSTEMS: &[u8] = b"system.";

impl<F: FileSystem + ?Sized> Asked<'_, F> {
    /// Whether the caller is to be compared with the node's permissions.
    fn must_be_known(&self, node: NodeId) -> bool {
        self.context.uid != 0 && self.fs().is_contested(node)
    }

    fn shown(&self, node: NodeId) -> Result<Attributes, Errno> {
        self.fs().peek_attributes(self.context, node, None)
    }

    /// Returns `ESTALE` if the node is contested and its permissions do not grant `wanted`. The client's kernel then looks again, and refuses.
    pub(super) fn require_grant(&self, node: NodeId, wanted: u32) -> Result<(), Errno> {
        if !self.must_be_known(node) || grants(&self.shown(node)?, self.context.uid, wanted) {
            return Ok(());
        }
        Err(Errno::STALE)
    }

    /// The same for an open with these flags.
    pub(super) fn require_grant_to_open(&self, flags: OFlags) -> Result<(), Errno> {
        let wanted = match flags & OFlags::ACCMODE {
            _ if flags.bits() & OPEN_TO_EXECUTE != 0 => EXECUTE,
            OFlags::WRONLY => WRITE,
            OFlags::RDWR => READ | WRITE,
            _ => READ,
        };
        self.require_grant(self.node, wanted)
    }

    /// The same for a new hard link: the caller must own the file, or may read and write it (`fs.protected_hardlinks` of
    /// Linux).
    pub(super) fn require_grant_to_link(&self, node: NodeId) -> Result<(), Errno> {
        if self.must_be_known(node) && self.shown(node)?.uid != self.context.uid {
            return self.require_grant(node, READ | WRITE);
        }
        Ok(())
    }

    /// Returns `ESTALE` if the node is contested and the caller may not set these attributes by path.
    pub(super) fn require_grant_to_set(&self, set: &SetAttributes, is_open: bool) -> Result<(), Errno> {
        let is_to = |time| matches!(time, Some(SetTime::To(_)));
        let is_owners = set.changes_permissions() || is_to(set.atime) || is_to(set.mtime);
        if is_owners && self.must_be_known(self.node) && self.shown(self.node)?.uid != self.context.uid {
            return Err(Errno::STALE);
        }
        let is_writers = set.size.is_some() && !is_open;
        if is_writers { self.require_grant(self.node, WRITE) } else { Ok(()) }
    }

    /// Fails unless the caller may change an extended attribute of this name, if the client's kernel does not check that.
    pub(super) fn require_owner_of(&self, name: &[u8]) -> Result<(), Errno> {
        if self.context.uid == 0 || !name.starts_with(OF_SYSTEMS) {
            return Ok(());
        }
        let keeps_lists = self.dispatcher.agreement.flags().is_some_and(|flags| flags & init_flag::POSIX_ACL != 0);
        if keeps_lists && !self.fs().is_contested(self.node) {
            return Ok(());
        }
        if self.shown(self.node)?.uid == self.context.uid { Ok(()) } else { Err(Errno::PERM) }
    }
}

/// Whether the permissions grant `wanted` to a user. Those of the group, which include those of named users and groups, may be anybody's.
fn grants(attributes: &Attributes, uid: u32, wanted: u32) -> bool {
    let [owner, group, others] = [6, 3, 0].map(|shift| attributes.mode >> shift & 7);
    let granted = if attributes.uid == uid { owner } else { group | others };
    granted & wanted == wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_grant_what_they_grant() {
        let of = |mode| Attributes { mode, uid: 1, ..Attributes::default() };
        assert!(grants(&of(0o600), 1, READ | WRITE) && !grants(&of(0o600), 2, READ));
        assert!(grants(&of(0o640), 2, READ) && !grants(&of(0o640), 2, WRITE));
        assert!(!grants(&of(0o077), 1, READ) && grants(&of(0o701), 2, EXECUTE));
    }
}
