//! An overlay: the lower file system stays unchanged, changes go to an upper layer.
//!
//! The upper layer is a directory `upper` beside a directory `work`, in the format of the kernel's overlayfs (Linux's
//! Documentation/filesystems/overlayfs.rst), so that either can continue what the other began. A removed name is a
//! character device 0:0 (a *whiteout*). A directory that hides the lower one has the extended attribute
//! `trusted.overlay.opaque` (`user.overlay.opaque` if the server is not root).
//!
//! 1. A name is looked up in the upper layer, then in the lower. Directories in both are merged ([`listing`]).
//! 2. What is to be changed is copied up first, whole and in one step ([`copy_up`]). A file that is changed after its
//!    last name was removed is copied up without a name.
//! 3. A removed or renamed name that is also in the lower layer gets a whiteout ([`names`], [`renames`]).
//!
//! Each visible change is one step of the upper layer's file system. If it needs several, they are prepared in the
//! work directory and made visible by rename(2) ([`work`]). So a server killed at any moment leaves the state before
//! or after a change.
//!
//! As in overlayfs, a directory of the lower layer cannot be renamed (`EXDEV`; programs then copy it), and a
//! copied-up file separates from its other hard links.

mod attributes;
mod closed;
mod content;
mod copy_up;
mod copying;
mod files;
mod listing;
mod names;
mod renames;
mod table;
#[cfg(test)]
mod tests;
mod work;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::xattr_names::{OF_USERS, is_acl};
use crate::{
    Attributes, Caching, Changes, Context, DirectorySink, Entry, FileSystem, HandleId, LockOwner, NewNode, NodeId,
    OpenHandle, SetAttributes, Statistics, WriteKind, hold, not_supported,
};
use table::{Layers, Table};
use work::Place;

const ME: Context<'static> = Context::SERVER;

/// The prefixes of extended attributes that are overlayfs's own, for root and users, and of those that identify an
/// upper layer's source.
const OWN_XATTRS: [&[u8]; 4] = [b"trusted.overlay.", b"user.overlay.", b"trusted.inarch.", b"user.inarch."];

/// See the module.
pub struct Overlay {
    lower: Arc<dyn FileSystem>,
    upper: Arc<dyn FileSystem>,
    /// Who changes the tree. It limits TTLs, whatever the layers say.
    changes: Changes,
    /// Whether the lower layer may change by itself, to judge by its TTLs.
    changes_below: bool,
    /// Whether files are opened before use.
    opens_files: bool,
    /// Whether clients open directories, so that listings can refresh attributes (see [`crate::accessed`]).
    opens_directories: bool,
    /// Whether the upper layer is temporary.
    is_thrown_away: bool,
    /// The attribute of opaque directories.
    opaque: &'static [u8],
    /// Whether the marks are those of root's overlayfs.
    as_root: bool,
    /// The attribute with the inode number of a copy's original.
    origin: &'static [u8],
    /// The attribute with the owner of a directory's original.
    owner: &'static [u8],
    place: Mutex<Place>,
    temporaries: work::Names,
    steps: closed::Steps,
    /// Never locked during a call of a layer.
    table: Mutex<Table>,
    /// Locked while names change, never while content is copied.
    changing: Mutex<()>,
    copying: copying::Copying,
    open: Mutex<files::OpenFiles>,
    listings: Mutex<listing::Listings>,
}

impl Overlay {
    /// An overlay over `lower`. The upper layer is in the directory `upper` of the file system of the same name,
    /// beside its work directory; both are created if missing. With `as_root`, whiteouts and marks are those of
    /// root's overlayfs.
    ///
    /// # Errors
    /// Those of the layers.
    pub fn new(lower: Arc<dyn FileSystem>, upper: Arc<dyn FileSystem>, as_root: bool) -> Result<Overlay, Errno> {
        let Attributes { inode, valid, .. } = lower.attributes(&ME, NodeId::ROOT, None)?;
        let place = Place::open(&*upper, &*lower)?;
        Ok(Overlay {
            lower,
            upper,
            changes: Changes::None,
            changes_below: valid <= Changes::Host.valid(),
            opens_files: true,
            opens_directories: false,
            is_thrown_away: false,
            opaque: if as_root { b"trusted.overlay.opaque" } else { b"user.overlay.opaque" },
            as_root,
            origin: if as_root { b"trusted.inarch.origin" } else { b"user.inarch.origin" },
            owner: if as_root { b"trusted.inarch.owner" } else { b"user.inarch.owner" },
            place: Mutex::new(place),
            temporaries: work::Names::default(),
            steps: closed::Steps::default(),
            table: Mutex::new(Table::new(inode, place.upper)),
            changing: Mutex::default(),
            copying: copying::Copying::default(),
            open: Mutex::default(),
            listings: Mutex::default(),
        })
    }

