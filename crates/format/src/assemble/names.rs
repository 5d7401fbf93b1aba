//! The names of all directories in one table, found by directory and name.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use hashbrown::HashTable;

/// No node, or no entry.
pub(super) const NONE: u32 = u32::MAX;

/// A name in a directory. It stays when its node is removed, and then has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    name: u32,
    /// The directory's node.
    parent: u32,
    /// What it names, or [`NONE`].
    pub(super) node: u32,
    /// The layer that named it last.
    pub(super) layer: u32,
    /// The entry of the same directory that was added before, or [`NONE`].
    pub(super) previous: u32,
    length: u16,
}

/// All names. The hash has a random key, so that no archive can provoke collisions; its order is not visible
/// anywhere.
#[derive(Debug)]
pub(super) struct Names {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    table: HashTable<u32>,
    hasher: RandomState,
}

impl Names {
    pub(super) fn new() -> Names {
        Names { entries: Vec::new(), bytes: Vec::new(), table: HashTable::new(), hasher: RandomState::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of all names.
    pub(super) fn byte_count(&self) -> usize {
        self.bytes.len()
    }

    /// The entry of that index, which [`Names::find`], [`Names::add`] or a directory gave.
    pub(super) fn entry(&self, index: u32) -> &Entry {
        static NOTHING: Entry = Entry { name: 0, parent: NONE, node: NONE, layer: 0, previous: NONE, length: 0 };
        self.entries.get(index as usize).unwrap_or(&NOTHING)
    }

    pub(super) fn name(&self, entry: &Entry) -> &[u8] {
        name_of(&self.bytes, entry)
    }

    /// The entry of that name, whether it names anything or not.
    pub(super) fn find(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let same = |index: &u32| {
            let entry = self.entry(*index);
            entry.parent == parent && self.name(entry) == name
        };
        self.table.find(self.hash(parent, name), same).copied()
    }

    /// Adds a name that [`Names::find`] does not find; `None` if the table is full. Names have 1 to [`NAME_MAX`](inarch_tree::NAME_MAX) bytes.
    pub(super) fn add(&mut self, parent: u32, name: &[u8], node: u32, layer: u32, previous: u32) -> Option<u32> {
        let index = u32::try_from(self.entries.len()).ok().filter(|index| *index < NONE)?;
        let length = u16::try_from(name.len()).ok()?;
        let start = u32::try_from(self.bytes.len()).ok()?;
        let hash = self.hash(parent, name);
        self.bytes.extend_from_slice(name);
        self.entries.push(Entry { name: start, parent, node, layer, previous, length });
        let Names { entries, bytes, table, hasher } = self;
        table.insert_unique(hash, index, |index| {
            let entry = entries.get(*index as usize);
            entry.map_or(0, |entry| hasher.hash_one((entry.parent, name_of(bytes, entry))))
        });
        Some(index)
    }

    pub(super) fn set(&mut self, index: u32, node: u32, layer: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            (entry.node, entry.layer) = (node, layer);
        }
    }

    /// Drops the hash table: only lookups by index follow.
    pub(super) fn drop_table(&mut self) {
        self.table = HashTable::new();
    }

    fn hash(&self, parent: u32, name: &[u8]) -> u64 {
        self.hasher.hash_one((parent, name))
    }
}

fn name_of<'a>(bytes: &'a [u8], entry: &Entry) -> &'a [u8] {
    bytes.get(entry.name as usize..entry.name as usize + usize::from(entry.length)).unwrap_or_default()
}
