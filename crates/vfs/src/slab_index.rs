//! A hash index over a [`Slab`](crate::slab::Slab), by a key that its values contain.

use std::fmt;
use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

/// Places by the hash of a key. The hash is stored, the key is not, so growing the index does not touch the values.
#[derive(Default)]
pub struct SlabIndex {
    places: HashTable<(u32, u32)>,
    builder: DefaultHashBuilder,
}

impl fmt::Debug for SlabIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} places", self.places.len())
    }
}

/// The hash table uses the first and the last bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl SlabIndex {
    fn hash(&self, key: impl Hash) -> u32 {
        self.builder.hash_one(key) as u32
    }

    /// The place whose key satisfies `matches`.
    pub fn find(&self, key: impl Hash, matches: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = self.hash(key);
        self.places.find(spread(hash), |(other, place)| *other == hash && matches(*place)).map(|(_, place)| *place)
    }

    /// Adds a place; no other may have the same key.
    pub fn insert(&mut self, key: impl Hash, place: u32) {
        let hash = self.hash(key);
        self.places.insert_unique(spread(hash), (hash, place), |(hash, _)| spread(*hash));
    }

    /// Removes a place with this key.
    pub fn remove(&mut self, key: impl Hash, place: u32) {
        let hash = self.hash(key);
        if let Ok(entry) = self.places.find_entry(spread(hash), |(_, other)| *other == place) {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_found_until_it_is_taken_away() {
        let keys: Vec<String> = (0..5000).map(|number| format!("{number}")).collect();
        let mut index = SlabIndex::default();
        (0..).zip(&keys).for_each(|(place, key)| index.insert(key, place));
        let find = |index: &SlabIndex, key: &String| index.find(key, |place| keys.get(place as usize) == Some(key));
        (0..).zip(&keys).for_each(|(place, key)| assert_eq!(find(&index, key), Some(place)));
        (0..).zip(&keys).step_by(2).for_each(|(place, key)| index.remove(key, place));
        for (place, key) in (0..).zip(&keys) {
            assert_eq!(find(&index, key), (place % 2 == 1).then_some(place));
        }
        assert_eq!(index.find("none", |_| true), None);
    }
}
