//! An adapter for one of several clients of a file system.
//!
//! The file system below counts look-ups and open files, but not whose they are. This adapter counts those of its
//! client. When the client ends, exactly these are dropped, and the client can never drop more than it has. It cannot
//! use other clients' nodes (`ESTALE`) or handles (`EBADF`) by their numbers either. It remembers the permissions that its client saw last (see
//! [`rights`]).
//!
//! It uses memory for each node that the client knows and each file it has open, as the file system below does.

mod rights;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry as Occupancy;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::passing::PassingOn;
use crate::slots::{ClientSlots, Slot, Slots};
use crate::told::Told;
use crate::xattr_names::OF_USERS;
use rights::Place;

use crate::{
    Attributes, Changes, Context, DirectorySink, Entry, FileSystem, HandleId, LockOwner, NewNode, NodeId, OpenHandle,
    SetAttributes, Statistics, WriteKind, not_supported,
};

/// See the module.
pub struct OneClient {
    below: Arc<dyn FileSystem>,
    held: RwLock<Held>,
    slots: Option<Arc<ClientSlots>>,
    /// Whether others change the tree.
    is_shared: bool,
}

/// The look-ups and open files of the client.
#[derive(Debug)]
struct Held {
    /// The root is always among them.
    nodes: HashMap<NodeId, Known>,
    /// What the client learned last of directories, and of names in sticky directories.
    places: HashMap<OwnedPlace, NodeId>,
    files: HashMap<(NodeId, HandleId), Option<Slot>>,
    directories: HashMap<(NodeId, HandleId), Option<Slot>>,
}

/// A node that the client knows.
#[derive(Debug, Default)]
struct Known {
    lookups: u64,
    told: Told,
    /// Those of [`Held::places`] that lead to it.
    places: HashSet<OwnedPlace>,
}

/// The most names of a node that are remembered.
const MOST_NAMES: usize = 64;

/// A directory, and a name in it.
type OwnedPlace = (NodeId, Box<[u8]>);

impl Known {
    /// Whether it is a directory from which only owners remove names.
    fn is_sticky(&self) -> bool {
        self.told.permissions().is_some_and(|permissions| permissions.mode & libc::S_ISVTX != 0)
    }
}

impl Held {
    /// For a new client, which knows the root only.
    fn new(root: Option<&Attributes>) -> Held {
        let mut known = Known::default();
        if let Some(root) = root {
            known.told.tell(root.into());
        }
        Held {
            nodes: HashMap::from([(NodeId::ROOT, known)]),
            places: HashMap::new(),
            files: HashMap::new(),
            directories: HashMap::new(),
        }
    }

    /// Counts a look-up that the client gets, of what is at a place.
    fn learn(&mut self, place: Option<Place<'_>>, entry: &Entry) {
        let is_directory = entry.attributes.mode & libc::S_IFMT == libc::S_IFDIR;
        let has_say = |parent: &NodeId| is_directory || self.nodes.get(parent).is_some_and(Known::is_sticky);
        let place = place.filter(|(parent, _)| has_say(parent));
        let known = self.nodes.entry(entry.node).or_default();
        known.lookups += 1;
        known.told.tell((&entry.attributes).into());
        let Some((parent, name)) = place else { return };
        let place: OwnedPlace = (parent, name.into());
        // Renames leave old names here until the client forgets the node. One that is dropped is looked up again.
        let all = if known.places.len() < MOST_NAMES { HashSet::new() } else { std::mem::take(&mut known.places) };
        known.places.insert(place.clone());
        for old in all {
            self.places.remove(&old);
        }
        let before = self.places.insert(place.clone(), entry.node).filter(|before| *before != entry.node);
        if let Some(other) = before.and_then(|before| self.nodes.get_mut(&before)) {
            other.places.remove(&place);
        }
    }

