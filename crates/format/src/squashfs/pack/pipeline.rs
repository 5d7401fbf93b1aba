//! Threads that process pieces of files, and fragments, ahead of the writer.
//!
//! Results are returned in the order of the pieces, so the image does not depend on the number of threads. A window
//! bounds how far ahead they go.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::jobs::Jobs;
use super::work::{Done, Packed, Shared, Worker};

/// Work that is done or to be done.
struct State<'a> {
    jobs: Jobs<'a>,
    /// The number of the oldest job in `results`.
    first: u64,
    /// The jobs that were taken by threads, in their order, with their results where they are done.
    results: VecDeque<Option<io::Result<Vec<Done>>>>,
    /// Whether there are no further jobs.
    exhausted: bool,
    /// Fragments to be compressed.
    waiting: VecDeque<(u32, Vec<u8>)>,
    /// Fragments that were.
    fragments: BTreeMap<u32, io::Result<Packed>>,
    /// Whether the threads are to end.
    stopped: bool,
    /// Whether one ended by a panic.
    failed: bool,
}

/// What the writer and the threads share.
pub(super) struct Pipeline<'a> {
    state: Mutex<State<'a>>,
    /// There is work, or room for results.
    work: Condvar,
    /// There is a result.
    done: Condvar,
    /// Jobs at most that are taken and not given to the writer.
    window: usize,
}

/// Ends the threads when the writer is done, or gives up.
pub(super) struct StopOnDrop<'p, 'a>(pub(super) &'p Pipeline<'a>);

impl Drop for StopOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().stopped = true;
        self.0.work.notify_all();
    }
}

/// Tells the writer of a thread's panic.
struct PanicWatch<'p, 'a>(&'p Pipeline<'a>);

impl Drop for PanicWatch<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().failed = true;
            self.0.done.notify_all();
        }
    }
}

impl<'a> Pipeline<'a> {
    pub(super) fn new(jobs: Jobs<'a>, threads: usize) -> Pipeline<'a> {
        Pipeline {
            state: Mutex::new(State {
                jobs,
                first: 0,
                results: VecDeque::new(),
                exhausted: false,
                waiting: VecDeque::new(),
                fragments: BTreeMap::new(),
                stopped: false,
                failed: false,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
            window: 2 * threads + 8,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each thread does until the writer is done.
    pub(super) fn run(&self, shared: Shared<'_>) {
        let _watch = PanicWatch(self);
        let mut worker = Worker::new(shared);
        let mut state = self.lock();
        while !state.stopped {
            // Fragments first: the writer waits for the oldest.
            if let Some((number, bytes)) = state.waiting.pop_front() {
                drop(state);
                let packed = with(&mut worker, |worker| worker.pack(&bytes));
                state = self.lock();
                state.fragments.insert(number, packed);
                self.done.notify_one();
            } else if state.results.len() < self.window
                && !state.exhausted
                && let Some(pieces) = self.take(&mut state)
            {
                let number = state.first + state.results.len() as u64;
                state.results.push_back(None);
                drop(state);
                let done = with(&mut worker, |worker| pieces.iter().map(|piece| worker.run(piece)).collect());
                state = self.lock();
                let place = (number - state.first) as usize;
                if let Some(slot) = state.results.get_mut(place) {
                    *slot = Some(done);
                }
                // Only the oldest is waited for.
                if place == 0 {
                    self.done.notify_one();
                }
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// The next job; notes if there is none.
    fn take(&self, state: &mut State<'a>) -> Option<Vec<super::jobs::Piece>> {
        let next = state.jobs.next();
        if next.is_none() {
            state.exhausted = true;
            self.done.notify_one();
        }
        next
    }

    /// The result of the next job, in order; `None` behind the last.
    pub(super) fn next(&self) -> io::Result<Option<Vec<Done>>> {
        let mut state = self.lock();
        loop {
            if state.failed {
                return Err(panicked());
            }
            if state.results.is_empty() && state.exhausted {
                return Ok(None);
            }
            if let Some(result) = state.results.front_mut().and_then(Option::take) {
                state.results.pop_front();
                state.first += 1;
                self.work.notify_one();
                return result.map(Some);
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets a thread compress a fragment.
    pub(super) fn submit(&self, number: u32, bytes: Vec<u8>) {
        self.lock().waiting.push_back((number, bytes));
        self.work.notify_one();
    }

    /// A fragment that was submitted.
    pub(super) fn fragment(&self, number: u32) -> io::Result<Packed> {
        let mut state = self.lock();
        loop {
            if state.failed {
                return Err(panicked());
            }
            if let Some(result) = state.fragments.remove(&number) {
                return result;
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn panicked() -> io::Error {
    io::Error::other("a thread that compresses ended by a panic")
}

/// Works with a worker, if it could be made.
fn with<'a, T>(
    worker: &mut io::Result<Worker<'a>>,
    work: impl FnOnce(&mut Worker<'a>) -> io::Result<T>,
) -> io::Result<T> {
    match worker {
        Ok(worker) => work(worker),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}
