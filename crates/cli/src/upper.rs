//! `--overlay` and `--ephemeral`, the same for everything that shows a tree live.

use std::path::PathBuf;

use clap::Args;
use inarch_jobs::mount::UpperPlace;

use crate::size;

/// What becomes of what is written, if it is to leave SRC as it is.
#[derive(Args, Clone, Debug)]
pub struct UpperArguments {
    /// Keep what is written in DIR, as the upper layer of an overlayfs, and leave SRC as it is
    #[arg(long, value_name = "DIR", conflicts_with_all = ["ephemeral", "ro"])]
    overlay: Option<PathBuf>,

    /// Throw away what is written, and leave SRC as it is
    #[arg(long, conflicts_with = "ro")]
    ephemeral: bool,

    /// Where thrown-away writes are kept meanwhile
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    overlay_dir: PathBuf,

    /// Keep thrown-away writes in memory, SIZE of it at most, instead of a directory
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    in_memory: Option<u64>,
}

impl UpperArguments {
    /// Where writes go; none if they are to change SRC.
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
