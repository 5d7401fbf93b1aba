//! The table of the nodes that a client knows, and their places.
//!
//! Pure bookkeeping, without system calls. A node is identified by what distinguishes a file of the host from all
//! others ([`Identity`]). It has *places*: a directory's node and a name, one for each hard link that was looked up.
//! A node stays as long as a client has look-ups of it, or another node's place lies in it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use super::descriptor_cache::{DescriptorCache, Evicted};
use super::handle::FileHandle;
use crate::accessed::{Accessed, Credit};
use crate::slab::Slab;
use crate::slab_index::SlabIndex;
use crate::{Attributes, NodeId, SetAttributes, SetTime};

/// The root's index.
const ROOT: u32 = 0;

/// No place, no slot.
const NONE: u32 = u32::MAX;

/// Nesting deeper than this is a loop.
const MAX_DEPTH: usize = 1 << 16;

/// Distinguishes a file of the host from all others, including earlier ones with the same inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its file system's device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Creation time in nanoseconds since 1970; 0 if the file system has none.
    pub birth: i64,
    /// Its type, in the bits of a mode.
    pub kind: u32,
    /// The mount that a directory was found on: a bind mount shows a directory twice, with two parents. 0 for
    /// everything else.
    pub mount: u64,
}

/// Owner, group and permission bits, without set-ID bits, which grant no access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

impl Permissions {
    /// Those of a file of this `mode`.
    pub fn new(uid: u32, gid: u32, mode: u32) -> Permissions {
        const GRANTING: u32 = 0o777 | libc::S_ISVTX;
        Permissions { uid, gid, mode: mode & GRANTING }
    }

    /// Whether a caller who may set these attributes by these permissions still may by the permissions `now`.
    ///
    /// For times, only changes that revoke the right count: it belongs to the owner, or, for the present time, to
    /// everybody with write permission. A client's kernel lets an owner set times through a descriptor without asking
    /// for permissions again.
    pub fn still_grant(self, now: Permissions, set: &SetAttributes) -> bool {
        const WRITE: u32 = 0o222;
        let sets_times_only = set.uid.is_none() && set.gid.is_none() && set.mode.is_none() && set.size.is_none();
        if self == now || !sets_times_only {
            return self == now;
        }
        let is_owners = [set.atime, set.mtime].iter().any(|time| matches!(time, Some(SetTime::To(_))));
        let is_writers = self.gid == now.gid && self.mode & !now.mode & WRITE == 0;
        self.uid == now.uid && (is_owners || is_writers)
    }
}

impl From<&Attributes> for Permissions {
    fn from(attributes: &Attributes) -> Permissions {
        Permissions::new(attributes.uid, attributes.gid, attributes.mode)
    }
}

/// The permissions that a client saw last, as [`Told`](crate::told::Told), but updated while the table is only read.
#[derive(Debug)]
struct Told {
    /// User and group.
    owner: AtomicU64,
    mode: AtomicU32,
    /// Whether the host changed them while the client knew the node.
    is_contested: AtomicBool,
    /// Whether a client has changed them by an ACL, which its kernel need not notice.
    has_new_list: AtomicBool,
}

impl Told {
    fn new(permissions: Permissions) -> Told {
        let told = Told {
            owner: AtomicU64::default(),
            mode: AtomicU32::default(),
            is_contested: AtomicBool::default(),
            has_new_list: AtomicBool::default(),
        };
        told.set(permissions);
        told
    }

    /// Sets what the client itself did not change.
    fn update(&self, permissions: Permissions) {
        if self.get() != permissions {
            self.is_contested.store(true, Ordering::Relaxed);
            self.set(permissions);
        }
    }

    fn set(&self, Permissions { uid, gid, mode }: Permissions) {
        self.owner.store(u64::from(uid) << 32 | u64::from(gid), Ordering::Relaxed);
        self.mode.store(mode, Ordering::Relaxed);
    }

