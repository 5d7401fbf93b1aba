//! `serve`: a tree's device for virtual machines that someone else starts.
//!
//! Each way to offer it does the same five things: takes its place (a socket, a mount point) with a guard that clears it
//! however the server ends, says how to use it, begins to make the device, serves requests, which wait for the device,
//! until it is told to stop, and at the end names what changed meanwhile.

pub mod blk;
mod guard;
mod making;
pub mod nbd;
mod signals;
mod socket;

use std::path::PathBuf;

use inarch_tree::scan::ScanOptions;

use crate::JobError;
use crate::device::Recipe;
pub use crate::device::Writes;
pub use guard::{GUARD_ARGUMENT, guard};

/// The disk's serial number, by which a guest finds it.
const SERIAL: &str = "inarch-0";

/// The tree that is offered.
#[derive(Clone, Debug)]
pub struct ServedTree {
    /// The directory.
    pub source: PathBuf,
    /// What of it is taken.
    pub scan: ScanOptions,
    /// What becomes of the guest's writes.
    pub writes: Writes,
}

impl ServedTree {
    /// Fails where it is plain from the start that there is nothing to serve: that is better said before a server
    /// listens that fails every request.
    fn check(&self) -> Result<(), JobError> {
        if !self.source.is_dir() {
            inarch_tree::scan::scan(&self.source, &ScanOptions { threads: 1, ..ScanOptions::default() })?;
        }
        Ok(())
    }

    fn recipe(&self) -> Recipe {
        Recipe {
            source: self.source.clone(),
            scan: self.scan.clone(),
            writes: self.writes.clone(),
            ordinal: 0,
            disks: 1,
        }
    }

    fn read_only(&self) -> bool {
        matches!(self.writes, Writes::Refused)
    }

    /// What a guest types to use the disk.
    fn mount_command(&self) -> String {
        let option = if self.read_only() { "-o ro " } else { "" };
        format!("mount -t ext4 {option}/dev/disk/by-id/virtio-{SERIAL} /mnt")
    }
}

/// Says on standard error how to use what is served. Whoever does not listen knows it already.
fn introduce(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}
