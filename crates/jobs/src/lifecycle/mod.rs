//! What every long job needs, whatever it offers: it keeps no more than it uses, is stopped from outside, and leaves nothing behind.
//!
//! - [`running`]: a job as a value, in threads of its own, which its starter stops and waits for.
//! - [`mounted`]: a mount of this process's, from when it is there until it is taken away.
//! - [`guard`]: a child that clears away what a job leaves, even after SIGKILL; [`guarded`] finds a job by that child.
//! - [`confinement`]: what a thread keeps within reach before it serves anybody. [`descriptors`]: how many files it may open.
//! - [`trust`]: directories of this user's that nobody else can lead elsewhere; [`state`]: the one with what outlives a job.
//!
//! Nothing here knows what is served, or by which wire.

pub(crate) mod confinement;
pub(crate) mod descriptors;
mod error;
pub(crate) mod guard;
pub(crate) mod guarded;
pub(crate) mod mounted;
pub(crate) mod running;
pub(crate) mod state;
pub(crate) mod trust;

pub use error::LifecycleError;
