//! Encodes directory listings.

use inarch_vfs::{DirectoryEntry, DirectorySink};
use zerocopy::IntoBytes;

use super::reply::entry;
use super::structs::{Dirent, EntryOut};

/// The entries of a directory, up to the size of the kernel's buffer.
pub struct DirectoryList<'b> {
    buffer: &'b mut Vec<u8>,
    /// The size of the kernel's buffer.
    limit: usize,
    /// Whether entries carry their attributes (`READDIRPLUS`).
    plus: bool,
}

impl<'b> DirectoryList<'b> {
    /// An empty list in `buffer`.
    pub fn new(buffer: &'b mut Vec<u8>, limit: usize, plus: bool) -> DirectoryList<'b> {
        buffer.clear();
        DirectoryList { buffer, limit, plus }
    }

    /// The length of the list with one more entry, if that fits.
    fn end_with(&self, name: usize) -> Option<usize> {
        let plus = if self.plus { size_of::<EntryOut>() } else { 0 };
        let length = (plus + size_of::<Dirent>()).checked_add(name)?.checked_next_multiple_of(8)?;
        self.buffer.len().checked_add(length).filter(|end| *end <= self.limit)
    }
}

impl DirectorySink for DirectoryList<'_> {
    fn wants_entries(&self) -> bool {
        self.plus
    }

    fn has_room(&self, name: usize) -> bool {
        self.end_with(name).is_some()
    }

    fn push(&mut self, listed: &DirectoryEntry<'_>) -> bool {
        let Some(end) = self.end_with(listed.name.len()) else { return false };
        let dirent = Dirent {
            ino: listed.inode,
            off: listed.next,
            namelen: listed.name.len() as u32,
            // As in struct dirent: the file type bits of a mode, shifted.
            kind: (listed.mode >> 12) & 0xf,
        };
        if self.plus {
            // A node number of 0 means that this entry counts as no look-up.
            let out = listed.entry.as_ref().map(entry).unwrap_or_default();
            self.buffer.extend_from_slice(out.as_bytes());
        }
        self.buffer.extend_from_slice(dirent.as_bytes());
        self.buffer.extend_from_slice(listed.name);
        self.buffer.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_never_cut() {
        let entry = DirectoryEntry { inode: 2, next: 1, mode: 0o100600, name: b"disk.raw2", entry: None };
        let mut buffer = Vec::new();
        let mut list = DirectoryList::new(&mut buffer, 100, false);
        assert!(list.push(&entry) && list.push(&entry));
        assert!(!list.has_room(entry.name.len()) && !list.push(&entry));
        assert_eq!(buffer.len(), 2 * 40);
        assert_eq!(buffer[16..24], [9, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(buffer[24..40], *b"disk.raw2\0\0\0\0\0\0\0");
        let mut list = DirectoryList::new(&mut buffer, 168, true);
        assert!(list.has_room(16) && !list.has_room(17));
        assert!(list.push(&entry) && !list.push(&entry));
        assert_eq!(buffer.len(), 168);
    }
}
