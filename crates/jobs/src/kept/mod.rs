//! Runs whose writes are kept under a name.
//!
//! 1. `run --keep NAME` makes a folder in the store ([`store`]) and locks it. For each tree that the guest can write to
//!    it keeps the overlay and the tree as it was ([`base`]), so that the disk can be made again when the host's tree
//!    is another one; and what was run, when and how it ended ([`record`]).
//! 2. A later run over the same trees goes on with the overlay. If a tree is no longer what it was the run is refused,
//!    and says what changed.
//! 3. `diff` makes the disks again without a machine, reads the guest's file system from them ([`guest`]), and compares it
//!    with the tree as it was ([`diff`], [`patch`]).
//! 4. `apply` brings the differences into the host's tree ([`apply`]).

mod apply;
mod base;
mod bytes;
mod diff;
mod guest;
mod list;
mod owners;
mod patch;
mod record;
mod spent;
mod store;

pub use apply::{ApplyReport, ApplyRequest, apply};
pub(crate) use base::Base;
pub(crate) use bytes::Bytes;
pub use diff::{ChangeReport, RunDiff, diff};
pub(crate) use guest::Reopened;
pub use list::{RunReport, RunState, TreeReport, discard, runs};
pub(crate) use owners::OwnersBack;
pub use patch::FileStat;
pub(crate) use record::{KeptTree, Record};
pub(crate) use spent::settle;
pub(crate) use store::{KeptRun, Store, now};
