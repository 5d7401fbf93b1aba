//! How a layer passes a directory's entries on to whoever asked it for them.

use crate::{DirectoryEntry, DirectorySink};

/// A sink of which room and wishes are another one's; what is done with an entry on its way there is the layer's.
pub(crate) struct PassingOn<'s, P> {
    sink: &'s mut dyn DirectorySink,
    push: P,
}

impl<'s, P: FnMut(&mut dyn DirectorySink, &DirectoryEntry<'_>) -> bool> PassingOn<'s, P> {
    /// Has `push` pass each entry on to `sink`, and say as [`DirectorySink::push`] does whether there was room for it.
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
