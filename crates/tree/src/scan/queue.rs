//! The directories still to be read, shared between workers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Work that each worker keeps on a stack of its own and gives away only when another has none.
#[derive(Debug)]
pub(super) struct Queue<T> {
    shared: Mutex<Vec<T>>,
    wake: Condvar,
    /// Those that have come and not left.
    workers: AtomicUsize,
    waiting: AtomicUsize,
    done: AtomicBool,
    /// Told when it is done.
    ended: Condvar,
    /// Whether the first workers are to leave what they have to others.
    relieved: AtomicBool,
}

impl<T> Queue<T> {
    /// A queue for `workers` workers that holds `first`.
    pub(super) fn new(workers: usize, first: T) -> Queue<T> {
        Queue {
            shared: Mutex::new(vec![first]),
            wake: Condvar::new(),
            workers: AtomicUsize::new(workers),
            waiting: AtomicUsize::new(0),
            done: AtomicBool::new(false),
            ended: Condvar::new(),
            relieved: AtomicBool::new(false),
        }
    }

    /// Waits for the end, `time` at most; false if there is still something to do.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let going_on = |_: &mut Vec<T>| !self.done.load(Ordering::Relaxed);
        let waited = self.ended.wait_timeout_while(self.lock(), time, going_on).unwrap_or_else(PoisonError::into_inner);
        !waited.1.timed_out()
    }

    /// Lets `others` workers come, to whom those that are there leave what they have, one after the other, when they come
    /// for their next task. False if there is nothing left to do.
    pub(super) fn relieve(&self, others: usize) -> bool {
        let _shared = self.lock();
        if self.done.load(Ordering::Relaxed) {
            return false;
        }
        self.workers.fetch_add(others, Ordering::Relaxed);
        self.relieved.store(true, Ordering::Relaxed);
        // Those that wait for work leave too.
        self.wake.notify_all();
        true
    }

    /// A worker leaves, and its tasks to others.
    fn leave(&self, shared: &mut Vec<T>, local: &mut Vec<T>) {
        shared.append(local);
        self.workers.fetch_sub(1, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// The next task of the worker that owns `local`: its youngest, or one that another gave away. Waits while
    /// others may still give some; `None` when there is nothing left, after [`Queue::stop`], and for a `first` worker
    /// after [`Queue::relieve`].
    pub(super) fn next(&self, local: &mut Vec<T>, first: bool) -> Option<T> {
        if self.done.load(Ordering::Relaxed) {
            return None;
        }
        if first && self.relieved.load(Ordering::Relaxed) {
            self.leave(&mut self.lock(), local);
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
            if first && self.relieved.load(Ordering::Relaxed) {
                self.leave(&mut shared, local);
                return None;
            }
            if !shared.is_empty() {
                let half = shared.len() / 2;
                local.extend(shared.drain(half..));
                return local.pop();
            }
            if self.waiting.load(Ordering::Relaxed) + 1 == self.workers.load(Ordering::Relaxed) {
                self.end();
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
        self.end();
    }

    fn end(&self) {
        self.done.store(true, Ordering::Relaxed);
        self.wake.notify_all();
        self.ended.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Every number below 2^DEPTH is a task that gives two more.
    const DEPTH: u32 = 12;

    fn work(queue: &Queue<u32>, done: &Mutex<BTreeSet<u32>>, first: bool) -> usize {
        let (mut local, mut count) = (Vec::new(), 0);
        while let Some(task) = queue.next(&mut local, first) {
            assert!(done.lock().unwrap().insert(task), "{task} twice");
            local.extend([2 * task, 2 * task + 1].into_iter().filter(|task| *task < 1 << DEPTH));
            count += 1;
            if first {
                thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(local.is_empty());
        count
    }

    #[test]
    fn workers_that_are_relieved_leave_everything_to_others() {
        for patience in [0, 3, 50] {
            let (queue, done) = (Queue::new(3, 1), Mutex::new(BTreeSet::new()));
            thread::scope(|scope| {
                let first: Vec<_> = (0..3).map(|_| scope.spawn(|| work(&queue, &done, true))).collect();
                assert!(!queue.wait(Duration::from_millis(patience)));
                assert!(queue.relieve(2));
                let others: Vec<_> = (0..2).map(|_| scope.spawn(|| work(&queue, &done, false))).collect();
                let slow: usize = first.into_iter().map(|worker| worker.join().unwrap()).sum();
                let quick: usize = others.into_iter().map(|worker| worker.join().unwrap()).sum();
                assert_eq!(slow + quick, (1 << DEPTH) - 1);
                assert!(slow < 1 << (DEPTH - 1), "{slow} by those that were relieved");
            });
            assert_eq!(done.lock().unwrap().len(), (1 << DEPTH) - 1);
            assert!(queue.wait(Duration::from_secs(10)) && !queue.relieve(1));
        }
    }
}
