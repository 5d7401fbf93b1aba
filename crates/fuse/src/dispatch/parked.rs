//! Parks requests that wait for a lock, so that they block no thread: they are executed again when a lock may have
//! become free.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

/// The most parked requests of one connection.
const MOST: usize = 1024;

/// The shortest and longest pause between unprompted retries. They are needed because nothing tells us when a program
/// on the host releases a lock.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// The parked requests, and the events that wake them.
#[derive(Debug, Default)]
pub struct Parked {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Parked requests by number; true if the request was interrupted.
    waiting: HashMap<u64, bool>,
    /// Counts the events after which parked requests must be tried again.
    changes: u64,
}

impl Parked {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parks a request, or keeps it parked; `ENOLCK` if too many are parked.
    pub fn keep(&self, unique: u64) -> Result<(), Errno> {
        let mut state = self.state();
        if state.waiting.len() >= MOST && !state.waiting.contains_key(&unique) {
            return Err(Errno::NOLCK);
        }
        state.waiting.entry(unique).or_insert(false);
        Ok(())
    }

    /// Removes a request that has been answered.
    pub fn end(&self, unique: u64) {
        self.state().waiting.remove(&unique);
    }

    /// Marks a parked request as interrupted.
    pub fn interrupt(&self, unique: u64) {
        let waits = self.state().waiting.get_mut(&unique).map(|interrupted| *interrupted = true).is_some();
        if waits {
            self.change();
        }
    }

    /// Whether a parked request was interrupted.
    pub fn is_interrupted(&self, unique: u64) -> bool {
        self.state().waiting.get(&unique).copied().unwrap_or(false)
    }

    /// Removes all requests.
    pub fn clear(&self) {
        self.state().waiting.clear();
        self.change();
    }

    /// Wakes the threads that retry parked requests.
    pub fn change(&self) {
        self.state().changes += 1;
        self.changed.notify_all();
    }

    /// The number of events so far.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Waits until there were more events than `seen`, or until `patience` runs out.
    pub fn wait(&self, seen: u64, patience: Option<Duration>) {
        let same = |state: &mut State| state.changes == seen;
        match patience {
            None => drop(self.changed.wait_while(self.state(), same)),
            Some(patience) => drop(self.changed.wait_timeout_while(self.state(), patience, same)),
        }
    }
}

/// The pause before the next retry.
#[derive(Debug)]
pub struct Pause(Duration);

impl Default for Pause {
    /// The shortest pause.
    fn default() -> Pause {
        Pause(FIRST_PAUSE)
    }
}

impl Pause {
    /// Returns this pause, and makes the next one longer.
    pub fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LAST_PAUSE);
        now
    }
}
