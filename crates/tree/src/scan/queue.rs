//! The directories still to be read, shared between workers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Work that each worker keeps on a stack of its own and gives away only when another has none.
#[derive(Debug)]
pub(super) struct Queue<T> {
    shared: Mutex<Vec<T>>,
    wake: Condvar,
    workers: usize,
    waiting: AtomicUsize,
    done: AtomicBool,
}

impl<T> Queue<T> {
    /// A queue for `workers` workers that holds `first`.
    pub(super) fn new(workers: usize, first: T) -> Queue<T> {
        Queue {
            shared: Mutex::new(vec![first]),
            wake: Condvar::new(),
            workers,
            waiting: AtomicUsize::new(0),
            done: AtomicBool::new(false),
        }
    }

    /// The next task of the worker that owns `local`: its youngest, or one that another gave away. Waits while
    /// others may still give some; `None` when there is nothing left, or after [`Queue::stop`].
    pub(super) fn next(&self, local: &mut Vec<T>) -> Option<T> {
        if self.done.load(Ordering::Relaxed) {
            return None;
        }
        if self.waiting.load(Ordering::Relaxed) > 0 && local.len() > 1 {
            // The oldest tasks are nearest to the root: the largest subtrees, as a rule.
            let mut shared = self.lock();
            shared.extend(local.drain(..local.len() / 2));
            self.wake.notify_one();
        }
        if let Some(task) = local.pop() {
            return Some(task);
        }
        let mut shared = self.lock();
        loop {
            if self.done.load(Ordering::Relaxed) {
                return None;
            }
            if !shared.is_empty() {
                let half = shared.len() / 2;
                local.extend(shared.drain(half..));
                return local.pop();
            }
            if self.waiting.load(Ordering::Relaxed) + 1 == self.workers {
                self.done.store(true, Ordering::Relaxed);
                self.wake.notify_all();
                return None;
            }
            self.waiting.fetch_add(1, Ordering::Relaxed);
            shared = self.wake.wait(shared).unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Lets every worker end after the task it is at.
    pub(super) fn stop(&self) {
        let _shared = self.lock();
        self.done.store(true, Ordering::Relaxed);
        self.wake.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
