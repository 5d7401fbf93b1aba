//! What each command does, from its sources to its offering.
//!
//! The house's one-way flow is wired here and nowhere else: a source is scanned into a tree, a format plans the tree
//! into a block map, the map becomes a device, and the device is offered on a socket, to a guest of ours ([`run`])
//! or of somebody else ([`serve`]).
//!
//! A job that goes on is a value: it is started, tells its events, and is waited for or stopped. The library prints nothing, catches
//! no signal that ends a program, and leaves the working directory as it is. A program that embeds a mount and a run:
//!
//! ```no_run
//! use inarch_jobs::mount::{self, MountRequest};
//! use inarch_jobs::run::{self, RunRequest, Streams};
//! use inarch_jobs::source::Source;
//! use inarch_jobs::{Events, as_child};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     if let Some(status) = as_child() {
//!         std::process::exit(status.into());
//!     }
//!     let source = Source::parse("src.tar".as_ref())?;
//!     let mounted = mount::start(MountRequest::new(source, "/mnt".into()), Events::ignored())?;
//!     let command = ["make", "-C", "/mnt", "check"].map(Into::into).to_vec();
//!     let request = RunRequest { net: true, ..RunRequest::new(command, Streams::of_process()?) };
//!     let report = run::start(request, Events::new(|event| eprintln!("{event}")))?.wait();
//!     println!("{:?} after {:.1} s", report.result?, report.phases.total);
//!     mounted.stop();
//!     Ok(mounted.wait()?)
//! }
//! ```
//!
//! A server ([`serve`]) is started in the same way and gives the lines that say how to use it; an image ([`image`]) reports
//! its progress. Servers and mounts start this program's own file again, as the process that clears away what they leave when
//! they are killed: [`as_child`] does that process's work, and comes first in `main`.
//!
//! A module knows those below it, and no others: `lifecycle` is what every long job needs, [`source`] what SRC means, `disk` what
//! disks have in common, [`kept`] what is kept of runs; the others are the jobs. docs/ARCHITECTURE.md has the list, which
//! `tests/rooms_know_only_those_below.rs` checks.

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
pub use inarch_confine::{close_inherited, heed_children};
pub use lifecycle::LifecycleError;
pub use lifecycle::confinement::Sandbox;
pub use lifecycle::trust::Obstacle;
pub use path_error::PathError;
pub use text::{counted, shown};

/// What this process does if a job of this program started it: it waits until that job has ended, and clears away what is left of
/// it. Gives the status that the process is to end with; `None` if it is no such process. To be called before anything else.
pub fn as_child() -> Option<u8> {
    let words: Vec<_> = std::env::args_os().collect();
    match &words[..] {
        [_, word, rest @ ..] if word == serve::GUARD_ARGUMENT => Some(serve::guard(rest)),
        [_, word, rest @ ..] if word == mount::USER_NAMESPACE_ARGUMENT => Some(mount::hold_user_namespace(rest)),
        _ => None,
    }
}
