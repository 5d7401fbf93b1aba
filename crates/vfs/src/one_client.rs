//! One client's part of a file system that several have.
//!
//! A layer knows of lookups and of what is open, not whose they are. This one counts what goes to its client, so that the
//! client's end takes back just that, and what it gives back is no more than it has: nodes and open files of others stay
//! theirs, whatever it says.
//!
//! It takes memory for each node that the client knows and for each file that it has open, of which there are as many below.

#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::passing::PassingOn;
use crate::{Context, DirectorySink, Entry, FileSystem, HandleId, Lock, LockOwner, NewNode, NodeId, Opened};

/// See the module's text.
pub struct OneClient {
    below: Arc<dyn FileSystem>,
    held: Mutex<Held>,
}

/// What a client has.
#[derive(Debug, Default)]
struct Held {
    lookups: HashMap<NodeId, u64>,
    files: HashSet<(NodeId, HandleId)>,
    directories: HashSet<(NodeId, HandleId)>,
}

impl OneClient {
    /// The part of a client that has nothing yet.
    pub fn of(below: Arc<dyn FileSystem>) -> OneClient {
        OneClient { below, held: Mutex::default() }
    }

    /// Held for bookkeeping only, never while the file system is asked.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a lookup that goes to the client.
    fn learned(&self, entry: Entry) -> Entry {
        *self.held().lookups.entry(entry.node).or_default() += 1;
        entry
    }

    /// The client has a file open. Where none need be opened, it has nothing.
    fn opened(&self, node: NodeId, opened: Opened) -> Opened {
        if opened.handle != HandleId::default() {
            self.held().files.insert((node, opened.handle));
        }
        opened
    }

    fn created(&self, (entry, opened): (Entry, Opened)) -> (Entry, Opened) {
        (self.learned(entry), self.opened(entry.node, opened))
    }
}

impl Drop for OneClient {
    fn drop(&mut self) {
        self.disconnected();
    }
}

impl FileSystem for OneClient {
    fn below(&self) -> Option<&dyn FileSystem> {
        Some(&*self.below)
    }

    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.below.lookup(context, parent, name).map(|entry| self.learned(entry))
    }

    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        self.below.parent(context, node).map(|entry| self.learned(entry))
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        let given = {
            let mut held = self.held();
            let Slot::Occupied(mut there) = held.lookups.entry(node) else { return };
            let given = lookups.min(*there.get());
            *there.get_mut() -= given;
            if *there.get() == 0 {
                there.remove();
            }
            given
        };
        self.below.forget(node, given);
    }

    fn disconnected(&self) {
        let Held { lookups, files, directories } = std::mem::take(&mut *self.held());
        for (node, handle) in files {
            self.below.release(node, handle, None);
        }
        for (node, handle) in directories {
            self.below.release_directory(node, handle);
        }
        for (node, lookups) in lookups {
            self.below.forget(node, lookups);
        }
    }

    fn make_node(&self, context: &Context<'_>, parent: NodeId, name: &[u8], new: &NewNode) -> Result<Entry, Errno> {
        self.below.make_node(context, parent, name, new).map(|entry| self.learned(entry))
    }

    fn make_directory(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry, Errno> {
        self.below.make_directory(context, parent, name, new).map(|entry| self.learned(entry))
    }

    fn make_symlink(&self, context: &Context<'_>, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        self.below.make_symlink(context, parent, name, target).map(|entry| self.learned(entry))
    }

    fn link(&self, context: &Context<'_>, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        self.below.link(context, node, parent, name).map(|entry| self.learned(entry))
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<Opened, Errno> {
        self.below.open(context, node, flags).map(|opened| self.opened(node, opened))
    }

    fn create(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        self.below.create(context, parent, name, new, flags).map(|created| self.created(created))
    }

    fn create_unnamed(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        self.below.create_unnamed(context, parent, new, flags).map(|created| self.created(created))
    }

    fn release(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>) {
        let had = self.held().files.remove(&(node, handle));
        if had {
            self.below.release(node, handle, owner);
        }
    }

    fn open_directory(&self, context: &Context<'_>, node: NodeId) -> Result<Opened, Errno> {
        let opened = self.below.open_directory(context, node)?;
        if opened.handle != HandleId::default() {
            self.held().directories.insert((node, opened.handle));
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
            if taken && let Some(entry) = entry.entry {
                self.learned(entry);
            }
            taken
        });
        self.below.read_directory(context, node, handle, offset, &mut learning)
    }

    fn release_directory(&self, node: NodeId, handle: HandleId) {
        let had = self.held().directories.remove(&(node, handle));
        if had {
            self.below.release_directory(node, handle);
        }
    }

    // Owners of two clients may have equal numbers, and a client's end would have to end its locks: clients keep them
    // themselves.

    fn flush(&self, _: &Context<'_>, _: NodeId, _: HandleId, _: Option<LockOwner>) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    fn test_lock(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: HandleId,
        _: LockOwner,
        _: &Lock,
    ) -> Result<Option<Lock>, Errno> {
        Err(Errno::NOSYS)
    }

    fn set_lock(&self, _: &Context<'_>, _: NodeId, _: HandleId, _: LockOwner, _: &Lock, _: bool) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }
}
