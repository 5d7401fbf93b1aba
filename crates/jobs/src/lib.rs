//! What each command does, from its sources to its offering.
//!
//! The house's one-way flow is wired here and nowhere else: a source is scanned into a tree, a format plans the tree
//! into a block map, the map becomes a device, and the device is offered on a socket, to a guest of ours ([`run`])
//! or of somebody else ([`serve`]).

//! A job that goes on is a value: it is started, tells its events, and is waited for. A program that embeds a run:
//!
//! ```no_run
//! use inarch_jobs::Events;
//! use inarch_jobs::run::{self, RunRequest, Streams};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let command = ["make", "check"].map(Into::into).to_vec();
//!     let request = RunRequest { net: true, ..RunRequest::new(command, Streams::of_process()?) };
//!     let running = run::start(request, Events::new(|event| eprintln!("{event}")))?;
//!     let report = running.wait();
//!     for tree in &report.trees {
//!         println!("{} by {}: {:?}", tree.source, tree.way, tree.disk);
//!     }
//!     println!("{:?} after {:.1} s", report.result?, report.phases.total);
//!     Ok(())
//! }
//! ```
//!
//! A server ([`serve`]) is started in the same way, gives the lines that say how to use it, and serves until it is stopped.
//! Servers and mounts start this program's own file again, as the process that clears away what they leave when they are
//! killed: a program that embeds them calls [`serve::guard()`] first, as `crates/cli/src/main.rs` does.

#![forbid(unsafe_code)]

mod device;
mod disk;
pub mod doctor;
mod error;
mod events;
pub mod image;
pub mod kept;
mod lifecycle;
pub mod mount;
mod notes;
mod path_error;
pub mod plan;
mod record;
pub mod run;
mod say;
pub mod serve;
pub mod share;
pub mod source;
mod text;
mod upper;

pub use device::Writes;
pub use disk::FileSystem;
pub use disk::room::RoomError;
pub use error::JobError;
pub use events::Events;
pub use inarch_confine::heed_children;
pub use lifecycle::LifecycleError;
pub use lifecycle::confinement::Sandbox;
pub use lifecycle::trust::Obstacle;
pub use path_error::PathError;
pub use say::{limited, say, wait_for_no_reader};
pub use text::{counted, shown};
