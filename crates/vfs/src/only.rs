//! An adapter that shows some paths of the file system below, and hides all others.
//!
//! A hidden name is `ENOENT`, as if nothing were there, and appears in no listing. The view is read-only (`EROFS`); to
//! work in it, put an [`Overlay`](crate::Overlay) over it. The adapter remembers the hidden names that a client looked
//! up although something is there.
//!
//! Nodes are those of the file system below. For each directory that a client knows, the adapter stores its place in
//! the set of paths ([`Shown`]). One place is enough, because a directory has only one path.

mod shown;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::passing::PassingOn;
use crate::{
    Attributes, Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, NewNode, NodeId, OpenHandle,
    WriteKind, check_name, hold, passes_on, read_only,
};
pub use shown::Shown;
use shown::{ROOT, Spot, State};

/// The most hidden paths that are remembered.
const MOST_MISSED: usize = 64;

/// See the module.
pub struct Only {
    below: Arc<dyn FileSystem>,
    shown: Shown,
    /// Never locked during a call of the file system below.
    places: Mutex<HashMap<NodeId, Known>>,
    missed: Mutex<BTreeSet<Vec<u8>>>,
}

/// A directory that a client knows.
#[derive(Clone, Copy, Debug)]
struct Known {
    lookups: u64,
    /// `None` if no path at it or beneath it was named.
    spot: Option<Spot>,
}

fn is_directory(attributes: &Attributes) -> bool {
    attributes.mode & libc::S_IFMT == libc::S_IFDIR
}

impl Only {
    /// Shows those paths of `below` that are in `shown`.
    pub fn of(below: Arc<dyn FileSystem>, shown: Shown) -> Only {
        Only { below, shown, places: Mutex::default(), missed: Mutex::default() }
    }

    /// The absolute paths, sorted, that were looked for and are hidden although something is there: at most 64. A path that was
    /// [hidden by name](Shown::hide) is not among them.
    pub fn missed(&self) -> Vec<Vec<u8>> {
        hold(&self.missed).iter().cloned().collect()
    }

    /// The place of a directory.
    fn spot(&self, directory: NodeId) -> Option<Spot> {
        if directory == NodeId::ROOT {
            return Some(ROOT);
        }
        hold(&self.places).get(&directory).and_then(|known| known.spot)
    }

    /// Counts a look-up that the client gets of the node at this place.
    fn learned(&self, entry: Entry, spot: Option<Spot>) -> Entry {
        if is_directory(&entry.attributes) && entry.node != NodeId::ROOT {
            let mut places = hold(&self.places);
            let known = places.entry(entry.node).or_insert(Known { lookups: 0, spot });
            *known = Known { lookups: known.lookups + 1, spot };
        }
        Entry { attributes: self.shown.shown(spot, entry.attributes), ..entry }
    }

    /// Remembers a hidden name, if something is there.
    fn misses(&self, context: &Context<'_>, parent: NodeId, directory: Spot, name: &[u8]) {
        let path = self.shown.path(directory, name);
        let is_new = {
            let missed = hold(&self.missed);
            missed.len() < MOST_MISSED && !missed.contains(&path)
        };
        if is_new && let Ok(entry) = self.below.lookup(context, parent, name) {
            self.below.forget(entry.node, 1);
            hold(&self.missed).insert(path);
        }
    }
}

impl FileSystem for Only {
    // Methods that only read, or use what a client has found.
    passes_on! {
        below: absence_valid, is_contested, read_link, read, flush, fsync, sync, seek, release, open_directory, release_directory, get_xattr,
        list_xattrs, test_lock, set_lock, statistics, host_file, interrupted
    }

    // Changes.
    read_only! {}

    fn lookup(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        check_name(name)?;
        let directory = self.spot(parent);
        let spot = self.shown.child(directory, name);
        if self.shown.is_shown(spot) {
            return self.below.lookup(context, parent, name).map(|entry| self.learned(entry, spot));
        }
        if let Some(directory) = directory.filter(|_| self.shown.state(spot) == State::Unnamed) {
            self.misses(context, parent, directory, name);
        }
        Err(Errno::NOENT)
    }

    fn parent(&self, context: &Context<'_>, node: NodeId) -> Result<Entry, Errno> {
        let spot = self.spot(node);
        let entry = self.below.parent(context, node)?;
        let above = match spot {
            Some(spot) => Some(self.shown.parent(spot)),
            None => self.spot(entry.node),
        };
        Ok(self.learned(entry, above))
    }

    fn forget(&self, node: NodeId, lookups: u64) {
        {
            let mut places = hold(&self.places);
            if let Some(known) = places.get_mut(&node) {
                known.lookups = known.lookups.saturating_sub(lookups);
                if known.lookups == 0 {
                    places.remove(&node);
                }
            }
        }
        self.below.forget(node, lookups);
    }

    fn disconnected(&self) {
        hold(&self.places).clear();
        self.below.disconnected();
    }

    fn attributes(&self, context: &Context<'_>, node: NodeId, handle: Option<HandleId>) -> Result<Attributes, Errno> {
        Ok(self.shown.shown(self.spot(node), self.below.attributes(context, node, handle)?))
    }

    fn peek_attributes(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: Option<HandleId>,
    ) -> Result<Attributes, Errno> {
        Ok(self.shown.shown(self.spot(node), self.below.peek_attributes(context, node, handle)?))
    }

    fn open(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        if writes || flags & libc::O_TRUNC as u32 != 0 {
            return Err(Errno::ROFS);
        }
        self.below.open(context, node, flags)
    }

    fn create_unnamed(&self, _: &Context<'_>, _: NodeId, _: &NewNode, _: u32) -> Result<(Entry, OpenHandle), Errno> {
        Err(Errno::ROFS)
    }

    fn write(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: HandleId,
        _: u64,
        _: &[VolatileSlice<'_>],
        _: WriteKind,
    ) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    fn copy_range(
        &self,
        _: &Context<'_>,
        _: (NodeId, HandleId, u64),
        _: (NodeId, HandleId, u64),
        _: u64,
    ) -> Result<u64, Errno> {
        Err(Errno::ROFS)
    }

    fn fallocate(&self, _: &Context<'_>, _: NodeId, _: HandleId, _: u32, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn read_directory(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let directory = self.spot(node);
        let mut shown = PassingOn::to(sink, |sink, entry: &DirectoryEntry<'_>| {
            let is_dots = matches!(entry.name, b"." | b"..");
            !is_dots && !self.shown.is_listed(directory, entry.name) || sink.push(entry)
        });
        self.below.read_directory(context, node, handle, offset, &mut NamesOnly(&mut shown))
    }
}

/// Passes on names without nodes: a listed name need not be one that can be looked up.
struct NamesOnly<'s>(&'s mut dyn DirectorySink);

impl DirectorySink for NamesOnly<'_> {
    fn wants_entries(&self) -> bool {
        false
    }

    fn has_room(&self, name: usize) -> bool {
        self.0.has_room(name)
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        self.0.push(entry)
    }
}
