//! `--ro` and `--rw`, the same for every command that shows a tree.

use clap::Args;

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
}
