//! Remembers what was seen before, in a few bytes each: as 128-bit digests with random keys. A collision among ten
//! million of them is less likely than a memory error.

use std::hash::Hash;

use hashbrown::HashTable;

use crate::digest::Digest;

/// The set of digests.
#[derive(Debug, Default)]
pub struct Seen {
    digest: Digest,
    met: HashTable<u128>,
}

impl Seen {
    /// Adds a thing; returns true if it is new.
    pub fn is_new(&mut self, thing: impl Hash) -> bool {
        let number = self.digest.of(thing);
        // Digests are as good as random.
        let slot = |number: &u128| *number as u64;
        match self.met.entry(slot(&number), |met| *met == number, slot) {
            hashbrown::hash_table::Entry::Occupied(_) => false,
            hashbrown::hash_table::Entry::Vacant(vacant) => {
                vacant.insert(number);
                true
            }
        }
    }

    /// The memory in use, in bytes.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.met.allocation_size()
    }
}
