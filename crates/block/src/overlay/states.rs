//! [`ClusterStates`]: the state of each cluster of an overlay, two bits each, in chunks allocated on demand.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Clusters of a chunk: their states fill one 4 KiB page, in memory and in a kept overlay.
pub(super) const CHUNK_CLUSTERS: u64 = 16384;
/// Words of a chunk, each with 32 clusters of two bits, the lowest first.
pub(super) const CHUNK_WORDS: usize = 512;
const WORD_CLUSTERS: u64 = 32;
/// The lower bit of each pair.
const LOW_BITS: u64 = 0x5555_5555_5555_5555;

/// Where a cluster's content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Below the overlay: never written or discarded.
    Base = 0,
    /// In the overlay's file.
    Written = 1,
    /// Zeros, whatever the file holds there.
    Zero = 2,
}

impl State {
    fn from_bits(bits: u64) -> State {
        match bits & 3 {
            1 => State::Written,
            2 => State::Zero,
            _ => State::Base,
        }
    }

    /// The word in which every cluster has this state.
    fn word(self) -> u64 {
        LOW_BITS * self as u64
    }
}

const ALL_BASE: u8 = 0;
const ALL_ZERO: u8 = 1;
const MIXED: u8 = 2;

/// `form` says whether `words` counts; a chunk whose clusters all have the same state needs none.
#[derive(Debug, Default)]
struct Chunk {
    form: AtomicU8,
    changed: AtomicBool,
    words: OnceLock<Box<[AtomicU64]>>,
}

/// The state of every cluster. Any thread reads without locks; one thread at a time changes a chunk.
///
/// A state is stored (release) after its data is in the file, and loaded (acquire) before that data is read.
#[derive(Debug)]
pub(super) struct ClusterStates {
    chunks: Box<[Chunk]>,
    written: AtomicU64,
}

impl ClusterStates {
    pub(super) fn new(clusters: u64) -> ClusterStates {
        let chunks = clusters.div_ceil(CHUNK_CLUSTERS);
        ClusterStates { chunks: (0..chunks).map(|_| Chunk::default()).collect(), written: AtomicU64::new(0) }
    }

    /// Clusters whose content is in the overlay's file.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// The state of `cluster`, and for how many clusters (at least 1, at most `limit`) it is the same.
    pub(super) fn run(&self, cluster: u64, limit: u64) -> (State, u64) {
        let (state, mut count) = self.run_in_chunk(cluster);
        while count < limit {
            let (next, more) = self.run_in_chunk(cluster + count);
            if next != state {
                break;
            }
            count += more;
        }
        (state, count.min(limit).max(1))
    }

    fn run_in_chunk(&self, cluster: u64) -> (State, u64) {
        let within = cluster % CHUNK_CLUSTERS;
        let Some(chunk) = self.chunks.get((cluster / CHUNK_CLUSTERS) as usize) else {
            return (State::Base, u64::MAX - cluster);
        };
        let words = match (chunk.form.load(Ordering::Acquire), chunk.words.get()) {
            (MIXED, Some(words)) => words,
            (ALL_ZERO, _) => return (State::Zero, CHUNK_CLUSTERS - within),
            _ => return (State::Base, CHUNK_CLUSTERS - within),
        };
        let mut at = within;
        let mut found = None;
        for word in words.iter().skip((within / WORD_CLUSTERS) as usize) {
            let bits = word.load(Ordering::Acquire) >> (2 * (at % WORD_CLUSTERS));
            let left = WORD_CLUSTERS - at % WORD_CLUSTERS;
            let state = *found.get_or_insert(State::from_bits(bits));
            // Zero pairs of the difference are clusters in the same state; the pairs shifted in do not count.
            let same = u64::from((bits ^ state.word()).trailing_zeros() / 2).min(left);
            at += same;
            if same < left {
                break;
            }
        }
        (found.unwrap_or(State::Base), at - within)
    }

    /// Sets the state of `clusters`. The caller holds the locks of all their chunks.
    pub(super) fn set(&self, clusters: Range<u64>, state: State) {
        let mut at = clusters.start;
        while at < clusters.end {
            let index = at / CHUNK_CLUSTERS;
            let end = clusters.end.min((index + 1) * CHUNK_CLUSTERS);
            if let Some(chunk) = self.chunks.get(index as usize) {
                self.set_in_chunk(chunk, at % CHUNK_CLUSTERS..at % CHUNK_CLUSTERS + (end - at), state);
            }
            at = end;
        }
    }

