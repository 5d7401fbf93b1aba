//! Counts what happens on a device, for the report at the end of a run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ChangedFiles;

/// Counters of a device since it was created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Calls of `read_at`.
    pub reads: u64,
    /// Calls of `write_at`.
    pub writes: u64,
    /// Calls of `discard` and `write_zeroes`.
    pub discards: u64,
    /// Calls of `flush`.
    pub flushes: u64,
    /// Calls that failed.
    pub errors: u64,
    /// The time that calls of `read_at` took.
    pub reading: Duration,
    /// The time that calls of `write_at`, `discard`, `write_zeroes` and `flush` took.
    pub writing: Duration,
    /// Bytes read as zeros, from the map or the overlay.
    pub zero_bytes_read: u64,
    /// Bytes read that were rendered metadata.
    pub metadata_bytes_read: u64,
    /// Bytes read from the tree's files.
    pub file_bytes_read: u64,
    /// Bytes read from the overlay.
    pub overlay_bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Bytes that the overlay holds now.
    pub overlay_bytes: u64,
    /// Whether a write failed because the host had no space for the overlay.
    pub overlay_out_of_space: bool,
    /// Reads of the tree's files that failed because the process or the host had no file descriptor left.
    pub out_of_descriptors: u64,
    /// Files of the tree that were found changed.
    pub changed: ChangedFiles,
    /// Changed files of the tree whose held copies were read instead.
    pub held: ChangedFiles,
}

/// The counters that only grow.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) errors: AtomicU64,
    /// Nanoseconds.
    pub(crate) reading: AtomicU64,
    pub(crate) writing: AtomicU64,
    pub(crate) zero_bytes_read: AtomicU64,
    pub(crate) metadata_bytes_read: AtomicU64,
    pub(crate) file_bytes_read: AtomicU64,
    pub(crate) overlay_bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Adds the time that `work` takes.
pub(crate) fn timed<T>(counter: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    add(counter, u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    done
}

impl Counters {
    pub(crate) fn snapshot(&self) -> Events {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Events {
            reads: get(&self.reads),
            writes: get(&self.writes),
            discards: get(&self.discards),
            flushes: get(&self.flushes),
            errors: get(&self.errors),
            reading: Duration::from_nanos(get(&self.reading)),
            writing: Duration::from_nanos(get(&self.writing)),
            zero_bytes_read: get(&self.zero_bytes_read),
            metadata_bytes_read: get(&self.metadata_bytes_read),
            file_bytes_read: get(&self.file_bytes_read),
            overlay_bytes_read: get(&self.overlay_bytes_read),
            bytes_written: get(&self.bytes_written),
            ..Events::default()
        }
    }
}
