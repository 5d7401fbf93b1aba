//! What each command does, from its sources to its offering.
//!
//! The house's one-way flow is wired here and nowhere else: a source is scanned into a tree, a format plans the tree
//! into a block map, the map becomes a device, and the device is offered on a socket, to a guest of ours ([`run`])
//! or of somebody else ([`serve`]).

#![forbid(unsafe_code)]

mod confinement;
mod descriptors;
mod device;
pub mod doctor;
mod error;
mod identity;
pub mod image;
pub mod kept;
pub mod mount;
mod notes;
pub mod plan;
mod record;
mod room;
pub mod run;
pub mod serve;
pub mod share;
pub mod source;
mod state;
mod trust;
mod upper;

pub use confinement::Sandbox;
pub use device::{FileSystem, Writes};
pub use error::JobError;
pub use inarch_confine::heed_children;
pub use notes::{counted, say, shown};
