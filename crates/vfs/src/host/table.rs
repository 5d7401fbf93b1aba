//! Which nodes a client knows, and where each of them lies.
//!
//! Pure bookkeeping, no system call. A node is known by what tells one file of the host from all others
//! ([`Identity`]), and has *places*: a directory's node and a name, one for each hard link that was looked up. A node
//! stays while a client has looked it up, or while a place of another node lies in it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;

use super::handle::FileHandle;
use super::kept::{Evicted, Kept};
use crate::accessed::{Accessed, Credit};
use crate::slab::Slab;
use crate::slab_index::SlabIndex;
use crate::{NodeId, SetAttributes, SetTime};

/// The root's place in the table.
const ROOT: u32 = 0;

/// No place, no slot.
const NONE: u32 = u32::MAX;

/// Directories above one another, more than which are a loop.
const MAX_DEPTH: usize = 1 << 16;

/// What tells one file of the host from all others, also from those that had its inode number before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its file system's device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// When it was made, in nanoseconds since 1970; 0 where the file system does not say.
    pub birth: i64,
    /// Its type, in the bits of a mode.
    pub kind: u32,
    /// The mount that a directory was found on: a bind mount shows the same directory twice, each with a parent of its own. 0 for
    /// all else.
    pub mount: u64,
}

/// Whose a file is and what others may do with it, less what gives privileges: that grants nobody access.
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

    /// Whether who may set these attributes by these permissions may so by those that are there `now`.
    ///
    /// Of times no more is compared than takes the right to them away, that of the owner, or, to the present time, of who may write. A client's
    /// kernel lets an owner set them by a descriptor, and then does not ask for the permissions again.
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

/// Permissions as a client was told of them last.
#[derive(Debug)]
struct Told {
    /// User and group.
    owner: AtomicU64,
    mode: AtomicU32,
}

impl Told {
    fn new(permissions: Permissions) -> Told {
        let told = Told { owner: AtomicU64::default(), mode: AtomicU32::default() };
        told.set(permissions);
        told
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

/// What is known of a node of the host.
#[derive(Debug)]
pub struct Node {
    pub identity: Identity,
    /// Whether it lies on the same mount as the root.
    pub on_root_mount: bool,
    /// Whether it is shown as an empty directory, whatever is in it.
    pub is_closed: bool,
    /// Whether the client knows its attributes, and of what is in it.
    accessed: Accessed,
    told: Told,
    /// A way to it that needs no name.
    pub handle: Option<Box<FileHandle>>,
    lookups: AtomicU64,
    /// Keeps a file that has no name any more, for a client that may use it.
    pinned: Option<Arc<OwnedFd>>,
    /// Places in it.
    children: u32,
    first_place: u32,
    kept: u32,
}

impl Node {
    /// Whether it has a name that is known.
    pub fn has_place(&self) -> bool {
        self.first_place != NONE
    }

    /// Its permissions, as a client was told of them last.
    pub fn told_permissions(&self) -> Permissions {
        self.told.get()
    }

    /// A client is told of these permissions.
    pub fn tell_permissions(&self, permissions: Permissions) {
        self.told.set(permissions);
    }
}

/// A name of a node, in lists of those of one node.
#[derive(Debug)]
struct Place {
    parent: u32,
    node: u32,
    previous: u32,
    next: u32,
    name: Box<[u8]>,
}

/// What a lookup found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub identity: Identity,
    /// Whether it lies on the same mount as the root.
    pub on_root_mount: bool,
    /// Whether it is to be shown as an empty directory.
    pub is_closed: bool,
    /// What the client is told of with it.
    pub permissions: Permissions,
}

/// All nodes.
#[derive(Debug)]
pub struct Table {
    nodes: Slab<Node>,
    places: Slab<Place>,
    by_identity: SlabIndex,
    /// By directory and name.
    by_place: SlabIndex,
    /// Descriptors of directories, and of others.
    directories: Kept,
    files: Kept,
    /// How often something was renamed.
    pub renames: u64,
    /// Whether it pays that clients open directories.
    pub credit: Credit,
}

/// Descriptors that are closed when the table's lock was given back.
pub type Dropped = Vec<Arc<OwnedFd>>;

impl Table {
    /// Of a root and no more, keeping at most so many descriptors of directories and of other nodes.
    pub fn new(root: Found, directories: usize, files: usize) -> Table {
        let mut table = Table {
            nodes: Slab::new(),
            places: Slab::new(),
            by_identity: SlabIndex::default(),
            by_place: SlabIndex::default(),
            directories: Kept::new(directories),
            files: Kept::new(files),
            renames: 0,
            credit: Credit::default(),
        };
        // The root is never forgotten.
        table.insert(root, 1);
        table
    }

