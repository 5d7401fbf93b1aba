//! A directory sink that forwards the entries of a lower file system to the client's sink. An adapter may change or skip entries.

use crate::{DirectoryEntry, DirectorySink};

/// A sink that forwards to another one; the adapter may change or skip entries on the way.
pub(crate) struct PassingOn<'s, P> {
    sink: &'s mut dyn DirectorySink,
    push: P,
}

impl<'s, P: FnMut(&mut dyn DirectorySink, &DirectoryEntry<'_>) -> bool> PassingOn<'s, P> {
    /// Forwards each entry to `sink` through `push`, which returns what [`DirectorySink::push`] does.
    pub fn to(sink: &'s mut dyn DirectorySink, push: P) -> PassingOn<'s, P> {
        PassingOn { sink, push }
    }
}

impl<P: FnMut(&mut dyn DirectorySink, &DirectoryEntry<'_>) -> bool> DirectorySink for PassingOn<'_, P> {
    fn wants_entries(&self) -> bool {
        self.sink.wants_entries()
    }

    fn has_room(&self, name: usize) -> bool {
        self.sink.has_room(name)
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        (self.push)(self.sink, entry)
    }
}
