//! A cache of decompressed pieces, bounded in bytes; the oldest go first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes to cache; one piece has at most 12 MiB.
const CAPACITY: usize = 32 << 20;

/// A piece: its file, and where in that it starts.
pub(super) type Key = (u64, u64);

/// The cache of one image.
#[derive(Default)]
pub(super) struct Cache(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    pieces: HashMap<Key, Arc<[u8]>>,
    /// The keys, the oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

impl Cache {
    /// The piece, if cached.
    pub(super) fn get(&self, key: Key) -> Option<Arc<[u8]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pieces.get(&key).cloned()
    }

    /// Caches a piece.
    pub(super) fn put(&self, key: Key, piece: &Arc<[u8]>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.pieces.insert(key, piece.clone()).is_some() {
            // Two threads missed it at once.
            return;
        }
        kept.order.push_back(key);
        kept.bytes += piece.len();
        while kept.bytes > CAPACITY
            && let Some(oldest) = kept.order.pop_front()
        {
            let dropped = kept.pieces.remove(&oldest);
            kept.bytes -= dropped.map_or(0, |piece| piece.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_no_more_is_kept_than_the_capacity() {
        let cache = Cache::default();
        let piece: Arc<[u8]> = vec![7; 10 << 20].into();
        for start in 0..4 {
            cache.put((1, start), &piece);
            cache.put((1, start), &piece);
        }
        assert!(cache.get((1, 0)).is_none());
        assert_eq!(cache.get((1, 1)).unwrap().len(), 10 << 20);
        assert_eq!(cache.0.lock().unwrap().bytes, 30 << 20);
        assert_eq!(cache.0.lock().unwrap().pieces.len(), 3);
    }
}