    fn set_in_chunk(&self, chunk: &Chunk, clusters: Range<u64>, state: State) {
        let form = chunk.form.load(Ordering::Relaxed);
        if state == State::Zero {
            if form == ALL_ZERO {
                return;
            }
            if clusters == (0..CHUNK_CLUSTERS) {
                let words = chunk.words.get().filter(|_| form == MIXED);
                let were =
                    words.map_or(0, |words| words.iter().map(|word| count_written(word.load(Ordering::Relaxed))).sum());
                self.written.fetch_sub(were, Ordering::Relaxed);
                chunk.form.store(ALL_ZERO, Ordering::Release);
                chunk.changed.store(true, Ordering::Release);
                return;
            }
        }
        let words = chunk.words.get_or_init(|| (0..CHUNK_WORDS).map(|_| AtomicU64::new(0)).collect());
        if form != MIXED {
            let word = if form == ALL_ZERO { State::Zero.word() } else { State::Base.word() };
            words.iter().for_each(|slot| slot.store(word, Ordering::Relaxed));
        }
        let mut at = clusters.start;
        while at < clusters.end {
            let Some(word) = words.get((at / WORD_CLUSTERS) as usize) else { break };
            let end = clusters.end.min((at / WORD_CLUSTERS + 1) * WORD_CLUSTERS);
            let mask = (u64::MAX >> (2 * (WORD_CLUSTERS - (end - at)))) << (2 * (at % WORD_CLUSTERS));
            let before = word.load(Ordering::Relaxed);
            let after = before & !mask | state.word() & mask;
            word.store(after, Ordering::Release);
            self.written.fetch_add(count_written(after), Ordering::Relaxed);
            self.written.fetch_sub(count_written(before), Ordering::Relaxed);
            at = end;
        }
        chunk.form.store(MIXED, Ordering::Release);
        chunk.changed.store(true, Ordering::Release);
    }

    /// Whether chunk `index` changed since the last call.
    pub(super) fn take_changed(&self, index: usize) -> bool {
        self.chunks
            .get(index)
            .is_some_and(|chunk| chunk.changed.load(Ordering::Relaxed) && chunk.changed.swap(false, Ordering::AcqRel))
    }

    /// Makes the next [`ClusterStates::take_changed`] of chunk `index` true.
    pub(super) fn mark_changed(&self, index: usize) {
        if let Some(chunk) = self.chunks.get(index) {
            chunk.changed.store(true, Ordering::Release);
        }
    }

    pub(super) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// The states of chunk `index` as a kept overlay stores them.
    pub(super) fn to_words(&self, index: usize) -> [u64; CHUNK_WORDS] {
        let mut out = [0; CHUNK_WORDS];
        let Some(chunk) = self.chunks.get(index) else { return out };
        match (chunk.form.load(Ordering::Acquire), chunk.words.get()) {
            (MIXED, Some(words)) => {
                out.iter_mut().zip(words.iter()).for_each(|(out, word)| *out = word.load(Ordering::Acquire));
            }
            (ALL_ZERO, _) => out.fill(State::Zero.word()),
            _ => {}
        }
        out
    }

    /// Sets the states of chunk `index` from a kept overlay. Returns false if a pair is not a valid state.
    pub(super) fn load_words(&self, index: usize, stored: &[u64; CHUNK_WORDS]) -> bool {
        if stored.iter().any(|word| word & (word >> 1) & LOW_BITS != 0) {
            return false;
        }
        let Some(chunk) = self.chunks.get(index) else { return false };
        let form = if stored.iter().all(|word| *word == State::Zero.word()) {
            ALL_ZERO
        } else if stored.iter().all(|word| *word == 0) {
            ALL_BASE
        } else {
            let words = chunk.words.get_or_init(|| (0..CHUNK_WORDS).map(|_| AtomicU64::new(0)).collect());
            words.iter().zip(stored).for_each(|(slot, word)| slot.store(*word, Ordering::Relaxed));
            self.written.fetch_add(stored.iter().map(|word| count_written(*word)).sum(), Ordering::Relaxed);
            MIXED
        };
        chunk.form.store(form, Ordering::Release);
        true
    }
}

fn count_written(word: u64) -> u64 {
    u64::from((word & !(word >> 1) & LOW_BITS).count_ones())
}
