//! `--ro`, `--rw`, `--nosuid` and `--nodev`: options of every command that shows a tree.

use clap::Args;
use inarch_jobs::share::Refused;

/// Whether the guest or the mount may write.
#[derive(Args, Clone, Copy, Debug)]
pub struct AccessArguments {
    /// Refuse writes
    #[arg(long, visible_alias = "read-only", conflicts_with = "rw")]
    ro: bool,

    /// Accept writes: the default, but not for mounts of disk images
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

/// What cannot be left in a directory that receives writes.
#[derive(Args, Clone, Copy, Debug)]
pub struct RefusedArguments {
    /// Leave no set-user-ID, set-group-ID or file capability in SRC: writes succeed without these bits
    #[arg(long)]
    nosuid: bool,

    /// Leave no device nodes in SRC: making one fails
    #[arg(long)]
    nodev: bool,
}

impl From<RefusedArguments> for Refused {
    fn from(arguments: RefusedArguments) -> Refused {
        Refused { privileges: arguments.nosuid, devices: arguments.nodev }
    }
}
