//! `--overlay` and `--ephemeral`: options of every command that shows a tree live.

use std::path::PathBuf;

use clap::Args;
use inarch_jobs::mount::UpperPlace;

use crate::size;

/// Where writes go if SRC must not change.
#[derive(Args, Clone, Debug)]
pub struct UpperArguments {
    /// Keep writes in DIR, as the upper layer of an overlayfs; SRC does not change
    #[arg(long, value_name = "DIR", conflicts_with_all = ["ephemeral", "ro"])]
    overlay: Option<PathBuf>,

    /// Throw writes away; SRC does not change
    #[arg(long, conflicts_with = "ro")]
    ephemeral: bool,

    /// Directory for writes that are thrown away
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    overlay_dir: PathBuf,

    /// Store writes that are thrown away in memory, at most SIZE, instead of a directory
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    in_memory: Option<u64>,
}

impl UpperArguments {
    /// Whether writes go elsewhere than to SRC.
    pub fn is_given(&self) -> bool {
        self.overlay.is_some() || self.ephemeral
    }

    /// Where writes go; `None` if they change SRC.
    pub fn place(self) -> anyhow::Result<Option<UpperPlace>> {
        anyhow::ensure!(
            self.ephemeral || self.in_memory.is_none(),
            "--in-memory is for writes that are thrown away; say --ephemeral as well"
        );
        Ok(match (self.overlay, self.ephemeral, self.in_memory) {
            (Some(directory), ..) => Some(UpperPlace::Kept(directory)),
            (None, true, Some(bytes)) => Some(UpperPlace::InMemory(bytes)),
            (None, true, None) => Some(UpperPlace::ThrownAway(self.overlay_dir)),
            (None, false, _) => None,
        })
    }
}