    /// Sets who else changes the tree from a client's point of view. With [`Changes::Host`], clients also see each
    /// other's writes, which are in the upper layer, where the layer itself knows of nobody else.
    pub fn changed_by(self, changes: Changes) -> Overlay {
        Overlay { changes, ..self }
    }

    /// Declares the upper layer temporary: nobody needs it after the server ends or the power fails.
    pub fn thrown_away(self) -> Overlay {
        Overlay { is_thrown_away: true, ..self }
    }

    /// For clients that read and write files without opening them, which both layers must permit.
    pub fn without_opening(self) -> Overlay {
        Overlay { opens_files: false, ..self }
    }

    /// For a client that is the only one to change the tree and that [opens
    /// directories](crate::HostOptions::opens_directories).
    pub fn opening_directories(self) -> Overlay {
        Overlay { opens_directories: true, ..self }
    }

    /// Records that a client read or wrote a node.
    fn accessed(&self, node: NodeId) {
        if self.opens_directories {
            hold(&self.table).accessed(node);
        }
    }

    /// Records that a client got a node's attributes.
    fn told(&self, node: NodeId) {
        if self.opens_directories {
            hold(&self.table).told(node);
        }
    }

    fn layers(&self, node: NodeId) -> Result<Layers, Errno> {
        hold(&self.table).layers(node)
    }

    /// Attributes as a client sees them.
    fn shown(&self, layers: &Layers, attributes: Attributes) -> Attributes {
        let merged = layers.is_directory && layers.lower.is_some() && layers.upper.is_some();
        // The subdirectories of a merged directory are not counted: 1 says so, also to find(1).
        let links = if merged { 1 } else { attributes.links };
        Attributes { inode: layers.inode, links, valid: attributes.valid.min(self.changes.valid()), ..attributes }
    }

    fn get_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        ask: Ask,
    ) -> Result<Attributes, Errno> {
        let layers = self.layers(node)?;
        let above = handle.and_then(|handle| self.above(node, handle).ok());
        let attributes = match (layers.upper, layers.lower) {
            (Some(upper), _) if layers.is_directory => {
                self.outside_of_steps(|| ask(&*self.upper, context, upper, None))?
            }
            (Some(upper), _) => ask(&*self.upper, context, upper, above.map(|(_, handle)| handle))?,
            (None, Some(lower)) => {
                let attributes = ask(&*self.lower, context, lower, None)?;
                // In the lower layer a removed name still exists.
                let gone = !layers.is_directory && hold(&self.table).place(node).is_err();
                Attributes { links: attributes.links.saturating_sub(gone.into()), ..attributes }
            }
            (None, None) => return Err(Errno::STALE),
        };
        Ok(self.shown(&layers, attributes))
    }

    fn read_from<T>(
        &self,
        node: NodeId,
        read: impl FnOnce(&dyn FileSystem, NodeId) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let layers = self.layers(node)?;
        match (layers.upper, layers.lower) {
            (Some(upper), _) => read(&*self.upper, upper),
            (None, Some(lower)) => read(&*self.lower, lower),
            (None, None) => Err(Errno::STALE),
        }
    }

    fn give_back(&self, layers: Vec<Layers>) {
        for layers in layers {
            if let Some(lower) = layers.lower {
                self.lower.forget(lower, 1);
            }
            if let Some(upper) = layers.upper {
                self.give_back_above(upper, layers.nameless);
            }
        }
    }

    fn give_back_above(&self, upper: NodeId, open: Option<HandleId>) {
        if let Some(handle) = open {
            self.upper.release(upper, handle, None);
        }
        self.upper.forget(upper, 1);
    }
}

