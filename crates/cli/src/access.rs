//! `--ro`, `--rw`, `--nosuid` and `--nodev`, the same for every command that shows a tree.

use clap::Args;
use inarch_jobs::share::Refused;

/// Whether what is shown can be written to.
#[derive(Args, Clone, Copy, Debug)]
pub struct AccessArguments {
    /// Refuse writes
    #[arg(long, visible_alias = "read-only", conflicts_with = "rw")]
    ro: bool,

    /// Take writes; always done unless --ro is given, accepted for habit's sake
    #[arg(long, visible_alias = "read-write")]
    rw: bool,
}

impl AccessArguments {
    /// Whether writes are refused.
    pub fn read_only(self) -> bool {
        self.ro && !self.rw
    }

    /// Whether the user asked for writes.
    pub fn asks_for_writes(self) -> bool {
        self.rw
    }
}

/// What cannot be left in a directory that is written to.
#[derive(Args, Clone, Copy, Debug)]
pub struct RefusedArguments {
    /// Leave no set-user-ID, set-group-ID or file capability in SRC: the bits are left out of what is written
    #[arg(long)]
    nosuid: bool,

    /// Leave no device nodes in SRC: to make one fails
    #[arg(long)]
    nodev: bool,
}

impl From<RefusedArguments> for Refused {
    fn from(arguments: RefusedArguments) -> Refused {
        Refused { privileges: arguments.nosuid, devices: arguments.nodev }
    }
}