    /// The place in the table of the node with this number.
    pub fn index(&self, node: NodeId) -> Result<u32, Errno> {
        self.nodes.place(node.0).ok_or(Errno::STALE)
    }

    /// The number of a node.
    pub fn number(&self, index: u32) -> NodeId {
        NodeId(self.nodes.number(index))
    }

    /// What is known of a node.
    pub fn node(&self, index: u32) -> Result<&Node, Errno> {
        self.nodes.get(index).ok_or(Errno::STALE)
    }

    /// Counts a lookup of what was found, if that is known already in this very place.
    pub fn known(&self, parent: u32, name: &[u8], found: &Found) -> Option<NodeId> {
        let place = self.places.get(self.find_place(parent, name)?)?;
        let node = self.nodes.get(place.node).filter(|node| node.identity == found.identity)?;
        node.lookups.fetch_add(1, Ordering::Relaxed);
        node.told.set(found.permissions);
        self.told(place.node);
        Some(self.number(place.node))
    }

    /// Counts a lookup of a node that is known already.
    pub fn count_lookup(&self, index: u32) -> Result<NodeId, Errno> {
        self.node(index)?.lookups.fetch_add(1, Ordering::Relaxed);
        self.told(index);
        Ok(self.number(index))
    }

    /// A client has read or written a node.
    pub fn accessed(&self, index: u32) {
        if self.nodes.get(index).is_some_and(|node| node.accessed.set())
            && let Some(directory) = self.directory_of(index)
        {
            directory.accessed.add();
            self.credit.accessed();
        }
    }

    /// A client is told the attributes of a node.
    pub fn told(&self, index: u32) {
        if self.nodes.get(index).is_some_and(|node| node.accessed.clear())
            && let Some(directory) = self.directory_of(index)
        {
            directory.accessed.subtract();
            self.credit.told();
        }
    }

    /// A client has read a directory to its end.
    pub fn listed(&self, index: u32) {
        if self.nodes.get(index).is_some_and(|node| node.accessed.set_listed()) {
            self.credit.listed();
        }
    }

    /// Whether a client shall read a directory anew that it opens; `None` if it shall not ask to open any.
    pub fn opened(&self, index: u32) -> Option<bool> {
        let requests = self.nodes.get(index).and_then(|node| node.accessed.take_listing(node.children));
        self.credit.spend(requests).then_some(requests.is_some())
    }

    /// The directory that a node was found in last.
    fn directory_of(&self, index: u32) -> Option<&Node> {
        self.nodes.get(self.places.get(self.nodes.get(index)?.first_place)?.parent)
    }

