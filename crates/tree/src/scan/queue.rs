//! A work-sharing queue of the directories still to be read.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Each worker keeps its tasks on a stack of its own, and gives some away only when another worker has none.
#[derive(Debug)]
pub(super) struct Queue<T> {
    shared: Mutex<Vec<T>>,
    wake: Condvar,
    /// The workers that have been announced and not ended.
    workers: AtomicUsize,
    waiting: AtomicUsize,
    done: AtomicBool,
    /// Signalled at the end.
    ended: Condvar,
    /// Whether the first workers must pass their tasks on and end.
    relieved: AtomicBool,
}

impl<T> Queue<T> {
    /// A queue for `workers` workers that contains `first`.
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

    /// Waits for the end, `time` at most; returns false if work remains.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let going_on = |_: &mut Vec<T>| !self.done.load(Ordering::Relaxed);
        let waited = self.ended.wait_timeout_while(self.lock(), time, going_on).unwrap_or_else(PoisonError::into_inner);
        !waited.1.timed_out()
    }

    /// Starts the change to `others` further workers: each of the first workers passes its tasks on and ends when it
    /// asks for its next task. Returns false if no work remains.
    pub(super) fn relieve(&self, others: usize) -> bool {
        let _shared = self.lock();
        if self.done.load(Ordering::Relaxed) {
            return false;
        }
        self.workers.fetch_add(others, Ordering::Relaxed);
        self.relieved.store(true, Ordering::Relaxed);
        // Workers that wait for tasks end too.
        self.wake.notify_all();
        true
    }

    /// So many of the workers that were announced do not come.
    pub(super) fn do_without(&self, missing: usize) {
        let _shared = self.lock();
        self.workers.fetch_sub(missing, Ordering::Relaxed);
        // One that waits may be the last one.
        self.wake.notify_all();
    }

    /// A worker ends and passes its tasks on.
    fn leave(&self, shared: &mut Vec<T>, local: &mut Vec<T>) {
        shared.append(local);
        self.workers.fetch_sub(1, Ordering::Relaxed);
        self.wake.notify_all();
    }

    /// The next task of the worker that owns `local`: its youngest, or one that another worker gave away. Waits while
    /// others may still give some. `None` when no task remains, after [`Queue::stop`], and for a `first` worker after
    /// [`Queue::relieve`].
    pub(super) fn next(&self, local: &mut Vec<T>, first: bool) -> Option<T> {
        if self.done.load(Ordering::Relaxed) {
            return None;
        }
        if first && self.relieved.load(Ordering::Relaxed) {
            self.leave(&mut self.lock(), local);
            return None;
        }
        if self.waiting.load(Ordering::Relaxed) > 0 && local.len() > 1 {
            // The oldest tasks are nearest to the root, and so usually the largest subtrees.
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

    /// Makes every worker end after its current task.
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

    #[test]
    fn workers_that_do_not_come_are_not_waited_for() {
        for patience in [0, 20] {
            let (queue, done) = (Queue::new(3, 1), Mutex::new(BTreeSet::new()));
            thread::scope(|scope| {
                let only = scope.spawn(|| work(&queue, &done, false));
                queue.wait(Duration::from_millis(patience));
                queue.do_without(2);
                assert_eq!(only.join().unwrap(), (1 << DEPTH) - 1);
            });
        }
    }
}
