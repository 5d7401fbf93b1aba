//! Merged directory listings: the names of both layers without those under whiteouts.
//!
//! A name's offset is its hash. So offsets stay valid when the listing is built again, whatever is added or removed,
//! and no listing has to be kept while a directory is open.

use std::collections::HashMap;
use std::sync::Arc;

use rustix::io::Errno;

use super::{ME, Overlay, hold};
use crate::{Context, DirectoryEntry, DirectorySink, NodeId};

/// The most listings cached for their readers' next request.
const MAX_LISTINGS: usize = 32;

/// A name in a directory.
#[derive(Debug)]
pub(super) struct Name {
    /// Its position: at least 2, except `.` and `..`, which are 0 and 1.
    offset: u64,
    inode: u64,
    mode: u32,
    pub name: Box<[u8]>,
}

/// Listings by directory; the number counts uses, for LRU.
#[derive(Debug, Default)]
pub(super) struct Listings {
    listings: HashMap<NodeId, (u64, Arc<Vec<Name>>)>,
    now: u64,
}

/// A name, its inode number and its type, from a layer.
type Listed = (Box<[u8]>, u64, u32);

/// A sink that accepts everything.
#[derive(Default)]
struct All {
    names: Vec<Listed>,
    next: u64,
    last: usize,
}

impl DirectorySink for All {
    fn wants_entries(&self) -> bool {
        false
    }

    fn has_room(&self, _: usize) -> bool {
        true
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        self.names.push((entry.name.into(), entry.inode, entry.mode));
        self.next = entry.next;
        true
    }
}

impl Overlay {
    pub(super) fn list(
        &self,
        context: &Context<'_>,
        node: NodeId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let names = self.listing(node, offset == 0)?;
        let from = names.partition_point(|name| name.offset < offset);
        for name in names.get(from..).unwrap_or_default() {
            if !sink.has_room(name.name.len()) {
                return Ok(());
            }
            let is_dots = name.offset < 2;
            let entry = if is_dots || !sink.wants_entries() || self.is_known(node, &name.name) {
                None
            } else {
                match self.look_up(context, node, &name.name) {
                    // Removed since the listing was built.
                    Err(Errno::NOENT) => continue,
                    found => found.ok(),
                }
            };
            let inode = entry.map_or(name.inode, |entry| entry.attributes.inode);
            let told = DirectoryEntry { inode, next: name.offset + 1, mode: name.mode, name: &name.name, entry };
            if !sink.push(&told) {
                if let Some(entry) = entry {
                    let gone = hold(&self.table).forget(entry.node, 1);
                    self.give_back(gone);
                }
                return Ok(());
            }
            entry.iter().for_each(|entry| self.told_entry(entry));
        }
        // A client takes an empty answer for the end.
        if self.opens_directories && from == names.len() {
            hold(&self.table).listed(node);
        }
        Ok(())
    }

    /// Whether a client's cached attributes of a name are valid: it is the only one to change them, and has not read
    /// or written the node since it got them.
    fn is_known(&self, node: NodeId, name: &[u8]) -> bool {
        if !self.opens_directories {
            return false;
        }
        let table = hold(&self.table);
        let known = table.is_known(node, name);
        if known == Some(true) {
            // The client need not ask for these attributes.
            table.credit.saved();
        }
        known == Some(false)
    }

    /// Invalidates the cached listing of a directory.
    pub(super) fn changed(&self, node: NodeId) {
        hold(&self.listings).listings.remove(&node);
    }

    fn listing(&self, node: NodeId, from_start: bool) -> Result<Arc<Vec<Name>>, Errno> {
        if !from_start {
            let mut listings = hold(&self.listings);
            listings.now += 1;
            let now = listings.now;
            if let Some((used, names)) = listings.listings.get_mut(&node) {
                *used = now;
                return Ok(names.clone());
            }
        }
        let layers = self.layers(node)?;
        if !layers.is_directory {
            return Err(Errno::NOTDIR);
        }
        if hold(&self.table).is_removed(node) {
            return Ok(Arc::default());
        }
        let names = Arc::new(self.names_in(layers.upper, layers.lower)?);
        let mut listings = hold(&self.listings);
        listings.now += 1;
        let now = listings.now;
        listings.listings.insert(node, (now, names.clone()));
        if listings.listings.len() > MAX_LISTINGS {
            let oldest = listings.listings.iter().min_by_key(|(_, (used, _))| *used).map(|(node, _)| *node);
            oldest.map(|oldest| listings.listings.remove(&oldest));
        }
        Ok(names)
    }

    /// The merged names of a directory in these layers.
    pub(super) fn names_in(&self, upper: Option<NodeId>, lower: Option<NodeId>) -> Result<Vec<Name>, Errno> {
        let mut names: HashMap<Box<[u8]>, Option<(u64, u32)>> = HashMap::new();
        if let Some(upper) = upper {
            for (name, inode, mode) in read_all(&*self.upper, upper)? {
                let covered = mode == libc::S_IFCHR && self.is_whiteout_at(upper, &name)?;
                names.insert(name, (!covered).then_some((inode, mode)));
            }
        }
        if let Some(lower) = lower {
            for (name, inode, mode) in read_all(&*self.lower, lower)? {
                names.entry(name).or_insert(Some((inode, mode)));
            }
        }
        let named = names.into_iter().filter_map(|(name, there)| {
            let (inode, mode) = there?;
            Some(Name { offset: offset_of(&name), inode, mode, name })
        });
        let mut named: Vec<Name> = named.collect();
        named.sort_unstable_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
        Ok(named)
    }

    /// The whiteouts in a directory of the upper layer.
    pub(super) fn whiteouts_in(&self, upper: NodeId) -> Result<Vec<Box<[u8]>>, Errno> {
        let mut whiteouts = Vec::new();
        for (name, _, mode) in read_all(&*self.upper, upper)? {
            if mode == libc::S_IFCHR && self.is_whiteout_at(upper, &name)? {
                whiteouts.push(name);
            }
        }
        Ok(whiteouts)
    }
}

/// All entries of a layer's directory.
pub(super) fn read_all(layer: &dyn crate::FileSystem, node: NodeId) -> Result<Vec<Listed>, Errno> {
    let handle = match layer.open_directory(&ME, node) {
        Ok(opened) => Some(opened.handle),
        Err(Errno::NOSYS) => None,
        Err(errno) => return Err(errno),
    };
    let mut all = All::default();
    let read = loop {
        all.last = all.names.len();
        let offset = all.next;
        match layer.read_directory(&ME, node, handle.unwrap_or_default(), offset, &mut all) {
            Ok(()) if all.names.len() == all.last => break Ok(()),
            Ok(()) => {}
            Err(errno) => break Err(errno),
        }
    };
    if let Some(handle) = handle {
        layer.release_directory(node, handle);
    }
    read.map(|()| all.names)
}

/// A name's position: FNV-1a with 62 bits. In one of a million directories with a million names each, two names
/// collide.
fn offset_of(name: &[u8]) -> u64 {
    match name {
        b"." => 0,
        b".." => 1,
        _ => {
            let hash = name.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            (hash >> 2).max(2)
        }
    }
}
