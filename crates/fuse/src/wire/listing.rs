//! Lists of directories, as the kernel takes them.

use inarch_vfs::{DirectoryEntry, DirectorySink, Entry, NodeId};
use zerocopy::IntoBytes;

use super::reply::entry;
use super::structs::{Dirent, EntryOut};

/// Most subdirectories of a directory that is listed because somebody may come there: each has to be looked up later, for it is
/// listed without its attributes.
const FEW: usize = 2;

/// Why a directory is listed.
#[derive(Debug, PartialEq, Eq)]
pub enum Occasion {
    /// A program does so, and may be followed to what is in it.
    Program {
        /// Whether it is.
        is_followed: bool,
    },
    /// A program has looked for this name there, and its answer may wait for the listing.
    Search(Box<[u8]>),
    /// A program is likely to come there.
    Walk,
}

/// A subdirectory: its node number and its name.
pub type Subdirectory = (NodeId, Box<[u8]>);

/// The entries of a directory, until the kernel's buffer is full.
///
/// In a listing that is ahead of who wants it, directories have no attributes with them, nor has the name that was looked for.
pub struct DirectoryList<'b> {
    buffer: &'b mut Vec<u8>,
    /// Bytes that the kernel takes.
    limit: usize,
    /// Whether entries have their attributes with them (`READDIRPLUS`).
    plus: bool,
    occasion: Occasion,
    /// Subdirectories so far.
    directories: usize,
    /// Those that a program may be followed to.
    leading_on: Vec<Subdirectory>,
    /// Nodes that the file system has counted a lookup of, and the kernel knows nothing of.
    untold: Vec<NodeId>,
    /// Those of a walk's listing that it is told of, if it is given.
    told: Vec<NodeId>,
}

impl<'b> DirectoryList<'b> {
    /// An empty list in `buffer`.
    pub fn new(buffer: &'b mut Vec<u8>, limit: usize, plus: bool, occasion: Occasion) -> DirectoryList<'b> {
        buffer.clear();
        let (leading_on, untold, told) = (Vec::new(), Vec::new(), Vec::new());
        DirectoryList { buffer, limit, plus, occasion, directories: 0, leading_on, untold, told }
    }

    /// Whether this is a listing for a walk that is better left to the program itself.
    pub fn is_refused(&self) -> bool {
        self.occasion == Occasion::Walk && self.directories > FEW
    }

    /// The subdirectories that a program was told of, of which no more than few lie in each; and the nodes that the kernel is not
    /// told of, which is all of a list that is refused.
    pub fn end(mut self) -> (Vec<Subdirectory>, Vec<NodeId>) {
        if self.is_refused() {
            self.untold.append(&mut self.told);
        }
        (self.leading_on, self.untold)
    }

    /// Where the list ends with one more entry, if there is room for it.
    fn end_with(&self, name: usize) -> Option<usize> {
        let plus = if self.plus { size_of::<EntryOut>() } else { 0 };
        let length = (plus + size_of::<Dirent>()).checked_add(name)?.checked_next_multiple_of(8)?;
        self.buffer.len().checked_add(length).filter(|end| *end <= self.limit)
    }

    /// What the kernel is told of an entry beside its name.
    fn tell<'e>(&mut self, listed: &'e DirectoryEntry<'_>) -> Option<&'e Entry> {
        let entry = listed.entry.as_ref();
        let is_directory = listed.mode & libc::S_IFMT == libc::S_IFDIR && !matches!(listed.name, b"." | b"..");
        self.directories += usize::from(is_directory);
        let is_told = match &self.occasion {
            Occasion::Program { .. } => true,
            Occasion::Search(name) => !is_directory && **name != *listed.name,
            Occasion::Walk => !is_directory,
        };
        let entry = entry?;
        if !is_told {
            self.untold.push(entry.node);
            return None;
        }
        match self.occasion {
            Occasion::Program { is_followed: true } if is_directory && leads_to_few(entry) => {
                self.leading_on.push((entry.node, listed.name.into()));
            }
            Occasion::Walk => self.told.push(entry.node),
            Occasion::Program { .. } | Occasion::Search(_) => {}
        }
        Some(entry)
    }
}

/// Whether few subdirectories lie in a directory, as far as its links tell: each is one, but on some file systems a directory has
/// just one. What is mounted there is another file system's.
fn leads_to_few(directory: &Entry) -> bool {
    directory.attributes.links as usize <= 2 + FEW && !directory.attributes.is_submount
}

impl DirectorySink for DirectoryList<'_> {
    fn wants_entries(&self) -> bool {
        self.plus
    }

