//! [`LiveDisk`]: a disk of a guest. Its device is made while the machine boots, and served by a thread of this process.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use inarch_block::{Device, ReadFiles};
use inarch_cache::Snapshot;
use inarch_format::ext4::Numbering;
use inarch_kept::{Layered, WrittenDisk};
use inarch_source::Source;
use inarch_vhost::blk::BlkServer;
use inarch_vhost::{Event, Pending};

use super::failure::DiskFailure;
use super::freshen::freshen;
use super::holding::{Held, Part};
use super::sockets::pair;
use super::trees::Disk;
use super::{RunError, RunFault};
use crate::JobError;
use crate::device::confinement::disk_among_others;
use crate::device::{DiskReport, Prepared, Watcher, contained, disk_options};
use crate::notes::DiskNote;

/// How long the scan of a guest's tree runs at the lowest priority: the guest needs its disk only when its kernel is
/// up. It runs on all processors, because the kernel boots on one most of the time. The time is limited, because beside
/// other work such threads get a hundredth of a processor.
const SCAN_PATIENCE: Duration = Duration::from_millis(1500);

/// A disk whose device is made in the background.
pub(super) struct LiveDisk {
    source: Source,
    serial: String,
    read_only: bool,
    hold: Option<Held>,
    pending: Arc<Pending<Device>>,
    writable: Arc<OnceLock<u64>>,
    /// Of the disk of a cache: the inode numbers that its tree has there.
    numbering: Arc<OnceLock<Numbering>>,
    /// Of the disk of a cache: which of its files are read.
    reads: Arc<OnceLock<Arc<ReadFiles>>>,
}

/// Records into `reads` which files are read, beside what `other` records.
fn counting(other: Option<Watcher>, reads: Arc<OnceLock<Arc<ReadFiles>>>) -> Watcher {
    Watcher(Arc::new(move |content, tree| {
        let content =
            other.as_ref().map_or_else(|| Arc::clone(&content), |Watcher(watch)| watch(Arc::clone(&content), tree));
        let files = Arc::new(ReadFiles::new(content, tree.inode_count()));
        // The disk is made once.
        let _ = reads.set(Arc::clone(&files));
        files
    }))
}

impl LiveDisk {
    /// Begins to make the device of `disk`; calls `ready` when it exists.
    pub fn start(disk: &Disk, failure: &Arc<DiskFailure>, ready: impl FnOnce(&Prepared) + Send + 'static) -> LiveDisk {
        let live = LiveDisk::idle(disk);
        let (pending, writable) = (Arc::clone(&live.pending), Arc::clone(&live.writable));
        let numbering = matches!(disk.recipe.source, Source::Cache(_)).then(|| Arc::clone(&live.numbering));
        let (mut recipe, failure) = (disk.recipe.clone(), Arc::clone(failure));
        recipe.patience = SCAN_PATIENCE;
        if numbering.is_some() {
            recipe.trace = Some(counting(recipe.trace.take(), Arc::clone(&live.reads)));
        }
        thread::spawn(move || {
            let prepared = contained(recipe.source.path(), || {
                freshen(&recipe.source, &failure);
                recipe.prepare()
            });
            match prepared {
                Ok(mut prepared) => {
                    // Only this thread sets them.
                    prepared.writable_bytes().map(|bytes| writable.set(bytes));
                    numbering.zip(prepared.numbering.take()).map(|(cell, numbering)| cell.set(numbering));
                    pending.set(Ok(Arc::clone(&prepared.device)));
                    ready(&prepared);
                }
                Err(error) => {
                    pending.set(Err(error.to_string()));
                    failure.set(error);
                }
            }
        });
        live
    }

    /// A disk whose device is never made, for a machine that is not started.
    pub fn idle(disk: &Disk) -> LiveDisk {
        LiveDisk {
            source: disk.recipe.source.clone(),
            serial: disk.serial.clone(),
            read_only: disk.read_only,
            hold: disk.hold.clone(),
            pending: Arc::new(Pending::new()),
            writable: Arc::default(),
            numbering: Arc::default(),
            reads: Arc::default(),
        }
    }

    /// The disk and its files to be held, if any.
    pub fn held_part(&self) -> Option<Part> {
        Some(Part { device: Arc::clone(&self.pending), held: self.hold.clone()? })
    }

    /// What the user should know of the disk after its use.
    pub fn notes(&self) -> Vec<DiskNote> {
        let device = self.pending.get().and_then(Result::ok);
        device.map(|device| DiskNote::of(device, &self.source, self.writable.get().copied())).unwrap_or_default()
    }

