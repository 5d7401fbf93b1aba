//! 128-bit digests with random keys, to compare values without storing them.

use std::hash::{BuildHasher, Hash, RandomState};

/// Makes digests.
#[derive(Debug, Default)]
pub struct Digest {
    keys: [RandomState; 2],
}

impl Digest {
    /// The digest of a value.
    pub fn of(&self, thing: impl Hash) -> u128 {
        let [low, high] = self.keys.each_ref().map(|key| u128::from(key.hash_one(&thing)));
        high << 64 | low
    }
}