    fn get(&self) -> Permissions {
        let owner = self.owner.load(Ordering::Relaxed);
        Permissions { uid: (owner >> 32) as u32, gid: owner as u32, mode: self.mode.load(Ordering::Relaxed) }
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    pub identity: Identity,
    /// Whether it is on the same mount as the root.
    pub on_root_mount: bool,
    /// Whether it is shown as an empty directory.
    pub is_closed: bool,
    /// Whether the client's attributes are still valid; see [`Accessed`].
    accessed: Accessed,
    told: Told,
    /// A number for its content when it was last opened (see [`super::unchanged`]); 0 if none.
    content: AtomicU64,
    /// When a client last looked up a name in it: tenths of seconds since the server started, plus one; 0 for never.
    asked: AtomicU32,
    /// Its file handle, if one was taken.
    pub handle: Option<Box<FileHandle>>,
    lookups: AtomicU64,
    /// Keeps a file open that has lost its last name, as long as a client may use it.
    pinned: Option<Arc<OwnedFd>>,
    /// The number of places in it.
    children: u32,
    first_place: u32,
    kept: u32,
}

impl Node {
    /// Whether a name of it is known.
    pub fn has_place(&self) -> bool {
        self.first_place != NONE
    }

    /// The permissions that a client saw last.
    pub fn told_permissions(&self) -> Permissions {
        self.told.get()
    }

    /// Records an open at which the content had this number. Returns whether the open before had the same one.
    pub fn is_again(&self, content: u64) -> bool {
        let before = self.content.swap(content, Ordering::Relaxed);
        content != 0 && before == content
    }

    /// Records that a client looked up a name in it, at this time since the server started.
    pub fn ask(&self, since_start: Duration) {
        let tenths = u32::try_from(since_start.as_millis() / 100).unwrap_or(u32::MAX - 1);
        self.asked.store(tenths + 1, Ordering::Relaxed);
    }

    /// The time of the last such look-up, since the server started.
    pub fn last_asked(&self) -> Option<Duration> {
        let tenths = self.asked.load(Ordering::Relaxed);
        tenths.checked_sub(1).map(|tenths| Duration::from_millis(u64::from(tenths) * 100))
    }

    /// Records the permissions that a client sees.
    pub fn tell_permissions(&self, permissions: Permissions) {
        self.told.update(permissions);
    }

    /// Records the permissions that a client has changed, and sees now.
    pub fn tell_changed_permissions(&self, permissions: Permissions) {
        self.told.set(permissions);
    }

    /// Records that a client has changed the ACL.
    pub fn list_changed(&self) {
        self.told.has_new_list.store(true, Ordering::Relaxed);
    }

    /// See [`FileSystem::is_contested`](crate::FileSystem::is_contested); `host_changes` says whether the host's changes count.
    pub fn is_contested(&self, host_changes: bool) -> bool {
        host_changes && self.told.is_contested.load(Ordering::Relaxed) || self.told.has_new_list.load(Ordering::Relaxed)
    }
}

/// A name of a node, in the list of that node's places.
#[derive(Debug)]
struct Place {
    parent: u32,
    node: u32,
    previous: u32,
    next: u32,
    name: Box<[u8]>,
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub identity: Identity,
    /// Whether it is on the same mount as the root.
    pub on_root_mount: bool,
    /// Whether to show it as an empty directory.
    pub is_closed: bool,
    /// The permissions that the client sees.
    pub permissions: Permissions,
}

/// The table.
#[derive(Debug)]
pub struct Table {
    nodes: Slab<Node>,
    places: Slab<Place>,
    by_identity: SlabIndex,
    /// By directory and name.
    by_place: SlabIndex,
    /// Cached descriptors of directories, and of other nodes.
    directories: DescriptorCache,
    files: DescriptorCache,
    /// The number of nodes that are pinned.
    pins: usize,
    /// The number of renames so far.
    pub renames: u64,
    /// Whether it pays that clients open directories.
    pub credit: Credit,
}

/// Descriptors to be closed after the table's lock is released.
pub type Dropped = Vec<Arc<OwnedFd>>;

impl Table {
    /// A table with the root only, which caches at most so many descriptors of directories and of other nodes.
    pub fn new(root: Found, directories: usize, files: usize) -> Table {
        let mut table = Table {
            nodes: Slab::new(),
            places: Slab::new(),
            by_identity: SlabIndex::default(),
            by_place: SlabIndex::default(),
            directories: DescriptorCache::new(directories),
            files: DescriptorCache::new(files),
            pins: 0,
            renames: 0,
            credit: Credit::default(),
        };
        // The root is never forgotten.
        table.insert(root, 1);
        table
    }