    /// Whether it is a disk of this source.
    pub fn is_of(&self, source: &Source) -> bool {
        self.source == *source
    }

    /// The generation of a cache that it was made from.
    pub fn cache_snapshot(&self) -> Option<Arc<Snapshot>> {
        match &self.source {
            Source::Cache(cache) => cache.snapshot().cloned(),
            _ => None,
        }
    }

    /// The disk of a cache, with what the guest wrote to it.
    pub fn written(&self) -> Option<WrittenDisk> {
        self.pending.get()?.ok()?;
        let (device, snapshot) = (self.pending.wait().ok()?, self.cache_snapshot()?);
        let numbering = self.numbering.get()?.clone();
        let layered = Arc::new(Layered::plain(&snapshot.generation.tree));
        Some(WrittenDisk { layered, host: snapshot.content(), device, numbering })
    }

    /// How many files of a cache the guest has read, and how many of their bytes.
    pub fn cache_reads(&self) -> (u64, u64) {
        let device = self.pending.get().and_then(Result::ok);
        let files = self.reads.get().map_or(0, |reads| reads.count());
        (files, device.map_or(0, |device| device.events().file_bytes_read))
    }

    /// Counters of the guest's requests.
    pub fn report(&self) -> Option<DiskReport> {
        let device = self.pending.get().and_then(Result::ok);
        Some(DiskReport::of(device?))
    }

    /// Whether this guest wrote nothing to it.
    pub fn is_untouched(&self) -> bool {
        let device = self.pending.get().and_then(Result::ok);
        device.is_none_or(|device| device.events().bytes_written == 0)
    }

    /// Makes all writes durable.
    pub fn flush(&self) -> Result<(), JobError> {
        let device = self.pending.get().and_then(Result::ok);
        device
            .map_or(Ok(()), |device| device.flush())
            .map_err(|error| RunError::NotDurable { from: self.source.clone(), error }.into())
    }

    /// Serves the disk on one end of a new connection; returns the other.
    pub fn connect(&self, queues: u16, failure: &Arc<DiskFailure>) -> Result<OwnedFd, JobError> {
        let (ours, theirs) = pair()?;
        let options = disk_options(queues, self.read_only, &self.serial);
        let (source, failure) = (self.source.clone(), Arc::clone(failure));
        let faults = Arc::clone(&failure);
        let lost = move |reason: &dyn std::fmt::Display| {
            let what = format!("{source}: its disk can no longer be served");
            RunError::Lost { what, reason: reason.to_string() }.into()
        };
        let lost = Arc::new(lost);
        let on_event = {
            let (lost, failure) = (Arc::clone(&lost), Arc::clone(&failure));
            // A failed request is an error status in the guest, and the device records why. But for a stopped queue the
            // guest would wait for ever.
            move |event: Event| match event {
                Event::QueueStopped { .. } => failure.set_ring(lost(&event)),
                Event::RequestPanicked { .. } => faults.tell_fault(RunFault::Server(Arc::new(event))),
                _ => {}
            }
        };
        let server = BlkServer::new(Arc::clone(&self.pending), options).on_event(on_event);
        let confinement = disk_among_others(&self.source)?.ends_processes();
        // The thread ends when QEMU does.
        thread::spawn(move || {
            confinement.enter();
            if let Err(error) = server.serve_stream(ours) {
                failure.set(lost(&error));
            }
        });
        Ok(theirs)
    }
}

#[cfg(test)]
mod tests {
    use inarch_format::disk::DiskFormat;
    use inarch_lifecycle::Events;
    use inarch_tree::select::Selection;

    use super::*;
    use crate::device::{Recipe, Writes};

    #[test]
    fn who_waits_for_a_disk_is_told_that_its_plan_panicked() {
        let recipe = Recipe {
            source: Source::Empty,
            selection: Selection::default(),
            patience: Duration::ZERO,
            format: DiskFormat::Ext4,
            writes: Writes::Refused,
            ordinal: 0,
            disks: 1,
            kept: None,
            mount_points: Vec::new(),
            trace: Some(Watcher(Arc::new(|_, _| panic!("on purpose")))),
        };
        let serial = "disk".to_owned();
        let disk = Disk { recipe, destination: None, read_only: true, overlaid: false, serial, hold: None };
        let failure = Arc::new(DiskFailure::new(Events::ignored()));
        let live = LiveDisk::start(&disk, &failure, |_| panic!("there is no disk"));
        assert!(live.pending.wait().is_err());
        while !failure.is_set() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(failure.take(), Some(JobError::PlanPanicked { .. })));
    }
}