    /// Counts a lookup of what was found at a place, or, without one, has no name. `parent` must be there.
    pub fn found(&mut self, place: Option<(u32, &[u8])>, found: &Found) -> Result<NodeId, Errno> {
        if let Some((parent, _)) = place {
            self.node(parent)?;
        }
        let index = match self.find_identity(&found.identity) {
            Some(index) => {
                let node = self.node(index)?;
                node.lookups.fetch_add(1, Ordering::Relaxed);
                node.told.set(found.permissions);
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

    /// Takes lookups back.
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

    /// Takes all lookups back.
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

    /// The places of a node: number of the directory, and name; the one found last first.
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

    /// Whether a client knows the node at a place; and if so, whether it has read or written it since it was told of it.
    pub fn is_known(&self, parent: u32, name: &[u8]) -> Option<bool> {
        self.known_at(parent, name).map(|node| node.accessed.is_set())
    }

    /// The node that a client knows at a place.
    pub fn known_at(&self, parent: u32, name: &[u8]) -> Option<&Node> {
        let node = self.at(parent, name).and_then(|index| self.nodes.get(index))?;
        (node.lookups.load(Ordering::Relaxed) > 0).then_some(node)
    }

    /// Keeps a descriptor of a node until the client has forgotten it.
    pub fn pin(&mut self, index: u32, descriptor: Arc<OwnedFd>) {
        if let Some(node) = self.nodes.get_mut(index) {
            node.pinned = Some(descriptor);
        }
    }

    /// It has a name by which it can be found; gives the descriptor that kept it.
    pub fn unpin(&mut self, node: NodeId) -> Option<Arc<OwnedFd>> {
        let index = self.index(node).ok()?;
        self.nodes.get_mut(index)?.pinned.take()
    }

    /// A name is gone.
    pub fn remove_place(&mut self, parent: u32, name: &[u8]) -> Dropped {
        let mut dropped = Dropped::new();
        if let Some(place) = self.find_place(parent, name) {
            self.unlink_place(place, &mut dropped);
        }
        dropped
    }

    /// A name became another one; what had that is gone, or, with `exchange`, has the first one now.
    pub fn rename(&mut self, from: (u32, &[u8]), to: (u32, &[u8]), exchange: bool) -> Dropped {
        self.renames += 1;
        let mut dropped = Dropped::new();
        if from == to {
            return dropped;
        }
        let (moved, other) = (self.at(from.0, from.1), self.at(to.0, to.1));
        // Lookups of `moved` keep it while it has no place.
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

    /// The descriptor that is kept of a node.
    pub fn descriptor(&self, index: u32) -> Option<&Arc<OwnedFd>> {
        let node = self.nodes.get(index)?;
        let cache = if is_directory(node.identity.kind) { &self.directories } else { &self.files };
        cache.get(node.kept).or(node.pinned.as_ref())
    }

    /// Keeps a descriptor of a node in place of the one that is kept; gives what is no longer kept.
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

    /// Descriptors that are no longer kept, so that others can be opened: half of those of files, or of directories.
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

    /// A way to a node without names.
    pub fn set_handle(&mut self, index: u32, handle: FileHandle) {
        if let Some(node) = self.nodes.get_mut(index) {
            node.handle = Some(Box::new(handle));
        }
    }

    /// How many nodes there are.
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

    /// Says that node `index` has this place. One that a directory had before is gone: it has one only.
    fn set_place(&mut self, index: u32, parent: u32, name: &[u8]) -> Result<(), Errno> {
        if let Some(place) = self.find_place(parent, name)
            && self.places.get(place).is_some_and(|place| place.node == index)
        {
            self.bring_to_front(place);
            return Ok(());
        }
        // From here on the directory stays, whatever else goes.
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

    /// Where directory `index` is about to lie in `parent`, and `parent`, by what is known, in it, that is no longer true:
    /// somebody else has moved directories.
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

    /// A place is about to go: no more is to be told of the node in its directory.
    fn forget_access(&self, index: u32) {
        if let Some(place) = self.places.get(index) {
            self.told(place.node);
        }
    }

    /// Takes a place away, and the directory that it was in, if only that kept it.
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

    /// Takes away a node that nothing keeps, and then those above it that only it kept.
    fn collect(&mut self, index: u32, dropped: &mut Dropped) {
        let mut at = index;
        loop {
            let Some(node) = self.nodes.get_mut(at) else { return };
            if *node.lookups.get_mut() > 0 || node.children > 0 {
                return;
            }
            let (identity, kept) = (node.identity, node.kept);
            let mut above = NONE;
            // A directory has one place; of others, each could be the last in its directory.
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
            dropped.extend(self.nodes.remove(at).and_then(|node| node.pinned));
            at = above;
        }
    }

    /// Takes a place away, but not yet the directory that it was in.
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
