//! [`Pending`]: a device that may still be under construction.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// A device that another thread is still making, so that a machine can boot meanwhile. Requests wait until it is
/// complete, or fail if it cannot be made.
pub struct Pending<D> {
    outcome: OnceLock<Result<Arc<D>, String>>,
    waiting: Mutex<()>,
    changed: Condvar,
}

impl<D> Pending<D> {
    /// A device that does not exist yet.
    pub fn new() -> Pending<D> {
        Pending { outcome: OnceLock::new(), waiting: Mutex::new(()), changed: Condvar::new() }
    }

    /// A device that exists already.
    pub fn ready(device: Arc<D>) -> Pending<D> {
        let pending = Pending::new();
        pending.set(Ok(device));
        pending
    }

    /// Sets the device, or the reason why there will be none. Only the first call counts.
    pub fn set(&self, outcome: Result<Arc<D>, String>) {
        // An earlier outcome stays: requests may have been answered from it.
        let _ = self.outcome.set(outcome);
        self.wake();
    }

    /// Waits for the device.
    ///
    /// # Errors
    /// The reason given to [`Pending::set`] why there is none.
    pub fn wait(&self) -> Result<Arc<D>, String> {
        let mut guard = self.lock();
        loop {
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The outcome, if there is one yet.
    pub fn get(&self) -> Option<Result<&D, &str>> {
        self.outcome.get().map(|outcome| outcome.as_deref().map_err(String::as_str))
    }

    /// Waits until there is an outcome or `stop` returns true; calls `stop` again after each [`Pending::wake`]. Returns
    /// whether there is an outcome.
    pub fn wait_unless(&self, stop: impl Fn() -> bool) -> bool {
        if self.outcome.get().is_some() {
            return true;
        }
        let mut guard = self.lock();
        loop {
            if self.outcome.get().is_some() {
                return true;
            }
            if stop() {
                return false;
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes waiting threads call their `stop` again.
    pub fn wake(&self) {
        let _guard = self.lock();
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D> Default for Pending<D> {
    fn default() -> Self {
        Pending::new()
    }
}
