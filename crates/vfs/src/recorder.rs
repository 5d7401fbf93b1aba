//! A layer that tells of each access: what was looked for, found, opened, read, listed and changed, what failed, by which path
//! and by which process.
//!
//! 1. The layer ([`Recorder`]) has the request executed by what is below it, and puts what it was and what came of it into a
//!    queue, by numbers of nodes. That is all that a request waits for, unless the queue is full: then it waits for room, with no
//!    lock held, so that nothing is ever left out.
//! 2. A thread takes what is in the queue ([`Recording::write_to`]). It knows by which names nodes were found, makes paths of
//!    their numbers, and gives each access to an [`AccessSink`]. Causes are in the queue before their effects: a client can use a
//!    node only after the answer that gave it, which comes after the queue has it.
//! 3. If the sink fails, the recording has ended: every request from then on fails with `EIO`, so that nothing is done that
//!    nobody wrote down and nobody misses.
//!
//! Nothing that passes is changed but for how long it may be kept. How long that is depends on the [`RecordLevel`].

mod access;
mod layer;
mod paths;
mod queue;
mod recording;
mod seen;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use access::{Access, AccessKind, AccessSink, Identity};
pub use layer::Recorder;
pub use recording::Recording;

/// What is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordLevel {
    /// What was done at all: each access once, and nobody's. The client keeps what it may, and reads and writes files by itself:
    /// its first look at anything is seen if it knew nothing before, as with a mount that is new.
    Command,
    /// Every access, and whose it is. The client must ask each time, or the second process to look for a name would not be seen.
    Process,
}

fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
