//! What goes up with a file besides its content. Nobody may do more with what is above than with what is below.

use rustix::io::Errno;

use super::{ME, Overlay, hold, is_own};
use crate::host::Permissions;
use crate::{Attributes, Context, Entry, FileSystem, NodeId, SetAttributes, SetTime};

pub(super) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
pub(super) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The answer of a call for an extended attribute, none where there is no such attribute or none at all.
pub(super) fn optional<T>(answer: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match answer {
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Whose something is and what others may do with it.
pub(super) fn permissions(attributes: &Attributes) -> Permissions {
    Permissions::new(attributes.uid, attributes.gid, attributes.mode)
}

/// Gives what was just `made` above, where no directory hands a list down to it, the attributes of what is below: its mode
/// when all that restricts it is there, its times last.
///
/// # Errors
/// Those of the layers. An access control list that the upper layer does not take is one: without it, others than before
/// could use the file.
pub(super) fn copy_attributes(
    (lower, node): (&dyn FileSystem, NodeId),
    (upper, made): (&dyn FileSystem, &Entry),
    attributes: &Attributes,
) -> Result<(), Errno> {
    let mut owner = (made.attributes.uid, made.attributes.gid);
    if owner.1 != attributes.gid {
        // A user may give files to those groups that he is in.
        let group = SetAttributes { gid: Some(attributes.gid), ..SetAttributes::default() };
        owner.1 = upper.set_attributes(&ME, made.node, None, &group).map_or(owner.1, |set| set.gid);
    }
    let names = optional(lower.list_xattrs(&ME, node))?.unwrap_or_default();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !is_own(name)) {
        let value = lower.get_xattr(&ME, node, name)?;
        match upper.set_xattr(&ME, made.node, name, &value, 0, false) {
            // What else may not be kept there, a user's overlay does without.
            Err(Errno::OPNOTSUPP | Errno::PERM) if name != ACCESS_ACL && name != DEFAULT_ACL => {}
            result => result?,
        }
    }
    let is_link = attributes.mode & libc::S_IFMT == libc::S_IFLNK;
    let set = SetAttributes {
        mode: (!is_link).then(|| mode_for(attributes, owner)),
        atime: Some(SetTime::To(attributes.atime)),
        mtime: Some(SetTime::To(attributes.mtime)),
        ..SetAttributes::default()
    };
    upper.set_attributes(&ME, made.node, None, &set).map(drop)
}

/// The permissions of a file that belongs to `owner` now: where that is somebody else than before, he gives nobody his rights
/// by it, and his group can do no more than everybody.
fn mode_for(attributes: &Attributes, (uid, gid): (u32, u32)) -> u32 {
    let mut mode = attributes.mode & 0o7777;
    let is_directory = attributes.mode & libc::S_IFMT == libc::S_IFDIR;
    if uid != attributes.uid && !is_directory {
        mode &= !libc::S_ISUID;
    }
    if gid != attributes.gid {
        mode &= !libc::S_ISGID;
        mode &= !libc::S_IRWXG | (mode & libc::S_IRWXO) << 3;
    }
    mode
}

impl Overlay {
    /// Whether what the caller may do was decided by permissions that may have been others since. Root may do everything.
    pub(super) fn may_be_misled(&self, context: &Context<'_>) -> bool {
        !context.is_root() && self.changes_below
    }

    /// A client is told of an entry.
    pub(super) fn told_entry(&self, entry: &Entry) {
        self.told_permissions(entry.node, &entry.attributes);
    }

    /// A client is told of a node's permissions.
    pub(super) fn told_permissions(&self, node: NodeId, attributes: &Attributes) {
        if self.changes_below {
            hold(&self.table).tell_permissions(node, permissions(attributes));
        }
    }

    /// `ESTALE` if a node has other permissions than those that the caller's kernel has decided by, which then looks again.
    /// What lies above only the overlay changes, which tells of it.
    pub(super) fn require_told(&self, context: &Context<'_>, node: NodeId) -> Result<(), Errno> {
        self.require_granted(context, node, |told, now| told == now)
    }

    /// The same where what was told may grant what is asked for although it is no longer all so.
    pub(super) fn require_granted(
        &self,
        context: &Context<'_>,
        node: NodeId,
        still_grant: impl FnOnce(Permissions, Permissions) -> bool,
    ) -> Result<(), Errno> {
        if !self.may_be_misled(context) {
            return Ok(());
        }
        let layers = self.layers(node)?;
        let told = hold(&self.table).told_permissions(node)?.ok_or(Errno::STALE)?;
        let (None, Some(lower)) = (layers.upper, layers.lower) else { return Ok(()) };
        let now = permissions(&self.lower.attributes(&ME, lower, None)?);
        if still_grant(told, now) { Ok(()) } else { Err(Errno::STALE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_owner_gives_no_rights_away() {
        let file = |mode| Attributes { mode: libc::S_IFREG | mode, uid: 1, gid: 2, ..Attributes::default() };
        for (mode, owner, expected) in [
            (0o6755, (1, 2), 0o6755),
            (0o6755, (9, 2), 0o2755),
            (0o6755, (1, 9), 0o4755),
            (0o660, (9, 9), 0o600),
            (0o664, (1, 9), 0o644),
            (0o607, (1, 9), 0o607),
        ] {
            assert_eq!(mode_for(&file(mode), owner), expected, "{mode:o} {owner:?}");
        }
    }
}