    /// Drops look-ups, and returns how many there were.
    fn forget(&mut self, node: NodeId, lookups: u64) -> u64 {
        let Occupancy::Occupied(mut there) = self.nodes.entry(node) else { return 0 };
        let given = lookups.min(there.get().lookups);
        there.get_mut().lookups -= given;
        if there.get().lookups == 0 && node != NodeId::ROOT {
            for place in there.remove().places {
                self.places.remove(&place);
            }
        }
        given
    }
}

fn root_of(below: &dyn FileSystem) -> Option<Attributes> {
    below.peek_attributes(&Context::SERVER, NodeId::ROOT, None).ok()
}

impl OneClient {
    /// An adapter for a new client.
    pub fn of(below: Arc<dyn FileSystem>) -> OneClient {
        let root = root_of(&*below);
        let is_shared = root.is_none_or(|root| root.valid <= Changes::Host.valid());
        OneClient { below, held: RwLock::new(Held::new(root.as_ref())), slots: None, is_shared }
    }

    /// The same for one of several clients: it may have only as many files open as `all` allows.
    pub fn among(below: Arc<dyn FileSystem>, all: &Arc<Slots>) -> OneClient {
        let mut client = OneClient::of(below);
        client.slots = Some(ClientSlots::new(all));
        client
    }

    /// A slot for a file or directory that is about to be opened.
    fn slot(&self) -> Result<Option<Slot>, Errno> {
        self.slots.as_ref().map(ClientSlots::take).transpose()
    }

    /// Locked for bookkeeping only, never during a call of the file system below.
    fn held(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file system below, if the client knows `node`.
    fn of_node(&self, node: NodeId) -> Result<&dyn FileSystem, Errno> {
        self.of_nodes([node])
    }

    fn of_nodes<const N: usize>(&self, nodes: [NodeId; N]) -> Result<&dyn FileSystem, Errno> {
        let held = self.has();
        if nodes.iter().all(|node| held.nodes.contains_key(node)) { Ok(&*self.below) } else { Err(Errno::STALE) }
    }

    /// The same for a request with a handle, or with the default handle where none is needed.
    fn of_open(&self, node: NodeId, handle: HandleId) -> Result<&dyn FileSystem, Errno> {
        if handle == HandleId::default() {
            return self.of_node(node);
        }
        let held = self.has();
        let has = held.files.contains_key(&(node, handle)) || held.directories.contains_key(&(node, handle));
        if has { Ok(&*self.below) } else { Err(Errno::BADF) }
    }

    /// The same where the handle is optional.
    fn with_handle(
        &self,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<(&dyn FileSystem, Option<HandleId>), Errno> {
        match handle.map(|handle| self.of_open(node, handle)) {
            Some(Ok(below)) => Ok((below, handle)),
            Some(Err(_)) | None => Ok((self.of_node(node)?, None)),
        }
    }

    /// Counts a look-up that the client gets, of what is at a place.
    fn learned(&self, place: Option<Place<'_>>, entry: Entry) -> Entry {
        self.held().learn(place, &entry);
        entry
    }

    /// Records an open file, unless files need no open.
    fn opened(&self, node: NodeId, opened: OpenHandle, slot: Option<Slot>) -> OpenHandle {
        if opened.handle != HandleId::default() {
            self.held().files.insert((node, opened.handle), slot);
        }
        opened
    }

    fn created(
        &self,
        place: Option<Place<'_>>,
        (entry, opened): (Entry, OpenHandle),
        slot: Option<Slot>,
    ) -> (Entry, OpenHandle) {
        (self.learned(place, entry), self.opened(entry.node, opened, slot))
    }
}

impl Drop for OneClient {
    fn drop(&mut self) {
        self.disconnected();
    }
}

impl FileSystem for OneClient {
    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let below = self.of_node(parent)?;
        let entry = below.lookup(context, parent, name)?;
        // A client needs search permission for what is new to it. For what it already knows, an error would make its
        // kernel drop the name, and any mount on it.
        if self.of_node(entry.node).is_err() {
            self.require_told(context, parent).inspect_err(|_| below.forget(entry.node, 1))?;
        }
        Ok(self.learned(Some((parent, name)), entry))
    }

    fn absence_valid(&self, parent: NodeId) -> Duration {
        self.of_node(parent).map_or(Duration::ZERO, |below| below.absence_valid(parent))
    }

    fn is_contested(&self, node: NodeId) -> bool {
        let is_contested = |known: &Known| known.told.is_contested();
        let is_to_client = self.is_shared && self.has().nodes.get(&node).is_some_and(is_contested);
        is_to_client || self.of_node(node).is_ok_and(|below| below.is_contested(node))
    }

    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        self.of_node(node)?.parent(context, node).map(|entry| self.learned(None, entry))
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let given = self.held().forget(node, lookups);
        self.below.forget(node, given);
    }

