//! An adapter that shows other owners than the file system below has.
//!
//! IDs in answers are mapped to what clients see: in attributes, and in named users and groups of ACLs. IDs in requests
//! are mapped back: of callers, of changes of owner, and in ACLs. An ID to which nothing maps is refused with
//! `EOVERFLOW`, as in Linux's idmapped mounts. Only if all owners are shown as one (`squash`, `UID:GID`) may anybody
//! create files, which then belong to that one.

mod ids;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;

use inarch_tree::select::Owners;
use rustix::io::Errno;

use crate::passing::PassingOn;
use crate::{
    Attributes, Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, NewNode, NodeId, OpenHandle,
    SetAttributes, passes_on,
};
use ids::Ids;

/// See the module.
pub struct MappedOwners {
    below: Arc<dyn FileSystem>,
    owners: Owners,
    users: Ids,
    groups: Ids,
}

impl MappedOwners {
    /// Shows the owners of `below` as `owners` says. Where many owners become one, what clients create belongs to the
    /// user and group `maker` below. Returns `below` itself if the map changes nothing.
    pub fn over(below: Arc<dyn FileSystem>, owners: &Owners, maker: (u32, u32)) -> Arc<dyn FileSystem> {
        let users = Ids::of_users(owners.map, &owners.users, maker.0);
        let groups = Ids::of_groups(owners.map, &owners.groups, maker.1);
        if users.is_identity() && groups.is_identity() {
            return below;
        }
        Arc::new(MappedOwners { below, owners: owners.clone(), users, groups })
    }

    fn seen(&self, attributes: Attributes) -> Attributes {
        Attributes { uid: self.users.seen(attributes.uid), gid: self.groups.seen(attributes.gid), ..attributes }
    }

    fn seen_entry(&self, entry: Entry) -> Entry {
        Entry { attributes: self.seen(entry.attributes), ..entry }
    }

    /// Maps the named users and groups of a `system.posix_acl_*` value (Linux's include/uapi/linux/posix_acl_xattr.h)
    /// to those below. A malformed value is left for the host to refuse.
    fn list_below(&self, value: &mut [u8]) -> Result<(), Errno> {
        const USER: u16 = 0x02;
        const GROUP: u16 = 0x08;
        let Some((_version, entries)) = value.split_first_chunk_mut::<4>() else { return Ok(()) };
        for [tag0, tag1, _, _, id @ ..] in entries.as_chunks_mut::<8>().0 {
            let ids = match u16::from_le_bytes([*tag0, *tag1]) {
                USER => &self.users,
                GROUP => &self.groups,
                _ => continue,
            };
            *id = ids.below(u32::from_le_bytes(*id)).ok_or(Errno::OVERFLOW)?.to_le_bytes();
        }
        Ok(())
    }

    /// The caller's context below, for a request that creates something.
    fn maker<'c>(&self, context: &Context<'c>) -> Result<Context<'c>, Errno> {
        Ok(Context {
            uid: self.users.maker(context.uid).ok_or(Errno::OVERFLOW)?,
            client_uid: Some(context.client_uid.unwrap_or(context.uid)),
            gid: self.groups.maker(context.gid).ok_or(Errno::OVERFLOW)?,
            supplementary_group: context.supplementary_group.and_then(|group| self.groups.below(group)),
            ..*context
        })
    }
}

/// Whether an extended attribute is an access control list.
fn is_acl(name: &[u8]) -> bool {
    matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}

impl FileSystem for MappedOwners {
    // Methods without owners.
    passes_on! {
        below: absence_valid, is_contested, forget, disconnected, read_link, unlink, remove_directory, rename, open, read, write, copy_range,
        flush, fsync, sync, fallocate, seek, release, open_directory, release_directory, list_xattrs, remove_xattr, test_lock,
        set_lock, statistics, host_file, interrupted
    }

    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        Ok(self.seen_entry(self.below.lookup(context, parent, name)?))
    }

    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        Ok(self.seen_entry(self.below.parent(context, node)?))
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        Ok(self.seen(self.below.attributes(context, node, handle)?))
    }

    fn peek_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<Attributes, Errno> {
        Ok(self.seen(self.below.peek_attributes(context, node, handle)?))
    }

    fn set_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        let below = |ids: &Ids, id: Option<u32>| id.map(|id| ids.below(id).ok_or(Errno::OVERFLOW)).transpose();
        let mut set = SetAttributes { uid: below(&self.users, set.uid)?, gid: below(&self.groups, set.gid)?, ..*set };
        if set.uid.is_some() || set.gid.is_some() {
            // If the file's owner is already shown as the new one, it stays: several owners may be shown as one. The client is not told of
            // the owner here: what it remembers is still to be compared.
            let now = self.below.peek_attributes(context, node, handle)?;
            set.uid = set.uid.map(|uid| if self.users.seen(now.uid) == self.users.seen(uid) { now.uid } else { uid });
            set.gid = set.gid.map(|gid| if self.groups.seen(now.gid) == self.groups.seen(gid) { now.gid } else { gid });
        }
        Ok(self.seen(self.below.set_attributes(context, node, handle, &set)?))
    }

    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        Ok(self.seen_entry(self.below.make_node(&self.maker(context)?, parent, name, new)?))
    }

    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        Ok(self.seen_entry(self.below.make_directory(&self.maker(context)?, parent, name, new)?))
    }

    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        Ok(self.seen_entry(self.below.make_symlink(&self.maker(context)?, parent, name, target)?))
    }

    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        Ok(self.seen_entry(self.below.link(context, node, parent, name)?))
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let (entry, opened) = self.below.create(&self.maker(context)?, parent, name, new, flags)?;
        Ok((self.seen_entry(entry), opened))
    }

    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let (entry, opened) = self.below.create_unnamed(&self.maker(context)?, parent, new, flags)?;
        Ok((self.seen_entry(entry), opened))
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let mut seen = PassingOn::to(sink, |sink, entry| {
            let told = entry.entry.map(|entry| self.seen_entry(entry));
            sink.push(&DirectoryEntry { entry: told, ..*entry })
        });
        self.below.read_directory(context, node, handle, offset, &mut seen)
    }

    fn get_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut value = self.below.get_xattr(context, node, name)?;
        if is_acl(name) {
            self.owners.acl(&mut value);
        }
        Ok(value)
    }

    fn set_xattr(
        &self,
        context: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_set_group_id: bool,
    ) -> Result<(), Errno> {
        let mut value = Cow::from(value);
        if is_acl(name) {
            self.list_below(value.to_mut())?;
        }
        self.below.set_xattr(context, node, name, &value, flags, kill_set_group_id)
    }
}
