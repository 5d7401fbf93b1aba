//! What every long-running job needs, whatever it offers: it gives up what it does not use, can be stopped from
//! outside, and leaves nothing behind.
//!
//! - [`running`]: a job as a value, in threads of its own; its starter stops it and waits for it.
//! - [`mounted`]: a mount of this process, from its creation to its removal.
//! - [`guard`]: a child that cleans up after a job, even after SIGKILL; [`guarded`] finds a job through that child.
//! - [`confinement`]: what a thread keeps before it serves anybody. [`descriptors`]: how many files it may open.
//! - [`named`]: what the user names, through no link that another user planted.
//! - [`new_file`]: a file that gets its name when it is complete. [`FileLock`]: one that is locked.
//! - [`Events`]: receives what happens during a job.
//! - [`trust`]: directories of this user that no other user can redirect; [`state`]: the one for what outlives a job.
//!
//! No module here knows what is served, or by which wire. [`guard`] is the exception: a FUSE mount needs its guard before the mount
//! exists, so `guard` makes that mount itself; and it empties the loop device of an archive that the kernel serves.
//!
//! ```
//! use inarch_lifecycle::{Events, counted};
//!
//! let events = Events::new(|line: String| assert_eq!(line, "2 files were served"));
//! events.emit(format!("{} were served", counted(2_u32, "file", "files")));
//! ```

#![forbid(unsafe_code)]

pub mod confinement;
pub mod descriptors;
mod error;
mod events;
mod file_lock;
pub mod guard;
pub mod guarded;
pub mod mounted;
pub mod named;
pub mod new_file;
mod path_error;
pub mod running;
pub mod scratch;
pub mod state;
mod text;
pub mod trust;

pub use error::LifecycleError;
pub use events::Events;
pub use file_lock::FileLock;
pub use path_error::PathError;
pub use text::{counted, shown};
