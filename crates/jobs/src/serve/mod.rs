//! `serve`: a tree's device for virtual machines that someone else starts.
//!
//! Each command is a [`Service`] and takes the same six steps: it takes its place (a socket or mount point) with a
//! guard that clears it however the server ends, begins to make the device, confines itself, reports how to use the
//! disk, serves requests, which wait for the device, until it is stopped, and at the end names the files that
//! changed.

pub mod blk;
pub mod file;
mod making;
pub mod nbd;
pub mod ninep;
mod service;
mod socket;
pub mod virtiofs;

use std::path::Path;
use std::time::Duration;

use inarch_format::disk::DiskFormat;
use inarch_lifecycle::confinement::Sandbox;
use inarch_source::Source;
use inarch_tree::select::Selection;

use crate::JobError;
pub use crate::device::{DiskReport, Writes};
use crate::device::{Recipe, confinement};
pub use inarch_lifecycle::guard::{GUARD_ARGUMENT, guard};
pub use inarch_lifecycle::guarded::BACKGROUND_ARGUMENT;
pub use inarch_server::StopHandle;
pub use service::{Service, ServiceEvent, ServiceReport};
pub use socket::{ListenAt, group_of};

/// A name derived from a served place: an ID in a machine's command line and, for a disk, the serial number by which
/// the guest finds it. Server and printed command line derive the same.
fn name_of_place(place: impl AsRef<[u8]>) -> String {
    format!("inarch-{:08x}", crc32c::crc32c(place.as_ref()))
}

/// The tree that is offered.
#[derive(Clone, Debug)]
pub struct ServedTree {
    /// Where it comes from.
    pub source: Source,
    /// What to take of it.
    pub selection: Selection,
    /// The file system that it is offered as.
    pub format: DiskFormat,
    /// What becomes of the guest's writes.
    pub writes: Writes,
    /// The disk's serial number, at most 20 letters, digits and `-`; made of the place where it is served where not given.
    pub serial: Option<String>,
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
            mount_points: Vec::new(),
            trace: None,
        }
    }

    /// Confines the calling thread to serving the disk and `device`; returns the line that says so.
    fn confine(&self, device: Option<&Path>) -> Result<String, JobError> {
        let confinement = confinement::of_disk(&self.source, device)?;
        Ok(self.sandbox.confine_to(format_args!("{}, read-only", self.source), &confinement))
    }

    fn read_only(&self) -> bool {
        matches!(self.writes, Writes::Refused) || !self.format.is_writable()
    }

    /// The disk's serial number when it is served at `place`.
    fn serial(&self, place: impl AsRef<[u8]>) -> String {
        self.serial.clone().unwrap_or_else(|| name_of_place(place))
    }

    /// What a guest types to use the disk.
    fn mount_command(&self, serial: &str) -> String {
        let option = if self.read_only() { "-o ro " } else { "" };
        let format = self.format.name();
        format!("mount -t {format} {option}/dev/disk/by-id/virtio-{serial} /mnt")
    }
}
