//! A bounded cache of decompressed blocks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Blocks of one set. Small, so that a search is a few comparisons and locks are rarely shared.
const WAYS: usize = 8;

/// Blocks by where they lie on disk: set-associative, each set with the block used last at its end.
pub(crate) struct Cache<T> {
    sets: Box<[Set<T>]>,
}

type Entries<T> = Vec<(u64, Arc<T>)>;
type Set<T> = Mutex<Entries<T>>;

impl<T> Cache<T> {
    /// A cache of about `blocks` blocks.
    pub(crate) fn new(blocks: usize) -> Cache<T> {
        Cache { sets: (0..(blocks / WAYS).max(1)).map(|_| Mutex::default()).collect() }
    }

    pub(crate) fn get(&self, key: u64) -> Option<Arc<T>> {
        let mut set = self.set(key)?;
        let at = set.iter().position(|(known, _)| *known == key)?;
        if let Some(rest) = set.get_mut(at..) {
            rest.rotate_left(1);
        }
        set.last().map(|(_, block)| Arc::clone(block))
    }

    /// Keeps `block`, in the place of the one of its set that was not used for the longest time.
    pub(crate) fn put(&self, key: u64, block: Arc<T>) {
        let Some(mut set) = self.set(key) else { return };
        set.retain(|(known, _)| *known != key);
        if set.len() >= WAYS {
            set.remove(0);
        }
        set.push((key, block));
    }

    fn set(&self, key: u64) -> Option<MutexGuard<'_, Entries<T>>> {
        // Neighbours go into different sets: the upper half of a product depends on every bit of the key.
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let set = self.sets.get(mixed as usize % self.sets.len())?;
        Some(set.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_used_longest_ago_leaves() {
        let cache = Cache::new(WAYS);
        for key in 0..WAYS as u64 {
            cache.put(key, Arc::new(key));
        }
        assert_eq!(cache.get(0).as_deref(), Some(&0));
        cache.put(100, Arc::new(100));
        assert_eq!(cache.get(1), None);
        for key in [0, 2, 7, 100] {
            assert_eq!(cache.get(key).as_deref(), Some(&key));
        }
    }
}
