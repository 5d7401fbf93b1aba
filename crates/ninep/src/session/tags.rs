//! A connection's requests in flight, and who waits for their end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Whether nobody waits for a request's answer any more.
pub type Cancelled = Arc<AtomicBool>;

/// A request in flight.
struct Live {
    cancelled: Cancelled,
    /// The tags of the `Tflush`es that are answered after it.
    flushes: Vec<u16>,
}

/// All of them.
#[derive(Default)]
pub struct Tags {
    live: Mutex<HashMap<u16, Live>>,
    ended: Condvar,
}

/// What a `Tflush` found.
#[derive(Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Nothing to wait for: it is answered now.
    Nothing,
    /// A request that is told to end, and whose end answers the flush.
    Live,
}

impl Tags {
    fn live(&self) -> MutexGuard<'_, HashMap<u16, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has arrived; none if one with its tag is in flight.
    pub fn begin(&self, tag: u16) -> Option<Cancelled> {
        let cancelled = Cancelled::default();
        let live = Live { cancelled: Arc::clone(&cancelled), flushes: Vec::new() };
        let mut all = self.live();
        if all.contains_key(&tag) {
            return None;
        }
        all.insert(tag, live);
        Some(cancelled)
    }

    /// `Tflush` with `tag` asks for the end of `old`.
    pub fn flush(&self, tag: u16, old: u16) -> Flushed {
        let mut all = self.live();
        match all.get_mut(&old) {
            Some(live) if old != tag => {
                live.flushes.push(tag);
                live.cancelled.store(true, Ordering::Release);
                Flushed::Live
            }
            _ => Flushed::Nothing,
        }
    }

    /// A request has ended; gives the tags of the flushes that end with it, in the order in which to answer them.
    pub fn end(&self, tag: u16) -> Vec<u16> {
        let mut all = self.live();
        let mut answered = all.remove(&tag).map(|live| live.flushes).unwrap_or_default();
        let mut next = 0;
        // A flush may have been flushed itself.
        while let Some(flush) = answered.get(next) {
            let further = all.remove(flush).map(|live| live.flushes).unwrap_or_default();
            answered.extend(further);
            next += 1;
        }
        self.ended.notify_all();
        answered
    }

    /// Tells every request to end.
    pub fn cancel_all(&self) {
        self.live().values().for_each(|live| live.cancelled.store(true, Ordering::Release));
    }

    /// Waits until no request is in flight but the caller's own.
    pub fn wait_for_others(&self) {
        let mut all = self.live();
        while all.len() > 1 {
            all = self.ended.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
