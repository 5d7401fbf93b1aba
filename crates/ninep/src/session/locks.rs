//! Byte-range locks, and requests that wait for them.
//!
//! A request that waits for a lock has no thread. It is parked, and retried when a lock of any of the server's clients
//! is released, and now and then because of locks that the host's own programs release.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inarch_vfs::{Lock, LockKind, LockOwner};
use rustix::io::Errno;

use super::fids::Fid;
use super::tags::Cancelled;
use super::usage::{OpenFile, Use};
use crate::wire::{LockRange, lock};

/// How soon parked requests are retried without a notification; the interval doubles each time.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// The longest interval.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Notifies that a lock may have become free.
#[derive(Default)]
pub struct LockChanges {
    count: Mutex<u64>,
    changed: Condvar,
}

impl LockChanges {
    /// A lock may be free, or there is another reason to retry.
    pub fn changed(&self) {
        *self.count() += 1;
        self.changed.notify_all();
    }

    /// Waits until there were more changes than `seen`, at most `patience`; returns their number.
    pub fn wait(&self, seen: u64, patience: Option<Duration>) -> u64 {
        let count = self.count();
        let same = |count: &mut u64| *count == seen;
        match patience {
            None => *self.changed.wait_while(count, same).unwrap_or_else(PoisonError::into_inner),
            Some(patience) => {
                let waited = self.changed.wait_timeout_while(count, patience, same);
                *waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }

    fn count(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that waits for a lock.
pub struct Waiting {
    /// Its tag.
    pub tag: u16,
    /// Set when it is flushed.
    pub cancelled: Cancelled,
    /// The fid at the time of the request.
    pub fid: Fid,
    /// The owner of the lock.
    pub owner: LockOwner,
    /// The lock.
    pub lock: Lock,
}

impl Waiting {
    /// The file.
    pub fn file(&self) -> Result<&OpenFile, Errno> {
        open_file(&self.fid)
    }
}

/// The open file of a fid; `EBADF` if it is not open.
pub fn open_file(fid: &Fid) -> Result<&OpenFile, Errno> {
    match fid.usage.as_deref() {
        Some(Use::File(file)) => Ok(file),
        _ => Err(Errno::BADF),
    }
}

/// The parked requests of a connection.
#[derive(Default)]
pub struct WaitingLocks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Whether a thread retries them.
    attended: bool,
    /// Whether no request may be parked any more.
    ended: bool,
}

/// The result of parking a request.
pub enum Parked {
    /// Parked; the caller must start a thread that retries.
    FirstOne,
    /// Parked; a thread retries already.
    Attended,
    /// It was flushed before it could be parked: it ends without a reply.
    Flushed,
    /// Too many are parked.
    Full,
}

impl WaitingLocks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parks a request, if there are fewer than `most`.
    pub fn park(&self, waiting: Waiting, most: usize) -> Parked {
        let mut state = self.state();
        // Checked under the same lock under which a flush removes the request.
        if state.ended || waiting.cancelled.load(Ordering::Acquire) {
            return Parked::Flushed;
        }
        if state.waiting.len() >= most {
            return Parked::Full;
        }
        state.waiting.push(waiting);
        match std::mem::replace(&mut state.attended, true) {
            false => Parked::FirstOne,
            true => Parked::Attended,
        }
    }

    /// The thread could not be started.
    pub fn unattended(&self) {
        self.state().attended = false;
    }

    /// Removes the request with `tag`, if it is parked.
    pub fn take(&self, tag: u16) -> Option<Waiting> {
        let mut state = self.state();
        let at = state.waiting.iter().position(|waiting| waiting.tag == tag)?;
        Some(state.waiting.remove(at))
    }

    /// Removes all requests.
    pub fn take_all(&self) -> Vec<Waiting> {
        std::mem::take(&mut self.state().waiting)
    }

    /// Removes all requests and parks no more.
    pub fn end(&self) -> Vec<Waiting> {
        let mut state = self.state();
        state.ended = true;
        std::mem::take(&mut state.waiting)
    }

    /// Retries each request, in the order of arrival; removes and returns those for which `attempt` has an outcome.
    /// Also returns whether any is still parked, and whether parking has ended for good.
    pub fn try_each<T>(&self, attempt: impl Fn(&Waiting) -> Option<T>) -> (Vec<(Waiting, T)>, bool, bool) {
        let mut state = self.state();
        let mut decided = Vec::new();
        let mut waiting = Vec::new();
        for one in std::mem::take(&mut state.waiting) {
            match attempt(&one) {
                Some(outcome) => decided.push((one, outcome)),
                None => waiting.push(one),
            }
        }
        state.waiting = waiting;
        (decided, !state.waiting.is_empty(), state.ended)
    }
}

/// The intervals between retries.
pub struct Pause(Duration);

impl Pause {
    /// Starts with the shortest.
    pub fn new() -> Pause {
        Pause(FIRST_LOOK)
    }

    /// The next interval.
    pub fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LAST_LOOK);
        now
    }
}

/// Distinguishes processes of different connections and machines.
pub struct Owners {
    hasher: RandomState,
}

impl Owners {
    /// The owners of one connection.
    pub fn new() -> Owners {
        Owners { hasher: RandomState::new() }
    }

    /// The owner that a message names.
    pub fn owner(&self, range: &LockRange<'_>) -> LockOwner {
        LockOwner(self.hasher.hash_one((range.process, range.client)))
    }
}

/// The lock that a message describes; `EINVAL` if it is invalid.
pub fn lock_of(range: &LockRange<'_>) -> Result<Lock, Errno> {
    let kind = match range.kind {
        lock::SHARED => LockKind::Shared,
        lock::EXCLUSIVE => LockKind::Exclusive,
        lock::UNLOCK => LockKind::None,
        _ => return Err(Errno::INVAL),
    };
    const LAST: u64 = i64::MAX as u64;
    let end = match range.length {
        0 => u64::MAX,
        length => match range.start.checked_add(length - 1) {
            Some(end) if end < LAST => end,
            Some(LAST) => u64::MAX,
            _ => return Err(Errno::INVAL),
        },
    };
    if range.start > LAST {
        return Err(Errno::INVAL);
    }
    Ok(Lock { kind, start: range.start, end, pid: range.process, whole_file: false })
}

/// A lock as a message describes it.
pub fn range_of<'a>(lock: &Lock, client: &'a [u8]) -> LockRange<'a> {
    let kind = match lock.kind {
        LockKind::Shared => lock::SHARED,
        LockKind::Exclusive => lock::EXCLUSIVE,
        LockKind::None => lock::UNLOCK,
    };
    let length = if lock.end == u64::MAX { 0 } else { lock.end.saturating_sub(lock.start).saturating_add(1) };
    LockRange { kind, start: lock.start, length, process: lock.pid, client }
}
