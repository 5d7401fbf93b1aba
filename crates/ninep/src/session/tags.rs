//! [`Tags`]: a connection's requests in flight, and the flushes that wait for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Set when the client no longer waits for the request's reply.
pub type Cancelled = Arc<AtomicBool>;

/// A request in flight.
struct Live {
    cancelled: Cancelled,
    /// The tags of the `Tflush`es that are replied to after it.
    flushes: Vec<u16>,
}

/// All requests in flight.
#[derive(Default)]
pub struct Tags {
    live: Mutex<HashMap<u16, Live>>,
    ended: Condvar,
}

/// The result of a `Tflush`.
#[derive(Debug, PartialEq, Eq)]
pub enum Flushed {
    /// The request is not in flight: reply now.
    Nothing,
    /// The request was cancelled; its end replies to the flush.
    Live,
}

impl Tags {
    fn live(&self) -> MutexGuard<'_, HashMap<u16, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has arrived; `None` if one with its tag is in flight.
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

    /// The `Tflush` with `tag` cancels request `old`.
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

    /// A request has ended; returns the tags of the flushes that end with it, in the order of their replies.
    pub fn end(&self, tag: u16) -> Vec<u16> {
        let mut all = self.live();
        let mut answered = all.remove(&tag).map(|live| live.flushes).unwrap_or_default();
        let mut next = 0;
        // A flush may itself be flushed.
        while let Some(flush) = answered.get(next) {
            let further = all.remove(flush).map(|live| live.flushes).unwrap_or_default();
            answered.extend(further);
            next += 1;
        }
        self.ended.notify_all();
        answered
    }

    /// Cancels every request.
    pub fn cancel_all(&self) {
        self.live().values().for_each(|live| live.cancelled.store(true, Ordering::Release));
    }

    /// Waits until no request but the caller's own is in flight.
    pub fn wait_for_others(&self) {
        let mut all = self.live();
        while all.len() > 1 {
            all = self.ended.wait(all).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
