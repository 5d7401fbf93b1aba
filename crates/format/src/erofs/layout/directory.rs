//! Directories: which names are in which block.

use std::cmp::Ordering;
use std::ops::Range;

use inarch_tree::{Entries, Entry, FileType, InodeId, Tree};

use crate::erofs::spec::BLOCK_SIZE;
use crate::erofs::spec::directory::DIRENT_SIZE;

/// A directory's names in their order, `.` and `..` among them.
#[derive(Clone)]
pub(crate) struct Listing<'a> {
    entries: Entries<'a>,
    /// The places of `.` and `..`.
    dots: [usize; 2],
    next: usize,
    end: usize,
    directory: InodeId,
    parent: InodeId,
}

impl<'a> Listing<'a> {
    /// The whole listing of a directory.
    pub(crate) fn new(tree: &'a Tree, directory: InodeId) -> Listing<'a> {
        let entries = tree.entries(directory);
        let before = |name: &[u8]| lower_bound(&entries, name);
        let dots = [before(b"."), before(b"..") + 1];
        let end = entries.len() + 2;
        Listing { entries, dots, next: 0, end, directory, parent: tree.parent(directory) }
    }

    /// The names at `places`.
    pub(crate) fn part(&self, places: Range<usize>) -> Listing<'a> {
        Listing { next: places.start, end: places.end.min(self.end), ..self.clone() }
    }
}

impl<'a> Iterator for Listing<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        if self.next >= self.end {
            return None;
        }
        let place = self.next;
        self.next += 1;
        let [dot, dots] = self.dots;
        match (place.cmp(&dot), place.cmp(&dots)) {
            (Ordering::Equal, _) => Some(Entry { name: b".", inode: self.directory }),
            (_, Ordering::Equal) => Some(Entry { name: b"..", inode: self.parent }),
            (Ordering::Less, _) => self.entries.get(place),
            (_, Ordering::Less) => self.entries.get(place - 1),
            _ => self.entries.get(place - 2),
        }
    }
}

/// How many entries sort before `name`.
fn lower_bound(entries: &Entries<'_>, name: &[u8]) -> usize {
    let (mut low, mut high) = (0, entries.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match entries.get(middle) {
            Some(entry) if entry.name < name => low = middle + 1,
            _ => high = middle,
        }
    }
    low
}

/// A directory of more than one block.
#[derive(Clone, Copy, Debug)]
struct Large {
    inode: InodeId,
    /// Where its blocks but the first begin, in [`Directories::starts`]; they end where the next one's begin.
    first: u32,
}

/// How the listings of a tree's directories are cut into blocks.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    /// Ascending by inode.
    large: Vec<Large>,
    /// The place of each block's first name in its directory's listing.
    starts: Vec<u32>,
}

impl Directories {
    /// Takes in an inode, if it is a directory; they come in the order of their ids.
    pub(crate) fn add(&mut self, tree: &Tree, id: InodeId) {
        if tree.inode(id).file_type() != FileType::Directory {
            return;
        }
        let first = self.starts.len() as u32;
        let mut room = BLOCK_SIZE;
        for (place, entry) in Listing::new(tree, id).enumerate() {
            let size = DIRENT_SIZE + entry.name.len();
            if size > room {
                self.starts.push(place as u32);
                room = BLOCK_SIZE;
            }
            room -= size;
        }
        if self.starts.len() as u32 > first {
            self.large.push(Large { inode: id, first });
        }
    }

    /// Where the blocks of a directory but the first begin.
    fn starts(&self, id: InodeId) -> &[u32] {
        let Ok(at) = self.large.binary_search_by_key(&id, |large| large.inode) else { return &[] };
        let first = self.large.get(at).map_or(0, |large| large.first as usize);
        let end = self.large.get(at + 1).map_or(self.starts.len(), |large| large.first as usize);
        self.starts.get(first..end).unwrap_or_default()
    }

    /// The names in block `block` of a directory.
    pub(crate) fn block<'a>(&self, tree: &'a Tree, id: InodeId, block: u64) -> Listing<'a> {
        let starts = self.starts(id);
        let start_of = |block: u64| match block.checked_sub(1) {
            None => Some(0),
            Some(index) => starts.get(index as usize).map(|start| *start as usize),
        };
        let (start, end) = (start_of(block), start_of(block + 1));
        Listing::new(tree, id).part(start.unwrap_or(usize::MAX)..end.unwrap_or(usize::MAX))
    }

    /// Bytes of a directory: whole blocks, and those in use of the last.
    pub(crate) fn size(&self, tree: &Tree, id: InodeId) -> u64 {
        let last = self.starts(id).len() as u64;
        let used: usize = self.block(tree, id, last).map(|entry| DIRENT_SIZE + entry.name.len()).sum();
        last * BLOCK_SIZE as u64 + used as u64
    }
}
