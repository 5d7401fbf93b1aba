//! Attributes of copied files. A copy never grants more than its original.

use rustix::io::Errno;

use super::{ME, Overlay, hold, is_own};
use crate::host::Permissions;
use crate::xattr_names::{ACCESS_ACL, is_acl};
use crate::{Attributes, Context, Entry, FileSystem, NodeId, SetAttributes, SetTime};

/// An extended attribute, or `None` if it is absent or not supported.
pub(super) fn optional<T>(answer: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match answer {
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Gives a new copy the attributes of its original: the mode once everything that restricts it is set, the times
/// last. No directory may pass a default ACL to it.
///
/// # Errors
/// Those of the layers. An ACL that the upper layer does not accept is an error: without it more users could access
/// the file.
pub(super) fn copy_attributes(
    (lower, node): (&dyn FileSystem, NodeId),
    (upper, made): (&dyn FileSystem, &Entry),
    attributes: &Attributes,
) -> Result<(), Errno> {
    let mut owner = (made.attributes.uid, made.attributes.gid);
    if owner.1 != attributes.gid {
        // A user may give files to groups that the user is in.
        let group = SetAttributes { gid: Some(attributes.gid), ..SetAttributes::default() };
        owner.1 = upper.set_attributes(&ME, made.node, None, &group).map_or(owner.1, |set| set.gid);
    }
    let names = optional(lower.list_xattrs(&ME, node))?.unwrap_or_default();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !is_own(name)) {
        let value = lower.get_xattr(&ME, node, name)?;
        match upper.set_xattr(&ME, made.node, name, &value, 0, false) {
            // An ordinary user's overlay does without other attributes that it may not set.
            Err(Errno::OPNOTSUPP | Errno::PERM) if !is_acl(name) => {}
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

/// The mode of a copy that belongs to `owner`. If that is not the original's owner, the copy has no set-user-ID bit,
/// and the group gets no more than others.
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
    /// Whether the client's kernel may have decided by outdated permissions. Root may do everything.
    pub(super) fn may_be_misled(&self, context: &Context<'_>) -> bool {
        !context.is_root() && self.changes_below
    }

    /// Records an entry that a client gets.
    pub(super) fn told_entry(&self, entry: &Entry) {
        self.told_permissions(entry.node, &entry.attributes);
    }

    /// Records a node's permissions that a client gets.
    pub(super) fn told_permissions(&self, node: NodeId, attributes: &Attributes) {
        if self.changes_below {
            hold(&self.table).tell_permissions(node, attributes.into());
        }
    }

    /// Records a node's permissions that a client has changed, and gets.
    pub(super) fn told_changed_permissions(&self, node: NodeId, attributes: &Attributes) {
        if self.changes_below {
            hold(&self.table).tell_changed_permissions(node, attributes.into());
        }
    }

    /// Records that a client has changed an extended attribute.
    pub(super) fn xattr_changed(&self, node: NodeId, name: &[u8]) {
        if name == ACCESS_ACL {
            hold(&self.table).list_changed(node);
        }
    }

    /// Returns `ESTALE` if a node's permissions differ from those that the caller's kernel decided by, so that it
    /// looks again. Nodes of the upper layer change only through the overlay, which reports that.
    pub(super) fn require_told(&self, context: &Context<'_>, node: NodeId) -> Result<(), Errno> {
        self.require_granted(context, node, |told, now| told == now)
    }

    /// The same, but accepts changed permissions that still grant the request.
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
        let now = Permissions::from(&self.lower.attributes(&ME, lower, None)?);
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
