//! Requests that wait for a lock. They keep no thread: who serves them asks again when a lock may have become free.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

/// Requests of one connection that may wait at a time.
const MOST: usize = 1024;

/// How soon those who wait ask again although nobody told them to, and the latest: programs of the host tell nobody when
/// they give a lock back.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// Who waits, and what happened that concerns them.
#[derive(Debug, Default)]
pub struct Parked {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether nobody waits for the answer any more, by the request's number.
    waiting: HashMap<u64, bool>,
    /// How often a lock may have become free, or there was another reason to ask again.
    changes: u64,
}

impl Parked {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request waits, for the first time or still; `ENOLCK` if too many do.
    pub fn keep(&self, unique: u64) -> Result<(), Errno> {
        let mut state = self.state();
        if state.waiting.len() >= MOST && !state.waiting.contains_key(&unique) {
            return Err(Errno::NOLCK);
        }
        state.waiting.entry(unique).or_insert(false);
        Ok(())
    }

    /// A request has an answer.
    pub fn end(&self, unique: u64) {
        self.state().waiting.remove(&unique);
    }

    /// Nobody waits for its answer any more.
    pub fn interrupt(&self, unique: u64) {
        let waits = self.state().waiting.get_mut(&unique).map(|interrupted| *interrupted = true).is_some();
        if waits {
            self.change();
        }
    }

    /// Whether that was said of it.
    pub fn is_interrupted(&self, unique: u64) -> bool {
        self.state().waiting.get(&unique).copied().unwrap_or(false)
    }

    /// Nobody waits at all.
    pub fn clear(&self) {
        self.state().waiting.clear();
        self.change();
    }

    /// Has those who wait ask again.
    pub fn change(&self) {
        self.state().changes += 1;
        self.changed.notify_all();
    }

    /// How often that was so.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Waits until it was so more often than `seen`, or for so long.
    pub fn wait(&self, seen: u64, patience: Option<Duration>) {
        let same = |state: &mut State| state.changes == seen;
        match patience {
            None => drop(self.changed.wait_while(self.state(), same)),
            Some(patience) => drop(self.changed.wait_timeout_while(self.state(), patience, same)),
        }
    }
}

/// When to ask again.
#[derive(Debug)]
pub struct Pause(Duration);

impl Default for Pause {
    /// Soon.
    fn default() -> Pause {
        Pause(FIRST_PAUSE)
    }
}

impl Pause {
    /// For how long to wait this time; the next time it is longer.
    pub fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LAST_PAUSE);
        now
    }
}