/// A method to ask a layer for attributes.
type Ask = fn(&(dyn FileSystem + 'static), &Context<'_>, NodeId, Option<HandleId>) -> Result<Attributes, Errno>;

/// Whether an extended attribute is the overlay's own, which clients do not see.
fn is_own(name: &[u8]) -> bool {
    OWN_XATTRS.iter().any(|own| name.starts_with(own))
}

/// Whether this is a whiteout, which stands for a removed name.
fn is_whiteout(attributes: &Attributes) -> bool {
    attributes.mode & libc::S_IFMT == libc::S_IFCHR && attributes.device == 0
}

impl FileSystem for Overlay {
    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let known = if self.may_be_misled(context) { hold(&self.table).known_at(parent, name) } else { None };
        let entry = self.look_up(context, parent, name)?;
        // A client needs search permission for names that are new to it. For a name it already knows, an error would
        // make its kernel drop the name, and any mount on it.
        if known != Some(entry.node) {
            self.require_told(context, parent).inspect_err(|_| self.forget(entry.node, 1))?;
        }
        self.told_entry(&entry);
        Ok(entry)
    }

    fn absence_valid(&self, parent: NodeId) -> Duration {
        let Ok(layers) = self.layers(parent) else { return Duration::ZERO };
        let lower = layers.lower.map_or(Duration::MAX, |lower| self.lower.absence_valid(lower));
        let upper = layers.upper.map_or(Duration::MAX, |upper| self.upper.absence_valid(upper));
        lower.min(upper).min(self.changes.valid())
    }

    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        let parent = hold(&self.table).parent(node)?;
        let attributes = self.get_attributes(context, parent, None, <dyn FileSystem>::attributes)?;
        hold(&self.table).count_lookup(parent)?;
        self.told_permissions(parent, &attributes);
        Ok(Entry { node: parent, generation: 0, attributes, valid: attributes.valid })
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let gone = hold(&self.table).forget(node, lookups);
        if !gone.is_empty() {
            self.give_back_halfway(self.copying.take(|node| self.layers(node).is_err()));
        }
        self.give_back(gone);
    }

    fn disconnected(&self) {
        *hold(&self.open) = files::OpenFiles::default();
        *hold(&self.listings) = listing::Listings::default();
        hold(&self.table).clear();
        self.copying.take(|_| true);
        self.lower.disconnected();
        self.upper.disconnected();
        // If the upper layer cannot be found again, the next client's requests fail.
        if let Ok(place) = Place::found_again(&*self.upper) {
            *hold(&self.place) = place;
            hold(&self.table).set_root(place.upper);
        }
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        let attributes = self.get_attributes(context, node, handle, <dyn FileSystem>::attributes)?;
        self.told(node);
        self.told_permissions(node, &attributes);
        Ok(attributes)
    }

    fn peek_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<Attributes, Errno> {
        self.get_attributes(context, node, handle, <dyn FileSystem>::peek_attributes)
    }

    fn is_contested(&self, node: NodeId) -> bool {
        hold(&self.table).is_contested(node)
    }

    fn set_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        let is_open = handle.is_some_and(|handle| self.above(node, handle).is_ok());
        if set.changes_permissions() || !is_open {
            self.require_granted(context, node, |told, now| told.still_grant(now, set))?;
        }
        let mut change = |upper| self.upper.set_attributes(context, upper, None, set).map(drop);
        // Truncated bytes need no copy.
        let length = set.size.unwrap_or(u64::MAX);
        let (upper, is_changed) = self.bring_up_changed(context, node, length, &mut change)?;
        let attributes = if is_changed {
            // It had no name yet when it was changed.
            self.upper.attributes(context, upper, None)?
        } else {
            let handle = handle.and_then(|handle| self.above(node, handle).ok()).map(|(_, handle)| handle);
            // Not while a copy into a directory has changed its times and not yet restored them.
            let _changing = self.layers(node)?.is_directory.then(|| hold(&self.changing));
            self.upper.set_attributes(context, upper, handle, set)?
        };
        self.told(node);
        match set.changes_permissions() {
            true => self.told_changed_permissions(node, &attributes),
            false => self.told_permissions(node, &attributes),
        }
        Ok(self.shown(&self.layers(node)?, attributes))
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        let target = self.read_from(node, |layer, node| layer.read_link(context, node))?;
        self.accessed(node);
        Ok(target)
    }

    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        // It would be a whiteout.
        if new.mode & libc::S_IFMT == libc::S_IFCHR && new.device == 0 {
            return Err(Errno::PERM);
        }
        self.make_unopened(context, parent, name, |upper, name| self.upper.make_node(context, upper, name, new))
    }

    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        self.make_unopened(context, parent, name, |upper, name| self.upper.make_directory(context, upper, name, new))
    }

    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        self.make_unopened(context, parent, name, |upper, name| self.upper.make_symlink(context, upper, name, target))
    }

    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.require_told_of_names(context, [(parent, Some(node))])?;
        let source = self.bring_up(context, node)?;
        self.make_unopened(context, parent, name, |upper, name| self.upper.link(context, source, upper, name))
    }

    fn unlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.remove(context, parent, name, false)
    }

    fn remove_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.remove(context, parent, name, true)
    }

    fn rename(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.move_name(context, (parent, name), (new_parent, new_name), flags)
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        if self.opens_files { self.open_file(context, node, flags) } else { Err(Errno::NOSYS) }
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        self.create_file(context, parent, name, new, flags)
    }

    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        self.create_nameless_file(context, parent, new, flags)
    }

    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        let (layer, file, handle) = self.readable(context, node, handle)?;
        let length = layer.read(context, file, handle, offset, out)?;
        self.accessed(node);
        Ok(length)
    }

    fn write(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        data: &[VolatileSlice<'_>],
        kind: WriteKind,
    ) -> Result<usize, Errno> {
        let (file, handle) = self.writable(context, node, handle)?;
        let length = self.upper.write(context, file, handle, offset, data, kind)?;
        self.accessed(node);
        Ok(length)
    }

    fn copy_range(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        // Across layers the client copies by itself.
        let source = self.above(from.0, from.1).map_err(|_| Errno::XDEV)?;
        let target = self.writable(context, to.0, to.1)?;
        self.upper.copy_range(context, (source.0, source.1, from.2), (target.0, target.1, to.2), length)
    }

    fn fsync(&self, context: &Context<'_>, node: NodeId, handle: HandleId, data_only: bool) -> Result<(), Errno> {
        let layers = self.layers(node)?;
        match layers.upper {
            // Nothing was written.
            None => Ok(()),
            Some(upper) if layers.is_directory => self.upper.fsync(context, upper, HandleId::default(), data_only),
            // Also through a handle opened before the copy-up.
            Some(_) => {
                let (layer, file, handle) = self.readable(context, node, handle)?;
                layer.fsync(context, file, handle, data_only)
            }
        }
    }

    fn sync(&self, context: &Context<'_>) -> Result<(), Errno> {
        self.upper.sync(context)
    }

    fn fallocate(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        mode: u32,
        offset: u64,
        length: u64,
    ) -> Result<(), Errno> {
        let (file, handle) = self.writable(context, node, handle)?;
        self.upper.fallocate(context, file, handle, mode, offset, length)
    }

    fn seek(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        let (layer, file, handle) = self.readable(context, node, handle)?;
        layer.seek(context, file, handle, offset, whence)
    }

    fn release(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>) {
        self.close_file(node, handle, owner);
    }

    fn open_directory(&self, context: &Context<'_>, node: NodeId) -> Result<OpenHandle, Errno> {
        if !self.layers(node)?.is_directory {
            return Err(Errno::NOTDIR);
        }
        if self.changes_below {
            // Otherwise a kernel would not ask again, and show everybody its cached names.
            self.require_told(context, node)?;
            return Ok(OpenHandle::default());
        }
        let opened = if self.opens_directories { hold(&self.table).opened(node) } else { None };
        let caching = if opened.ok_or(Errno::NOSYS)? { Caching::Fresh } else { Caching::Keep };
        Ok(OpenHandle { handle: HandleId::default(), caching, parallel_direct_writes: false })
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        _: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        self.list(context, node, offset, sink)
    }

    fn get_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if is_own(name) {
            return Err(Errno::NODATA);
        }
        if name.starts_with(OF_USERS) {
            self.require_told(context, node)?;
        }
        self.read_from(node, |layer, node| layer.get_xattr(context, node, name))
    }

    fn list_xattrs(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        let names = self.read_from(node, |layer, node| layer.list_xattrs(context, node))?;
        let others = names.split_inclusive(|byte| *byte == 0).filter(|name| !is_own(name));
        Ok(others.flatten().copied().collect())
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
        if is_own(name) {
            return Err(Errno::PERM);
        }
        self.require_told(context, node)?;
        let upper = self.bring_up(context, node)?;
        self.upper.set_xattr(context, upper, name, value, flags, kill_set_group_id)?;
        self.xattr_changed(node, name);
        Ok(())
    }

    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.require_told(context, node)?;
        // A missing attribute is no reason for a copy-up.
        match self.get_xattr(context, node, name) {
            // On Linux, removing an ACL that is not there succeeds (`vfs_remove_acl` in fs/posix_acl.c).
            Err(Errno::NODATA) if is_acl(name) => return Ok(()),
            found => drop(found?),
        }
        let upper = self.bring_up(context, node)?;
        self.upper.remove_xattr(context, upper, name)?;
        self.xattr_changed(node, name);
        Ok(())
    }

    fn statistics(&self, context: &Context<'_>, _: NodeId) -> Result<Statistics, Errno> {
        self.upper.statistics(context, NodeId::ROOT)
    }

    fn host_file(&self, node: NodeId, handle: HandleId) -> Option<Arc<std::os::fd::OwnedFd>> {
        // Never the lower layer's: a later open for writing would write to it.
        let (file, handle) = self.above(node, handle).ok()?;
        self.upper.host_file(file, handle)
    }

    // A file's locks would stay in the lower layer after a copy-up, so clients keep their locks themselves. An open
    // directory has nothing to close.
    not_supported! { flush, test_lock, set_lock, release_directory }

    fn interrupted(&self) {
        self.copying.interrupted();
        self.lower.interrupted();
        self.upper.interrupted();
    }
}
