//! An adapter that records each access: what was looked up, opened, read, listed and changed, what failed, by which
//! path and by which process.
//!
//! 1. [`Recorder`] passes a request on, and puts the request and its result into a queue, by node numbers. A request
//!    waits for nothing else, unless the queue is full. Then it waits for room without holding a lock, so nothing is
//!    ever left out.
//! 2. A thread takes messages from the queue ([`Recording::write_to`]). It knows the names of all nodes, turns
//!    numbers into paths, and gives each access to an [`AccessSink`]. A cause precedes its effects in the queue: a
//!    client can use a node only after the answer that gave it out, and that answer follows its message.
//! 3. If the sink fails, the recording ends, and every later request fails with `EIO`. So no access goes unrecorded
//!    unnoticed.
//!
//! Answers are passed on unchanged except for their TTLs and caching flags, which depend on the [`RecordLevel`].

mod access;
mod adapter;
mod queue;
mod recording;
mod seen;
#[cfg(test)]
mod tests;

pub use access::{Access, AccessKind, AccessSink, Identity, Listed};
pub use adapter::Recorder;
pub use recording::Recording;

/// How much detail is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordLevel {
    /// Each distinct access once, without its process. The client caches and uses passthrough. If it knew nothing
    /// before, as with a new mount, its first access to anything is recorded.
    Command,
    /// Every access with its process. The client must not cache, or a second process that looks up a name would go
    /// unseen.
    Process,
}
