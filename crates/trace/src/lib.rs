//! Runs a command over a private view of this machine's files, and records what it depends on and what it makes.
//!
//! 1. The command gets a mount namespace whose root is a FUSE mount of `/` ([`view`]). No other process sees that mount, and the
//!    kernel removes it with the last process in it, however this program ends.
//! 2. The session answers from the host's own files, through the recorder of `inarch-vfs` ([`serve`]). Writes go to those files,
//!    in place. Data of large and written files passes through the kernel, where it permits that.
//! 3. Each access is added to what is known of its path ([`Touched`]): whether what was there before the command was read, looked
//!    at, or missing, and what the command left there.
//! 4. When the last process is gone there is a [`TraceReport`]. Another run, in a view of nothing but the recorded inputs, can
//!    tell whether the record is complete ([`verify`]).

mod capture;
mod compare;
mod content;
mod depfile;
mod descriptors;
mod difference;
mod duty;
mod globs;
mod handle;
mod line_error;
mod lines;
mod minimise;
mod processes;
mod record;
mod serve;
mod state;
mod statistics;
mod stored;
mod touched;
mod verify;
mod view;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;

use inarch_lifecycle::LifecycleError;
use inarch_lifecycle::PathError;
use inarch_lifecycle::confinement::Sandbox;
use inarch_lifecycle::shown;

pub use capture::{Capture, Captured, NewCapture, Stream, Streams, is_joint};
pub use compare::{Mismatch, MismatchKind};
pub use depfile::{Dependencies, depfile};
pub use descriptors::{Inherited, standard_output};
pub use difference::{Difference, differences};
pub use duty::TraceEvent;
pub use globs::{Compared, Expectations, GlobError, Ignored};
pub use handle::{TraceHandle, start, start_with};
pub use inarch_vfs::RecordLevel;
pub use line_error::LineError;
pub use lines::lines;
pub use minimise::Minimised;
pub use processes::TracedProcess;
pub use record::{NewRecord, RecordFile, RecordRequest};
pub use state::{Earlier, NotRemembered, Run, State, StateError, Verdict};
pub use statistics::{Calls, Statistics};
pub use stored::{StoredInput, StoredOutput, StoredProcess, StoredTrace};
pub use touched::{Gathering, Input, MOST_BYTES, Output, Touched, Use, listed_beneath};
pub use verify::{Again, Different, Ended, Verification};
pub use view::{VIEW_ARGUMENT, become_command};

use inarch_upper::UpperError;

/// What to trace.
#[derive(Clone, Debug)]
pub struct TraceRequest {
    /// The program, found as the caller's environment says, and its arguments.
    pub command: Vec<OsString>,
    /// The detail.
    pub level: RecordLevel,
    /// Paths that lead past the recorder, besides those that always do: absolute, without symbolic links.
    pub outside: Vec<PathBuf>,
    /// Paths that are recorded, but left out of the report.
    pub ignored: Ignored,
    /// Whether the command is run again, to see whether the recorded inputs are all that it needs.
    pub verify: bool,
    /// The most further runs in which to search for inputs that the command does not need; `None` searches for none.
    pub minimise: Option<u32>,
    /// Whether the server confines itself.
    pub sandbox: Sandbox,
}

impl TraceRequest {
    /// Of this command, by default options.
    pub fn new(command: Vec<OsString>) -> TraceRequest {
        let (outside, ignored) = (Vec::new(), Ignored::default());
        let (level, sandbox) = (RecordLevel::Command, Sandbox::default());
        TraceRequest { command, level, outside, ignored, verify: false, minimise: None, sandbox }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct TraceReport {
    /// The command's.
    pub status: ExitStatus,
    /// Of a run: it ran out of time. Then the status says nothing.
    pub is_timed_out: bool,
    /// What it touched.
    pub touched: Touched,
    /// Paths whose content was not recorded.
    pub outside: Vec<PathBuf>,
    /// Open files that the command was given, which were not recorded either.
    pub inherited: Vec<Inherited>,
    /// The number of distinct accesses; with processes, of all.
    pub accesses: u64,
    /// The processes that used files, if they are recorded, in the order in which they were first seen.
    pub processes: Vec<TracedProcess>,
    /// Whether not all is known of them.
    pub lacks_processes: bool,
    /// What it cost; not known of a run.
    pub statistics: Statistics,
    /// Of a run: what is known of each tree; empty otherwise.
    pub trees: Vec<TracedTree>,
    /// Whether the recorded inputs are all that the command needs, if that was asked; or why that could not be found out.
    pub verification: Option<Result<Verification, TraceError>>,
    /// Whether all processes of the command had ended when the record did.
    pub is_complete: bool,
}

/// A tree of a traced run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedTree {
    /// Where the guest saw it.
    pub destination: PathBuf,
    /// How it reached the guest: ext4, virtiofs and so on.
    pub way: &'static str,
    /// What is known of its use.
    pub extent: Extent,
}

/// How much is known of the use of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Every access.
    All,
    /// Which files' content was read, at least in part.
    FilesRead,
}

impl Extent {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Extent::All => "all",
            Extent::FilesRead => "files read",
        }
    }
}

/// Why nothing was traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The job could not be started or stopped.
    #[error(transparent)]
    Lifecycle(#[from] LifecycleError),
    /// An operation on a path failed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A run that changes nothing has no place for its writes.
    #[error(transparent)]
    Upper(#[from] UpperError),
    /// The command cannot have a view.
    #[error("cannot give the command a view of its own: {0}")]
    View(inarch_mount::Refusal),
    /// The command was not executed.
    #[error("{reason}")]
    NotExecuted {
        /// The status that a shell would give: 127 not found, 126 cannot be executed, 125 anything else.
        status: u8,
        /// Why not.
        reason: String,
    },
    /// A signal ended the command before it was executed.
    #[error("a signal came before the command was executed ({0})")]
    Interrupted(ExitStatus),
    /// What a run for verification writes does not fit.
    #[error("no room is left in {} for what the command writes again; set TMPDIR to a directory with more", shown(.0))]
    NoRoom(PathBuf),
    /// The view was not served to the end, so the record has gaps.
    #[error("the files of the command could not be served any more: {0}")]
    Served(String),
}
