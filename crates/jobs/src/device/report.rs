//! [`DiskReport`]: what a guest asked of a disk.

use inarch_block::{ChangedFiles, Device};
use inarch_lifecycle::shown;
use serde::Serialize;

/// What a guest asked of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiskReport {
    /// Requests to read.
    pub reads: u64,
    /// Requests to write.
    pub writes: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Seconds that this machine took to answer requests to read; several may be answered at once.
    pub read_seconds: f64,
    /// The same for those to write, to discard and to flush.
    pub write_seconds: f64,
    /// Bytes read of the tree's files.
    pub file_bytes_read: u64,
    /// Bytes read of computed metadata.
    pub metadata_bytes_read: u64,
    /// Bytes read of what the guest had written.
    pub overlay_bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Files that changed on the host and read as an I/O error, a few at most.
    pub changed: Vec<String>,
    /// Files that changed on the host and read as they were, a few at most.
    pub held: Vec<String>,
}

impl DiskReport {
    pub(crate) fn of(device: &Device) -> DiskReport {
        let events = device.events();
        let names = |files: &ChangedFiles| files.named.iter().map(|file| shown(&file.path)).collect();
        DiskReport {
            reads: events.reads,
            writes: events.writes,
            errors: events.errors,
            read_seconds: events.reading.as_secs_f64(),
            write_seconds: events.writing.as_secs_f64(),
            file_bytes_read: events.file_bytes_read,
            metadata_bytes_read: events.metadata_bytes_read,
            overlay_bytes_read: events.overlay_bytes_read,
            bytes_written: events.bytes_written,
            changed: names(&events.changed),
            held: names(&events.held),
        }
    }
}