    /// The index of a node.
    pub fn index(&self, node: NodeId) -> Result<u32, Errno> {
        self.nodes.place(node.0).ok_or(Errno::STALE)
    }

    /// The number of the node at an index.
    pub fn number(&self, index: u32) -> NodeId {
        NodeId(self.nodes.number(index))
    }

    /// The node at an index.
    pub fn node(&self, index: u32) -> Result<&Node, Errno> {
        self.nodes.get(index).ok_or(Errno::STALE)
    }

    /// Counts a look-up of what was found, if the same node is known at this place.
    pub fn known(&self, parent: u32, name: &[u8], found: &Found) -> Option<NodeId> {
        let place = self.places.get(self.find_place(parent, name)?)?;
        let node = self.nodes.get(place.node).filter(|node| node.identity == found.identity)?;
        node.lookups.fetch_add(1, Ordering::Relaxed);
        node.told.update(found.permissions);
        self.told(place.node);
        Some(self.number(place.node))
    }

    /// Counts a look-up of a known node.
    pub fn count_lookup(&self, index: u32) -> Result<NodeId, Errno> {
        self.node(index)?.lookups.fetch_add(1, Ordering::Relaxed);
        self.told(index);
        Ok(self.number(index))
    }

    /// Records that a client read or wrote a node.
    pub fn accessed(&self, index: u32) {
        if self.nodes.get(index).is_some_and(|node| node.accessed.set())
            && let Some(directory) = self.directory_of(index)
        {
            directory.accessed.add();
            self.credit.accessed();
        }
    }

    /// Records that a client got a node's attributes.
    pub fn told(&self, index: u32) {
        if self.nodes.get(index).is_some_and(|node| node.accessed.clear())
            && let Some(directory) = self.directory_of(index)
        {
            directory.accessed.subtract();
            self.credit.told();
        }
    }

    /// Records a complete listing of a directory.
    pub fn listed(&self, index: u32) {
        if self.nodes.get(index).is_some_and(|node| node.accessed.set_listed()) {
            self.credit.listed();
        }
    }

    /// Whether a client that opens a directory should list it again; `None` if it should stop opening directories.
    pub fn opened(&self, index: u32) -> Option<bool> {
        let requests = self.nodes.get(index).and_then(|node| node.accessed.take_listing(node.children));
        self.credit.spend(requests).then_some(requests.is_some())
    }

    /// The directory in which the node was found last.
    fn directory_of(&self, index: u32) -> Option<&Node> {
        self.nodes.get(self.places.get(self.nodes.get(index)?.first_place)?.parent)
    }

    /// Counts a look-up of what was found at a place, or of a node without a name if there is no place. `parent` must
    /// be known.
    pub fn found(&mut self, place: Option<(u32, &[u8])>, found: &Found) -> Result<NodeId, Errno> {
        if let Some((parent, _)) = place {
            self.node(parent)?;
        }
        let index = match self.find_identity(&found.identity) {
            Some(index) => {
                let node = self.node(index)?;
                node.lookups.fetch_add(1, Ordering::Relaxed);
                node.told.update(found.permissions);
                self.told(index);
                index
            }
            None => self.insert(*found, 1).ok_or(Errno::NFILE)?,
        };
        if let Some((parent, name)) = place {
            self.set_place(index, parent, name)?;
        }
        Ok(self.number(index))
    }