    fn is_ahead(&self) -> bool {
        !matches!(self.occasion, Occasion::Program { .. })
    }

    fn has_room(&self, name: usize) -> bool {
        !self.is_refused() && self.end_with(name).is_some()
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
            // A node number of 0 means that there is no lookup with it.
            let out = self.tell(listed).map(entry).unwrap_or_default();
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

    /// Nobody goes ahead.
    const NOBODY: Occasion = Occasion::Program { is_followed: false };

    #[test]
    fn entries_are_padded_and_never_cut() {
        let entry = DirectoryEntry { inode: 2, next: 1, mode: 0o100600, name: b"disk.raw2", entry: None };
        let mut buffer = Vec::new();
        let mut list = DirectoryList::new(&mut buffer, 100, false, NOBODY);
        assert!(list.push(&entry) && list.push(&entry));
        assert!(!list.has_room(entry.name.len()) && !list.push(&entry));
        assert_eq!(buffer.len(), 2 * 40);
        assert_eq!(buffer[16..24], [9, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(buffer[24..40], *b"disk.raw2\0\0\0\0\0\0\0");
        let mut list = DirectoryList::new(&mut buffer, 168, true, NOBODY);
        assert!(list.has_room(16) && !list.has_room(17));
        assert!(list.push(&entry) && !list.push(&entry));
        assert_eq!(buffer.len(), 168);
    }

    /// A list of these, and what is left to be told or forgotten: each with its node number, name, whether it is a directory, and links.
    fn list(occasion: Occasion, entries: &[(u64, &str, bool, u32)]) -> (bool, Vec<Subdirectory>, Vec<NodeId>) {
        let mut buffer = Vec::new();
        let mut list = DirectoryList::new(&mut buffer, 1 << 16, true, occasion);
        for (node, name, is_directory, links) in entries {
            let mode = if *is_directory { libc::S_IFDIR } else { libc::S_IFREG };
            let attributes = inarch_vfs::Attributes { mode, links: *links, ..inarch_vfs::Attributes::default() };
            let valid = std::time::Duration::ZERO;
            let entry = Entry { node: NodeId(*node), generation: 0, valid, attributes };
            if !list.has_room(name.len()) {
                break;
            }
            let name = name.as_bytes();
            assert!(list.push(&DirectoryEntry { inode: *node, next: *node, mode, name, entry: Some(entry) }));
        }
        let is_refused = list.is_refused();
        let (leading_on, untold) = list.end();
        (is_refused, leading_on, untold)
    }

    #[test]
    fn a_program_is_told_of_all_and_may_go_on_to_what_has_few_directories() {
        let entries = [(2, "file", false, 1), (3, "few", true, 4), (4, "many", true, 5), (5, "one", true, 1)];
        let (is_refused, leading_on, untold) = list(Occasion::Program { is_followed: true }, &entries);
        assert!(!is_refused && untold.is_empty());
        assert_eq!(leading_on, [(NodeId(3), b"few"[..].into()), (NodeId(5), b"one"[..].into())]);
        assert_eq!(list(NOBODY, &entries), (false, vec![], vec![]));
    }

    #[test]
    fn who_is_ahead_is_told_of_no_directory_nor_of_what_is_looked_for() {
        let entries = [(2, "file", false, 1), (3, "few", true, 2), (4, "other", false, 1)];
        let name = || Occasion::Search(b"other"[..].into());
        assert_eq!(list(name(), &entries), (false, vec![], vec![NodeId(3), NodeId(4)]));
        assert_eq!(list(Occasion::Walk, &entries), (false, vec![], vec![NodeId(3)]));
    }

    #[test]
    fn nobody_goes_ahead_where_many_directories_are() {
        let entries = [(2, "a", true, 2), (3, "b", false, 1), (4, "c", true, 2), (5, "d", true, 2), (6, "e", false, 1)];
        let (is_refused, leading_on, mut untold) = list(Occasion::Walk, &entries);
        untold.sort();
        assert!(is_refused && leading_on.is_empty());
        assert_eq!(untold, [2, 3, 4, 5].map(NodeId));
    }
}
