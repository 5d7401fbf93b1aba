//! `serve`: a tree's device for virtual machines that someone else starts.
//!
//! Each way to offer it does the same six things: takes its place (a socket, a mount point) with a guard that clears it
//! however the server ends, begins to make the device, confines itself, says how to use the disk, serves requests, which
//! wait for the device, until it is told to stop, and at the end names what changed meanwhile.

pub mod blk;
pub mod file;
pub(crate) mod guard;
pub(crate) mod lister;
mod making;
pub(crate) mod mounted;
pub mod nbd;
pub mod ninep;
pub(crate) mod signals;
mod socket;
pub mod virtiofs;

use std::path::Path;
use std::time::Duration;

use inarch_tree::select::Selection;

use crate::JobError;
use crate::confinement::{self, Sandbox};
use crate::device::FileSystem;
use crate::device::Recipe;
pub use crate::device::Writes;
use crate::source::Source;
pub use guard::{GUARD_ARGUMENT, guard};
pub use lister::{LISTER_ARGUMENT, list};

/// The disk's serial number, by which a guest finds it.
const SERIAL: &str = "inarch-0";

/// The tree that is offered.
#[derive(Clone, Debug)]
pub struct ServedTree {
    /// Where it comes from.
    pub source: Source,
    /// What of it is taken.
    pub selection: Selection,
    /// The file system that it is offered as.
    pub format: FileSystem,
    /// What becomes of the guest's writes.
    pub writes: Writes,
    /// Whether the server confines itself.
    pub sandbox: Sandbox,
}

impl ServedTree {
    fn recipe(&self) -> Recipe {
        Recipe {
            kept: None,
            source: self.source.clone(),
            selection: self.selection.clone(),
            patience: Duration::ZERO,
            format: self.format,
            writes: self.writes.clone(),
            ordinal: 0,
            disks: 1,
        }
    }

    /// Confines the calling thread to what it takes to serve the disk, and `device`; gives the line that says so.
    fn confine(&self, device: Option<&Path>) -> Result<String, JobError> {
        let confinement = confinement::of_disk(&self.source, device)?;
        Ok(self.sandbox.confine_to(format_args!("{}, read-only,", self.source), &confinement))
    }

    fn read_only(&self) -> bool {
        matches!(self.writes, Writes::Refused) || !self.format.is_writable()
    }

    /// What a guest types to use the disk.
    fn mount_command(&self) -> String {
        let option = if self.read_only() { "-o ro " } else { "" };
        let format = self.format.name();
        format!("mount -t {format} {option}/dev/disk/by-id/virtio-{SERIAL} /mnt")
    }
}

/// Says on standard error how to use what is served. Whoever does not listen knows it already.
pub(crate) fn introduce(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}