    fn disconnected(&self) {
        let none = Held::new(root_of(&*self.below).as_ref());
        let Held { nodes, files, directories, .. } = std::mem::replace(&mut *self.held(), none);
        for ((node, handle), _slot) in files {
            self.below.release(node, handle, None);
        }
        for ((node, handle), _slot) in directories {
            self.below.release_directory(node, handle);
        }
        for (node, known) in nodes {
            self.below.forget(node, known.lookups);
        }
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        let (below, handle) = self.with_handle(node, handle)?;
        let attributes = below.attributes(context, node, handle)?;
        self.told(node, &attributes);
        Ok(attributes)
    }

    fn peek_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<Attributes, Errno> {
        let (below, handle) = self.with_handle(node, handle)?;
        below.peek_attributes(context, node, handle)
    }

    fn set_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
        set: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        let (below, handle) = self.with_handle(node, handle)?;
        self.require_told_to_set(context, node, handle, set)?;
        let attributes = below.set_attributes(context, node, handle, set)?;
        match set.changes_permissions() {
            true => self.told_changed(node, &attributes),
            false => self.told(node, &attributes),
        }
        Ok(attributes)
    }

    fn read_link(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.of_node(node)?.read_link(context, node)
    }

    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        let below = self.of_node(parent)?;
        self.require_told(context, parent)?;
        below.make_node(context, parent, name, new).map(|entry| self.learned(Some((parent, name)), entry))
    }

    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        let below = self.of_node(parent)?;
        self.require_told(context, parent)?;
        below.make_directory(context, parent, name, new).map(|entry| self.learned(Some((parent, name)), entry))
    }

    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        let below = self.of_node(parent)?;
        self.require_told(context, parent)?;
        below.make_symlink(context, parent, name, target).map(|entry| self.learned(Some((parent, name)), entry))
    }

    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let below = self.of_nodes([node, parent])?;
        [node, parent].into_iter().try_for_each(|node| self.require_told(context, node))?;
        below.link(context, node, parent, name).map(|entry| self.learned(Some((parent, name)), entry))
    }

    fn unlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let below = self.of_node(parent)?;
        self.require_told_to_remove(context, (parent, name))?;
        below.unlink(context, parent, name)
    }

    fn remove_directory(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        let below = self.of_node(parent)?;
        self.require_told_to_remove(context, (parent, name))?;
        below.remove_directory(context, parent, name)
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
        let below = self.of_nodes([parent, new_parent])?;
        self.require_told_to_rename(context, (parent, name), (new_parent, new_name))?;
        below.rename(context, parent, name, new_parent, new_name, flags)
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        let (below, slot) = (self.of_node(node)?, self.slot()?);
        self.require_told(context, node)?;
        below.open(context, node, flags).map(|opened| self.opened(node, opened, slot))
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let (below, slot) = (self.of_node(parent)?, self.slot()?);
        self.require_told(context, parent)?;
        let created = below.create(context, parent, name, new, flags)?;
        Ok(self.created(Some((parent, name)), created, slot))
    }

    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, OpenHandle), Errno> {
        let (below, slot) = (self.of_node(parent)?, self.slot()?);
        self.require_told(context, parent)?;
        below.create_unnamed(context, parent, new, flags).map(|created| self.created(None, created, slot))
    }

    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        self.of_open(node, handle)?.read(context, node, handle, offset, out)
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
        self.of_open(node, handle)?.write(context, node, handle, offset, data, kind)
    }

    fn copy_range(
        &self,
        context: &Context<'_>,
        from: (NodeId, HandleId, u64),
        to: (NodeId, HandleId, u64),
        length: u64,
    ) -> Result<u64, Errno> {
        self.of_open(from.0, from.1)?;
        self.of_open(to.0, to.1)?.copy_range(context, from, to, length)
    }

    fn fsync(&self, context: &Context<'_>, node: NodeId, handle: HandleId, data_only: bool) -> Result<(), Errno> {
        self.of_open(node, handle)?.fsync(context, node, handle, data_only)
    }

    fn sync(&self, context: &Context<'_>) -> Result<(), Errno> {
        self.below.sync(context)
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
        self.of_open(node, handle)?.fallocate(context, node, handle, mode, offset, length)
    }

    fn seek(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        whence: u32,
    ) -> Result<u64, Errno> {
        self.of_open(node, handle)?.seek(context, node, handle, offset, whence)
    }

    fn release(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>) {
        // The slot is free when the file is closed.
        let had = self.held().files.remove(&(node, handle));
        if had.is_some() {
            self.below.release(node, handle, owner);
        }
    }

    fn open_directory(&self, context: &Context<'_>, node: NodeId) -> Result<OpenHandle, Errno> {
        let (below, slot) = (self.of_node(node)?, self.slot()?);
        self.require_told(context, node)?;
        let opened = below.open_directory(context, node)?;
        if opened.handle != HandleId::default() {
            self.held().directories.insert((node, opened.handle), slot);
        }
        Ok(opened)
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let mut learning = PassingOn::to(sink, |sink, entry| {
            let taken = sink.push(entry);
            let name = entry.name;
            if taken && let Some(entry) = entry.entry {
                self.learned(Some((node, name)), entry);
            }
            taken
        });
        self.of_open(node, handle)?.read_directory(context, node, handle, offset, &mut learning)
    }

    fn release_directory(&self, node: NodeId, handle: HandleId) {
        let had = self.held().directories.remove(&(node, handle));
        if had.is_some() {
            self.below.release_directory(node, handle);
        }
    }

    fn get_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let below = self.of_node(node)?;
        if name.starts_with(OF_USERS) {
            self.require_told(context, node)?;
        }
        below.get_xattr(context, node, name)
    }

    fn list_xattrs(&self, context: &Context<'_>, node: NodeId) -> Result<Vec<u8>, Errno> {
        self.of_node(node)?.list_xattrs(context, node)
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
        let below = self.of_node(node)?;
        self.require_told(context, node)?;
        below.set_xattr(context, node, name, value, flags, kill_set_group_id)?;
        self.xattr_changed(context, node, name);
        Ok(())
    }

    fn remove_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        let below = self.of_node(node)?;
        self.require_told(context, node)?;
        below.remove_xattr(context, node, name)?;
        self.xattr_changed(context, node, name);
        Ok(())
    }

    fn statistics(&self, context: &Context<'_>, node: NodeId) -> Result<Statistics, Errno> {
        self.of_node(node)?.statistics(context, node)
    }

    fn host_file(&self, node: NodeId, handle: HandleId) -> Option<Arc<OwnedFd>> {
        self.of_open(node, handle).ok()?.host_file(node, handle)
    }

    fn interrupted(&self) {
        self.below.interrupted();
    }

    // Lock owners of two clients may have equal numbers, and the end of a client would have to release its locks, as
    // flush does. With `ENOSYS`, clients keep their locks themselves.
    not_supported! { flush, test_lock, set_lock }
}
