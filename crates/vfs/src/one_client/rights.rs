//! Compares the permissions that a client saw last with those of now, which another client may have changed.
//!
//! The file system below counts a change as told as soon as one of its clients has asked for it. The kernels of the others may still decide by what
//! they know. As everywhere, the answer is `ESTALE`, after which a kernel looks again.

#[cfg(test)]
mod tests;

use rustix::io::Errno;

use super::{Known, OneClient};
use crate::host::Permissions;
use crate::xattr_names::ACCESS_ACL;
use crate::{Attributes, Context, Entry, HandleId, NodeId, SetAttributes};

/// A directory, and a name in it.
pub(super) type Place<'a> = (NodeId, &'a [u8]);

impl OneClient {
    /// Records the attributes that the client gets.
    pub(super) fn told(&self, node: NodeId, attributes: &Attributes) {
        if let Some(known) = self.held().nodes.get_mut(&node) {
            known.told.tell(attributes.into());
        }
    }

    /// Records what a change by the client itself has made of a node's permissions.
    pub(super) fn told_changed(&self, node: NodeId, attributes: &Attributes) {
        if let Some(known) = self.held().nodes.get_mut(&node) {
            known.told.tell_changed(attributes.into());
        }
    }

    /// Records what a change of an extended attribute has made of a node's permissions: an ACL changes them, too.
    pub(super) fn xattr_changed(&self, context: &Context<'_>, node: NodeId, name: &[u8]) {
        if name == ACCESS_ACL
            && let Ok(attributes) = self.below.peek_attributes(context, node, None)
        {
            self.told_changed(node, &attributes);
        }
    }

    /// Returns `ESTALE` if a node's permissions differ from those that the caller's kernel decided by.
    pub(super) fn require_told(&self, context: &Context<'_>, node: NodeId) -> Result<(), Errno> {
        self.require_granted(context, node, None, |told, now| told == now)
    }

    /// The same for a change of attributes, if the client needs permission for it.
    pub(super) fn require_told_to_set(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<(), Errno> {
        if handle.is_some() && !set.changes_permissions() {
            return Ok(());
        }
        self.require_granted(context, node, handle, |told, now| told.still_grant(now, set))
    }

    /// Whether the caller's kernel may have decided by what another client has changed since. Root may do everything.
    fn may_be_misled(&self, context: &Context<'_>) -> bool {
        !context.is_root() && self.is_shared
    }

    fn require_granted(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        still_grant: impl FnOnce(Permissions, Permissions) -> bool,
    ) -> Result<(), Errno> {
        if !self.may_be_misled(context) {
            return Ok(());
        }
        let told = self.told_permissions(node).ok_or(Errno::STALE)?;
        let now = self.below.peek_attributes(context, node, handle)?;
        if still_grant(told, (&now).into()) { Ok(()) } else { Err(Errno::STALE) }
    }

    fn told_permissions(&self, node: NodeId) -> Option<Permissions> {
        self.has().nodes.get(&node)?.told.permissions()
    }

    /// The same for the removal of a name. In a sticky directory what has the name has a say, too: it must be what the
    /// client learned of there.
    pub(super) fn require_told_to_remove(&self, context: &Context<'_>, (parent, name): Place<'_>) -> Result<(), Errno> {
        self.require_told(context, parent)?;
        let is_sticky = || self.has().nodes.get(&parent).is_some_and(Known::is_sticky);
        if !self.may_be_misled(context) || !is_sticky() {
            return Ok(());
        }
        self.require_learned((parent, name), self.require_told_of_name(context, (parent, name))?)
    }

    /// The same for a rename. A directory that gets another parent has a say, too.
    pub(super) fn require_told_to_rename(
        &self,
        context: &Context<'_>,
        from: Place<'_>,
        to: Place<'_>,
    ) -> Result<(), Errno> {
        self.require_told_to_remove(context, from)?;
        self.require_told_to_remove(context, to)?;
        if !self.may_be_misled(context) || from.0 == to.0 {
            return Ok(());
        }
        let is_directory = |entry: &Entry| entry.attributes.mode & libc::S_IFMT == libc::S_IFDIR;
        [from, to].into_iter().try_for_each(|place| {
            let entry = self.require_told_of_name(context, place)?;
            self.require_learned(place, entry.filter(is_directory))
        })
    }

    /// Returns `ESTALE` unless the client has learned that `entry` is at the place, if anything is.
    fn require_learned(&self, (parent, name): Place<'_>, entry: Option<Entry>) -> Result<(), Errno> {
        let Some(entry) = entry else { return Ok(()) };
        let learned = self.has().places.get(&(parent, name.into())).copied();
        if learned == Some(entry.node) { Ok(()) } else { Err(Errno::STALE) }
    }

    /// What has a name; `None` if nothing has. `ESTALE` unless the client knows it with its permissions.
    fn require_told_of_name(&self, context: &Context<'_>, (parent, name): Place<'_>) -> Result<Option<Entry>, Errno> {
        let entry = match self.below.lookup(context, parent, name) {
            Err(Errno::NOENT) => return Ok(None),
            found => found?,
        };
        self.below.forget(entry.node, 1);
        let is_told = self.told_permissions(entry.node) == Some((&entry.attributes).into());
        if is_told { Ok(Some(entry)) } else { Err(Errno::STALE) }
    }
}
