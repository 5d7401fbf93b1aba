//! Which of many things were met before, in a few bytes each: by numbers of 128 bits that are made of them with keys that nobody
//! knows. That two of ten million have the same one is less likely than that this machine's memory is wrong.

use std::hash::{BuildHasher, Hash, RandomState};

use hashbrown::HashTable;

/// Makes numbers.
#[derive(Debug, Default)]
pub struct Digest {
    keys: [RandomState; 2],
}

impl Digest {
    /// The number of a thing.
    pub fn of(&self, thing: impl Hash) -> u128 {
        let [low, high] = self.keys.each_ref().map(|key| u128::from(key.hash_one(&thing)));
        high << 64 | low
    }
}

/// What was met.
#[derive(Debug, Default)]
pub struct Seen {
    digest: Digest,
    met: HashTable<u128>,
}

impl Seen {
    /// A thing is met; true for the first time.
    pub fn is_new(&mut self, thing: impl Hash) -> bool {
        let number = self.digest.of(thing);
        // They are as good as random.
        let slot = |number: &u128| *number as u64;
        match self.met.entry(slot(&number), |met| *met == number, slot) {
            hashbrown::hash_table::Entry::Occupied(_) => false,
            hashbrown::hash_table::Entry::Vacant(vacant) => {
                vacant.insert(number);
                true
            }
        }
    }

    /// Bytes of memory that it takes.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.met.allocation_size()
    }
}
