//! An LRU cache of tables and decompressed clusters, bounded in bytes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most bytes to cache for an image and those below it. A decompressed cluster has at most 2 MiB.
const CAPACITY: usize = 32 << 20;

/// What is cached: the number of a file in the chain, where in it, and whether it was decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) file: u32,
    pub(crate) at: u64,
    pub(crate) unpacked: bool,
}

/// The cache of a chain of images.
pub(crate) struct Cache {
    kept: Mutex<Kept>,
    capacity: usize,
}

#[derive(Default)]
struct Kept {
    blocks: HashMap<Key, (u64, Arc<[u8]>)>,
    /// The keys by when they were used last.
    used: BTreeMap<u64, Key>,
    /// Counts uses.
    clock: u64,
    bytes: usize,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache::new(CAPACITY)
    }
}

impl Cache {
    /// At most `capacity` bytes.
    pub(crate) fn new(capacity: usize) -> Cache {
        Cache { kept: Mutex::default(), capacity }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block, if cached.
    pub(crate) fn get(&self, key: Key) -> Option<Arc<[u8]>> {
        let mut kept = self.kept();
        let Kept { blocks, used, clock, .. } = &mut *kept;
        let (last, block) = blocks.get_mut(&key)?;
        *clock += 1;
        used.remove(last);
        used.insert(*clock, key);
        *last = *clock;
        Some(Arc::clone(block))
    }

    /// Caches a block.
    pub(crate) fn put(&self, key: Key, block: &Arc<[u8]>) {
        let mut kept = self.kept();
        kept.clock += 1;
        let now = kept.clock;
        if let Some((last, old)) = kept.blocks.insert(key, (now, Arc::clone(block))) {
            // Two threads missed it at once.
            kept.used.remove(&last);
            kept.bytes -= old.len();
        }
        kept.used.insert(now, key);
        kept.bytes += block.len();
        while kept.bytes > self.capacity
            && let Some((_, oldest)) = kept.used.pop_first()
        {
            let dropped = kept.blocks.remove(&oldest);
            kept.bytes -= dropped.map_or(0, |(_, block)| block.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let cache = Cache::new(4000);
        let key = |at| Key { file: 0, at, unpacked: false };
        let block: Arc<[u8]> = vec![7; 1000].into();
        for at in 0..4 {
            cache.put(key(at), &block);
            cache.put(key(at), &block);
        }
        assert!(cache.get(key(0)).is_some());
        cache.put(key(4), &block);
        assert!(cache.get(key(1)).is_none());
        assert!([0, 2, 3, 4].into_iter().all(|at| cache.get(key(at)).is_some()));
        assert!(cache.get(Key { unpacked: true, ..key(0) }).is_none());
        cache.put(key(9), &vec![0; 5000].into());
        let kept = cache.kept();
        assert_eq!((kept.bytes, kept.blocks.len(), kept.used.len()), (0, 0, 0));
    }
}
