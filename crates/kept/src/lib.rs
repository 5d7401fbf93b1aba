//! Kept runs: runs whose writes are kept under a name.
//!
//! 1. `run --keep NAME` creates and locks a folder in the store ([`store`]). For each writable tree it stores the
//!    host's tree and an overlay ([`files`]), and also what was run, when, and how it ended ([`record`]).
//! 2. When the command has ended, or before the next use of a killed run, the disk is made again without a machine,
//!    and the guest's changes are folded into a layer over the host's tree ([`fold`](mod@fold)).
//! 3. A later command scans the host's trees as they are then, and merges the layer over them ([`layered`]).
//! 4. `diff` compares host and layer ([`guest`], [`diff`](mod@diff), [`stat`], [`patch`]).
//! 5. `apply` brings the differences into the host's tree ([`apply`](mod@apply)).
//!
//! ```no_run
//! use inarch_kept::{KeptError, Store};
//!
//! # fn main() -> Result<(), KeptError> {
//! for name in Store::of_user()?.names()? {
//!     println!("{name}");
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod apply;
mod beside;
mod bytes;
pub mod change;
mod clock;
mod diff;
pub mod disk_space;
mod durable;
mod error;
mod files;
mod fold;
mod fold_note;
mod guest;
mod guest_disk;
mod layered;
mod limits;
mod list;
mod own;
mod owners;
mod patch;
mod record;
mod remade;
pub mod same;
mod show;
mod side;
mod spent;
#[cfg(test)]
mod staged;
mod stat;
mod store;
mod volume;

pub use apply::{ApplyReport, ApplyRequest, Done, apply};
pub use bytes::Bytes;
pub use clock::now;
pub use diff::{RunDiff, diff};
pub use error::KeptError;
pub use fold::fold;
pub use fold_note::FoldNote;
pub use guest_disk::{GuestDisk, WrittenDisk};
pub use layered::{KeptBase, Layered};
pub use list::{RunReport, RunState, TreeReport, discard, names, runs};
pub use own::mount_points_in;
pub use owners::OwnersBack;
pub use record::{KeptTree, Record};
pub use show::show;
pub use spent::settle;
pub use stat::FileStat;
pub use store::{KeptRun, Store};
pub(crate) use volume::VolumeId;
