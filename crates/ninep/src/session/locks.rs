//! Locks of bytes in files, and those who wait for them.
//!
//! A request that waits for a lock has no thread. It is parked, and tried again when a lock of any of the server's clients
//! ends, and now and then, for the sake of locks that the host's own programs have.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inarch_vfs::{Lock, LockKind, LockOwner};
use rustix::io::Errno;

use super::fids::Fid;
use super::opened::{OpenFile, Use};
use super::tags::Cancelled;
use crate::wire::{LockRange, lock};

/// How soon those who wait look again although nobody told them to; twice as late each time.
const FIRST_LOOK: Duration = Duration::from_millis(10);
/// The latest.
const LAST_LOOK: Duration = Duration::from_millis(500);

/// Tells those who wait that a lock may have become free.
#[derive(Default)]
pub struct LockChanges {
    count: Mutex<u64>,
    changed: Condvar,
}

impl LockChanges {
    /// A lock may be free, or there is another reason to look.
    pub fn changed(&self) {
        *self.count() += 1;
        self.changed.notify_all();
    }

    /// Waits until there were more changes than `seen`, or for so long; gives how many there were.
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
    /// Whether it was flushed.
    pub cancelled: Cancelled,
    /// What the fid was when it was asked for.
    pub fid: Fid,
    /// Whose it is to be.
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

/// The file that a fid has open; `EBADF` if there is none.
pub fn open_file(fid: &Fid) -> Result<&OpenFile, Errno> {
    match fid.usage.as_deref() {
        Some(Use::File(file)) => Ok(file),
        _ => Err(Errno::BADF),
    }
}

/// Those of a connection who wait.
#[derive(Default)]
pub struct WaitingLocks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Whether a thread looks after them.
    attended: bool,
    /// Whether nobody may wait any more.
    ended: bool,
}

/// What became of a request that wants to wait.
pub enum Parked {
    /// It waits; a thread is needed that looks after it.
    FirstOne,
    /// It waits.
    Attended,
    /// It was flushed before it could wait: it ends without an answer.
    Flushed,
    /// Too many wait.
    Full,
}

impl WaitingLocks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a request wait, if there are fewer than `most`.
    pub fn park(&self, waiting: Waiting, most: usize) -> Parked {
        let mut state = self.state();
        // Looked at under the lock under which a flush takes it away.
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

    /// Nobody looks after them, after all.
    pub fn unattended(&self) {
        self.state().attended = false;
    }

    /// Takes away the one with `tag`, if it waits.
    pub fn take(&self, tag: u16) -> Option<Waiting> {
        let mut state = self.state();
        let at = state.waiting.iter().position(|waiting| waiting.tag == tag)?;
        Some(state.waiting.remove(at))
    }

    /// Takes all away.
    pub fn take_all(&self) -> Vec<Waiting> {
        std::mem::take(&mut self.state().waiting)
    }

    /// Takes all away, for ever.
    pub fn end(&self) -> Vec<Waiting> {
        let mut state = self.state();
        state.ended = true;
        std::mem::take(&mut state.waiting)
    }

    /// Tries each, in the order in which they came; takes away those of which `attempt` gives an outcome, and gives those.
    /// Also whether any still waits, and whether that is over for ever.
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

/// When to look again.
pub struct Pause(Duration);

impl Pause {
    /// Soon.
    pub fn new() -> Pause {
        Pause(FIRST_LOOK)
    }

    /// For how long to wait this time.
    pub fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LAST_LOOK);
        now
    }
}

/// Tells processes of different connections and machines apart.
pub struct Owners {
    hasher: RandomState,
}

impl Owners {
    /// Those of one connection.
    pub fn new() -> Owners {
        Owners { hasher: RandomState::new() }
    }

    /// The owner that a message means.
    pub fn owner(&self, range: &LockRange<'_>) -> LockOwner {
        LockOwner(self.hasher.hash_one((range.process, range.client)))
    }
}

/// The lock that a message means; `EINVAL` if there is no such.
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

/// What a message says of a lock.
pub fn range_of<'a>(lock: &Lock, client: &'a [u8]) -> LockRange<'a> {
    let kind = match lock.kind {
        LockKind::Shared => lock::SHARED,
        LockKind::Exclusive => lock::EXCLUSIVE,
        LockKind::None => lock::UNLOCK,
    };
    let length = if lock.end == u64::MAX { 0 } else { lock.end.saturating_sub(lock.start).saturating_add(1) };
    LockRange { kind, start: lock.start, length, process: lock.pid, client }
}