    /// Drops look-ups.
    pub fn forget(&mut self, node: NodeId, lookups: u64) -> Dropped {
        let mut dropped = Dropped::new();
        if node == NodeId::ROOT {
            return dropped;
        }
        let Ok(index) = self.index(node) else { return dropped };
        if let Some(node) = self.nodes.get_mut(index) {
            let count = node.lookups.get_mut();
            *count = count.saturating_sub(lookups);
        }
        self.collect(index, &mut dropped);
        dropped
    }

    /// Drops all look-ups.
    pub fn clear(&mut self) -> Dropped {
        self.credit.renew();
        if let Some(root) = self.nodes.get_mut(ROOT) {
            root.accessed = Accessed::default();
        }
        let mut dropped = Dropped::new();
        for index in self.nodes.occupied() {
            if index != ROOT
                && let Some(node) = self.nodes.get_mut(index)
            {
                *node.lookups.get_mut() = 0;
                self.collect(index, &mut dropped);
            }
        }
        dropped
    }

    /// The places of a node, as directory index and name; the one found last comes first.
    pub fn places(&self, index: u32) -> impl Iterator<Item = (u32, &[u8])> {
        let first = self.nodes.get(index).map_or(NONE, |node| node.first_place);
        let step = |place: &Place| self.places.get(place.next);
        std::iter::successors(self.places.get(first), move |place| step(place))
            .map(|place| (place.parent, &*place.name))
    }

    /// The node at a place.
    pub fn at(&self, parent: u32, name: &[u8]) -> Option<u32> {
        Some(self.places.get(self.find_place(parent, name)?)?.node)
    }

    /// `None` if a client does not know the node at a place; otherwise whether it has read or written the node since
    /// it got the attributes.
    pub fn is_known(&self, parent: u32, name: &[u8]) -> Option<bool> {
        self.known_at(parent, name).map(|node| node.accessed.is_set())
    }

    /// The node that a client knows at a place.
    pub fn known_at(&self, parent: u32, name: &[u8]) -> Option<&Node> {
        let node = self.at(parent, name).and_then(|index| self.nodes.get(index))?;
        (node.lookups.load(Ordering::Relaxed) > 0).then_some(node)
    }

    /// Keeps a descriptor of a node open until the client has forgotten the node.
    pub fn pin(&mut self, index: u32, descriptor: Arc<OwnedFd>) {
        if let Some(node) = self.nodes.get_mut(index)
            && node.pinned.replace(descriptor).is_none()
        {
            self.pins += 1;
        }
    }

    /// The number of descriptors that are kept open so.
    pub fn pins(&self) -> usize {
        self.pins
    }

    /// Unpins a node that has a name again; returns the descriptor.
    pub fn unpin(&mut self, node: NodeId) -> Option<Arc<OwnedFd>> {
        let index = self.index(node).ok()?;
        let pinned = self.nodes.get_mut(index)?.pinned.take();
        self.pins -= usize::from(pinned.is_some());
        pinned
    }

    /// Records that a name was removed.
    pub fn remove_place(&mut self, parent: u32, name: &[u8]) -> Dropped {
        let mut dropped = Dropped::new();
        if let Some(place) = self.find_place(parent, name) {
            self.unlink_place(place, &mut dropped);
        }
        dropped
    }

    /// Records a rename; what had the new name is gone, or, with `exchange`, has the old name now.
    pub fn rename(&mut self, from: (u32, &[u8]), to: (u32, &[u8]), exchange: bool) -> Dropped {
        self.renames += 1;
        let mut dropped = Dropped::new();
        if from == to {
            return dropped;
        }
        let (moved, other) = (self.at(from.0, from.1), self.at(to.0, to.1));
        // `moved` has look-ups, which keep it while it has no place.
        for place in [from, to] {
            if let Some(place) = self.find_place(place.0, place.1) {
                self.unlink_place(place, &mut dropped);
            }
        }
        let _ = moved.map(|node| self.set_place(node, to.0, to.1));
        if exchange {
            let _ = other.map(|node| self.set_place(node, from.0, from.1));
        }
        dropped
    }

