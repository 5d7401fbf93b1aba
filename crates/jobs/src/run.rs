//! A command in a virtual machine.
//!
//! 1. The request is resolved: which trees, which kernel, which user, where ([`trees`], [`guest`], [`command`]).
//! 2. Every tree's scan and plan begin in the background; its disk is served on one end of a socket pair, where the
//!    first request waits for the plan.
//! 3. QEMU starts with the other ends, a kernel and an initramfs in memory: nothing of a run has a name in any
//!    file system, so nothing can be left behind.
//! 4. The agent speaks; it gets the command, and the session relays streams and signals until it ends.
//! 5. QEMU is ended, and what the user should know is said: files that changed, a full overlay.

mod attempt;
mod command;
pub(crate) mod guest;
mod trees;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use inarch_block::Device;
use inarch_tree::scan::ScanOptions;
use inarch_vm::accel::{AccelChoice, Accel, Decision};

use crate::JobError;

/// What the guest has as its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// This machine's own.
    Host,
    /// Another directory.
    Directory(PathBuf),
    /// Nothing but the trees, and what the initramfs holds.
    None,
}

/// A tree besides the root.
#[derive(Clone, Debug)]
pub struct TreeMount {
    /// The host directory.
    pub source: PathBuf,
    /// Where the guest sees it; at the same path where there is none.
    pub destination: Option<PathBuf>,
    /// Writes fail, instead of being thrown away at the end.
    pub read_only: bool,
    /// What of it is taken.
    pub scan: ScanOptions,
}

/// What to run, in what guest.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// The guest's root.
    pub root: Root,
    /// What of the root is taken.
    pub root_scan: ScanOptions,
    /// Other trees.
    pub trees: Vec<TreeMount>,
    /// The command and its arguments; the user's shell if empty.
    pub command: Vec<OsString>,
    /// Variables set besides those passed on.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory in the guest.
    pub working_directory: Option<PathBuf>,
    /// A name of the guest's, or `UID[:GID]`.
    pub user: Option<String>,
    /// Whether the command gets a terminal.
    pub terminal: bool,
    /// The command is ended after this time.
    pub timeout: Option<Duration>,
    /// Nothing of our own is printed but errors.
    pub quiet: bool,
    /// The guest's kernel; the newest of /boot if there is none.
    pub kernel: Option<PathBuf>,
    /// Directory of the kernel's modules.
    pub modules: Option<PathBuf>,
    /// How the guest's instructions run.
    pub accel: AccelChoice,
    /// Virtual processors.
    pub cpus: Option<u32>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Whether the guest has a network.
    pub net: bool,
    /// Where the guest's writes are kept while it runs.
    pub overlay_dir: PathBuf,
    /// How long the guest may take until its first word.
    pub boot_timeout: Duration,
}

impl RunRequest {
    fn say(&self, line: impl std::fmt::Display) {
        if !self.quiet {
            eprintln!("inarch: {line}");
        }
    }
}
