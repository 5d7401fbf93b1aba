//! The jobs behind the commands: each connects a source to an offering.
//!
//! The one-way flow is wired here and nowhere else. A source becomes a tree, a format plans the tree into a block
//! map, the map becomes a device, and the device is served on a socket, to a guest that we run ([`run`]) or to
//! another machine ([`serve`]). Directories and archives are also mounted here ([`mount`]), and trees are written as
//! images ([`image`]).
//!
//! A long-running job is a value: it is started, sends its events, and its starter waits for it or stops it. The
//! library prints nothing, catches no signal that ends a program, and leaves the working directory alone. A program
//! that embeds a mount and a run:
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
//! A server ([`serve`]) is started in the same way and returns the lines that say how to use it; an image ([`image`])
//! reports its progress. Servers and mounts start this program's own file again as a child that cleans up after them
//! if they are killed. [`as_child`] does that child's work, and comes first in `main`.
//!
//! Crates below this one hold what several jobs need, and this one re-exports those that its callers see: [`source`] is what SRC
//! means, [`cache`] the store of caches, [`kept`] what is kept of runs. [`guest`] and [`trace`] are jobs that stand by themselves.
//! Each module uses only those before it in the list of `tests/rooms_know_only_those_below.rs`.

#![forbid(unsafe_code)]

pub mod appliance;
pub mod caches;
pub mod compare;
pub mod debian;
mod device;
pub mod doctor;
mod error;
pub mod image;
pub mod make_disk;
pub mod mount;
mod notes;
pub mod plan;
pub mod push;
pub mod run;
pub mod serve;
pub mod share;
pub mod shell;

pub use device::Writes;
pub use error::JobError;
pub use inarch_cache as cache;
pub use inarch_confine::{close_inherited, heed_children};
pub use inarch_format::disk::DiskFormat;
pub use inarch_guest as guest;
pub use inarch_guest::{examine, windows_registry};
pub use inarch_kept as kept;
pub use inarch_kept::change::ChangeReport;
pub use inarch_kept::disk_space::DiskSpaceError;
pub use inarch_lifecycle::confinement::Sandbox;
pub use inarch_lifecycle::descriptors::make_room_at_start;
pub use inarch_lifecycle::named::create_named;
pub use inarch_lifecycle::new_file::{NewFile, WholeFile};
pub use inarch_lifecycle::scratch::Scratch;
pub use inarch_lifecycle::trust::Obstacle;
pub use inarch_lifecycle::{Events, LifecycleError, PathError, counted, shown};
pub use inarch_source as source;
pub use inarch_trace as trace;
pub use inarch_vm::command::shell_word;
pub use notes::DiskNote;

/// Does this process's work if a job of this program started it as a child: waits for that job's end, and cleans up
/// after it. Returns the status to exit with; `None` if this is no such child. Call it before anything else.
pub fn as_child() -> Option<u8> {
    let words: Vec<_> = std::env::args_os().collect();
    match &words[..] {
        [_, word, rest @ ..] if word == serve::GUARD_ARGUMENT => Some(serve::guard(rest)),
        [_, word, rest @ ..] if word == trace::VIEW_ARGUMENT => Some(trace::become_command(rest)),
        [_, word] if word == appliance::ARGUMENT => Some(appliance::become_program()),
        [_, word, rest @ ..] if word == mount::USER_NAMESPACE_ARGUMENT => Some(mount::hold_user_namespace(rest)),
        _ => None,
    }
}