    /// The cached descriptor of a node.
    pub fn descriptor(&self, index: u32) -> Option<&Arc<OwnedFd>> {
        let node = self.nodes.get(index)?;
        let cache = if is_directory(node.identity.kind) { &self.directories } else { &self.files };
        cache.get(node.kept).or(node.pinned.as_ref())
    }

    /// Caches a descriptor of a node in place of an earlier one; returns an evicted one.
    pub fn keep(&mut self, index: u32, descriptor: Arc<OwnedFd>) -> Option<Evicted> {
        let node = self.nodes.get_mut(index)?;
        let cache = if is_directory(node.identity.kind) { &mut self.directories } else { &mut self.files };
        let old = cache.remove(node.kept);
        let (slot, evicted) = cache.insert(index, descriptor);
        node.kept = slot;
        if let Some(evicted) = &evicted
            && let Some(node) = self.nodes.get_mut(evicted.node)
        {
            node.kept = NONE;
        }
        evicted.or(old.map(|descriptor| Evicted { node: index, descriptor }))
    }

    /// Evicts cached descriptors so that others can be opened: half of those of files, or of directories.
    pub fn give_up_some(&mut self) -> Dropped {
        let mut given_up = self.files.give_up_half();
        if given_up.is_empty() {
            given_up = self.directories.give_up_half();
        }
        for evicted in &given_up {
            if let Some(node) = self.nodes.get_mut(evicted.node) {
                node.kept = NONE;
            }
        }
        given_up.into_iter().map(|evicted| evicted.descriptor).collect()
    }

    /// Stores a node's file handle.
    pub fn set_handle(&mut self, index: u32, handle: FileHandle) {
        if let Some(node) = self.nodes.get_mut(index) {
            node.handle = Some(Box::new(handle));
        }
    }

    /// The number of nodes.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    fn insert(&mut self, found: Found, lookups: u64) -> Option<u32> {
        let Found { identity, on_root_mount, is_closed, permissions } = found;
        let index = self.nodes.insert(Node {
            identity,
            on_root_mount,
            is_closed,
            accessed: Accessed::default(),
            told: Told::new(permissions),
            content: AtomicU64::new(0),
            asked: AtomicU32::new(0),
            handle: None,
            pinned: None,
            lookups: AtomicU64::new(lookups),
            children: 0,
            first_place: NONE,
            kept: NONE,
        })?;
        self.by_identity.insert(identity, index);
        Some(index)
    }

    fn find_identity(&self, identity: &Identity) -> Option<u32> {
        self.by_identity.find(identity, |index| self.nodes.get(index).is_some_and(|node| node.identity == *identity))
    }

    fn find_place(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let matches = |place: &Place| place.parent == parent && *place.name == *name;
        self.by_place.find((parent, name), |index| self.places.get(index).is_some_and(matches))
    }

    /// Adds a place to a node. A directory has only one place, so an earlier one is removed.
    fn set_place(&mut self, index: u32, parent: u32, name: &[u8]) -> Result<(), Errno> {
        if let Some(place) = self.find_place(parent, name)
            && self.places.get(place).is_some_and(|place| place.node == index)
        {
            self.bring_to_front(place);
            return Ok(());
        }
        // From here on the directory stays, whatever else is collected.
        self.nodes.get_mut(parent).ok_or(Errno::STALE)?.children += 1;
        let mut dropped = Dropped::new();
        if let Some(place) = self.find_place(parent, name) {
            self.unlink_place(place, &mut dropped);
        }
        let node = self.node(index)?;
        if is_directory(node.identity.kind) && (node.first_place != NONE || node.children > 0) {
            if node.first_place != NONE {
                self.unlink_place(node.first_place, &mut dropped);
            }
            self.break_loop(index, parent, &mut dropped);
        }
        let new = Place { parent, node: index, previous: NONE, next: NONE, name: name.into() };
        let Some(place) = self.places.insert(new) else {
            if let Some(above) = self.nodes.get_mut(parent) {
                above.children -= 1;
            }
            return Err(Errno::NFILE);
        };
        self.link_in_front(place);
        self.by_place.insert((parent, name), place);
        Ok(())
    }

