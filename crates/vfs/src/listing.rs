//! Directory listings, for tests.

use rustix::io::Errno;

use crate::{Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, NodeId};

/// The result of one request.
pub(crate) struct Listing {
    /// Names, and their nodes if requested.
    pub(crate) entries: Vec<(String, Option<Entry>)>,
    /// The offset of the next request.
    pub(crate) next: u64,
    room: usize,
    plus: bool,
}

impl Listing {
    /// Requests at most `room` names from `offset`, with their nodes if `plus` is set.
    pub(crate) fn of(
        layer: &dyn FileSystem,
        context: &Context<'_>,
        (node, handle): (NodeId, HandleId),
        offset: u64,
        (room, plus): (usize, bool),
    ) -> Result<Listing, Errno> {
        let mut listing = Listing { entries: Vec::new(), next: offset, room, plus };
        layer.read_directory(context, node, handle, offset, &mut listing)?;
        Ok(listing)
    }

    /// Requests until there are no more entries.
    pub(crate) fn whole(
        layer: &dyn FileSystem,
        node: NodeId,
        (room, plus): (usize, bool),
    ) -> Vec<(String, Option<Entry>)> {
        let handle = match layer.open_directory(&Context::SERVER, node) {
            Ok(opened) => opened.handle,
            Err(errno) => {
                assert_eq!(errno, Errno::NOSYS);
                HandleId::default()
            }
        };
        let (mut all, mut next) = (Vec::new(), 0);
        loop {
            let mut part = Listing::of(layer, &Context::SERVER, (node, handle), next, (room, plus)).unwrap();
            if part.entries.is_empty() {
                break;
            }
            next = part.next;
            all.append(&mut part.entries);
        }
        layer.release_directory(node, handle);
        all
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.entries.iter().map(|(name, _)| name.as_str()).collect()
    }
}

impl DirectorySink for Listing {
    fn wants_entries(&self) -> bool {
        self.plus
    }

    fn has_room(&self, _: usize) -> bool {
        self.entries.len() < self.room
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        if !self.has_room(entry.name.len()) {
            return false;
        }
        self.next = entry.next;
        self.entries.push((String::from_utf8_lossy(entry.name).into_owned(), entry.entry));
        true
    }
}