    /// Directory `index` is about to be placed in `parent`, but by what is known, `parent` lies in it. That is
    /// outdated: somebody else moved directories.
    fn break_loop(&mut self, index: u32, parent: u32, dropped: &mut Dropped) {
        let mut at = parent;
        for _ in 0..MAX_DEPTH {
            let Some(place) = self.nodes.get(at).map(|node| node.first_place) else { return };
            let Some(above) = self.places.get(place).map(|place| place.parent) else { return };
            if above == index || at == index {
                return self.unlink_place(place, dropped);
            }
            at = above;
        }
    }

    fn link_in_front(&mut self, place: u32) {
        let Some(node) = self.places.get(place).map(|place| place.node) else { return };
        let Some(node) = self.nodes.get_mut(node) else { return };
        let next = std::mem::replace(&mut node.first_place, place);
        if let Some(place) = self.places.get_mut(place) {
            (place.previous, place.next) = (NONE, next);
        }
        if let Some(next) = self.places.get_mut(next) {
            next.previous = place;
        }
    }

    fn take_out(&mut self, place: u32) {
        let Some(&Place { node, previous, next, .. }) = self.places.get(place) else { return };
        match self.places.get_mut(previous) {
            Some(previous) => previous.next = next,
            None => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.first_place = next;
                }
            }
        }
        if let Some(next) = self.places.get_mut(next) {
            next.previous = previous;
        }
    }

    fn bring_to_front(&mut self, place: u32) {
        if self.places.get(place).is_some_and(|place| place.previous != NONE) {
            self.take_out(place);
            self.link_in_front(place);
        }
    }

    /// A place is about to go: its directory no longer counts this node as read or written.
    fn forget_access(&self, index: u32) {
        if let Some(place) = self.places.get(index) {
            self.told(place.node);
        }
    }

    /// Removes a place, and then its directory if nothing else keeps that.
    fn unlink_place(&mut self, index: u32, dropped: &mut Dropped) {
        self.forget_access(index);
        self.take_out(index);
        let Some(place) = self.places.get(index) else { return };
        let parent = place.parent;
        self.by_place.remove((parent, &*place.name), index);
        self.places.remove(index);
        if let Some(above) = self.nodes.get_mut(parent) {
            above.children = above.children.saturating_sub(1);
        }
        self.collect(parent, dropped);
    }

    /// Removes a node that nothing keeps, and then its ancestors that only it kept.
    fn collect(&mut self, index: u32, dropped: &mut Dropped) {
        let mut at = index;
        loop {
            let Some(node) = self.nodes.get_mut(at) else { return };
            if *node.lookups.get_mut() > 0 || node.children > 0 {
                return;
            }
            let (identity, kept) = (node.identity, node.kept);
            let mut above = NONE;
            // A directory has one place; each place of another node may be the last one in its directory.
            while let Some(place) = self.nodes.get(at).map(|node| node.first_place).filter(|place| *place != NONE) {
                if above != NONE {
                    self.collect(above, dropped);
                }
                above = self.places.get(place).map_or(NONE, |place| place.parent);
                self.detach(place);
            }
            let cache = if is_directory(identity.kind) { &mut self.directories } else { &mut self.files };
            dropped.extend(cache.remove(kept));
            self.by_identity.remove(identity, at);
            let pinned = self.nodes.remove(at).and_then(|node| node.pinned);
            self.pins -= usize::from(pinned.is_some());
            dropped.extend(pinned);
            at = above;
        }
    }

    /// Removes a place, but not yet its directory.
    fn detach(&mut self, index: u32) {
        self.forget_access(index);
        self.take_out(index);
        let Some(place) = self.places.remove(index) else { return };
        self.by_place.remove((place.parent, &*place.name), index);
        if let Some(above) = self.nodes.get_mut(place.parent) {
            above.children = above.children.saturating_sub(1);
        }
    }
}

/// Whether a mode is a directory's.
pub fn is_directory(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR
}
