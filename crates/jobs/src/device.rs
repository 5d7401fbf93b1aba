//! From a source to a device: scan, plan, overlay.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use inarch_block::{BLOCK_SIZE, Device, Overlay};
use inarch_format::ext4;
use inarch_tree::Tree;
use inarch_tree::scan::Report;
use inarch_tree::select::Selection;
use inarch_vhost::blk::BlkOptions;

use crate::JobError;
use crate::identity::identity;
use crate::notes::shown;
use crate::source::{KERNEL_TREES, Resources, Source, open_with};

/// Bytes that a device announces before its plan is known. The file system on it is smaller and says its own size;
/// what lies beyond reads as zeros.
const ANNOUNCED_BYTES: u64 = 64 << 40;

/// The most free space that a guest is given: block groups are not free for the kernel that mounts them.
const MOST_FREE_BYTES: u64 = 256 << 30;

/// The part of the overlay's disk that the guest's file system never counts on, as a fraction: rewriting what is
/// there already takes overlay space that the guest does not know as used.
const RESERVED_FRACTION: u64 = 8;

/// What a guest is told about a disk before its device is made.
pub(crate) fn disk_options(queues: u16, read_only: bool, serial: &str) -> BlkOptions {
    BlkOptions { queues, capacity: ANNOUNCED_BYTES, read_only, serial: serial.into(), ..BlkOptions::default() }
}

/// What becomes of a guest's writes.
#[derive(Clone, Debug)]
pub enum Writes {
    /// They fail; the disk says it is read-only.
    Refused,
    /// They go to a nameless file in this directory and are gone with the server.
    ThrownAway(PathBuf),
    /// They go to this file, and are there again the next time.
    Kept(PathBuf),
}

/// A device that is ready, and what is known of it.
pub(crate) struct Prepared {
    pub device: Arc<Device>,
    pub tree: Arc<Tree>,
    pub report: Report,
    pub notes: Vec<String>,
    pub summary: ext4::Summary,
    pub scan_time: Duration,
    pub plan_time: Duration,
}

impl Prepared {
    /// How many bytes the guest's file system has free at the start; `None` where it cannot write.
    pub fn writable_bytes(&self) -> Option<u64> {
        (!self.device.read_only()).then_some(self.summary.free_blocks * BLOCK_SIZE as u64)
    }
}

/// What a device is made of.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub source: Source,
    pub selection: Selection,
    /// Threads of a scan; as many as there are processors where it is 0.
    pub threads: usize,
    pub writes: Writes,
    /// Tells the disks of one guest apart (their UUIDs).
    pub ordinal: u8,
    /// How many disks the guest has: they share the overlay's space and this process's descriptors.
    pub disks: u8,
}

impl Recipe {
    /// Opens the source, plans, and opens the overlay.
    pub fn prepare(&self) -> Result<Prepared, JobError> {
        if let Writes::Kept(file) = &self.writes
            && self.takes_in(file)
        {
            return Err(JobError::Other(format!(
                "{}: the overlay lies in the tree that it is for, and would change it; put it somewhere else",
                shown(file)
            )));
        }
        let started = Instant::now();
        let resources = Resources { threads: self.threads, sharers: self.sharers() };
        let opened = open_with(&self.source, &self.selection, resources)?;
        let scan_time = started.elapsed();

        let free_bytes = self.free_bytes()?;
        let options = ext4::Options {
            uuid: uuid(self.ordinal),
            free_bytes,
            journal: matches!(self.writes, Writes::Kept(_)).then_some(KEPT_JOURNAL_BYTES),
            ..ext4::Options::default()
        };
        let plan = ext4::plan(Arc::clone(&opened.tree), &options)
            .map_err(|error| JobError::Plan { source_path: self.source.path().to_owned(), error })?;
        let blocks = plan.map.blocks();
        let overlay = match &self.writes {
            Writes::Refused => None,
            Writes::ThrownAway(dir) => Some(Overlay::ephemeral(dir, blocks)?),
            Writes::Kept(file) => Some(Overlay::open_or_create(file, blocks, identity(&opened, &options))?),
        };
        let device = Device::new(plan.map, opened.content, overlay, ANNOUNCED_BYTES / BLOCK_SIZE as u64);
        Ok(Prepared {
            device: Arc::new(device),
            tree: opened.tree,
            report: opened.report,
            notes: opened.notes,
            summary: plan.summary,
            scan_time,
            plan_time: started.elapsed() - scan_time,
        })
    }

    /// Whether a scan of the source would find `file`.
    pub fn takes_in(&self, file: &Path) -> bool {
        let Source::Directory(source) = &self.source else { return false };
        let parent = std::path::absolute(file).ok().and_then(|file| file.parent()?.canonicalize().ok());
        let (Some(parent), Ok(source)) = (parent, source.canonicalize()) else {
            return false;
        };
        let Ok(below) = parent.strip_prefix(&source) else {
            return false;
        };
        let left_out = source == Path::new("/") && KERNEL_TREES.iter().any(|name| below.starts_with(name));
        let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
        !left_out && (self.selection.cross || device(&parent) == device(&source))
    }

    /// How much the guest may write: what the overlay's disk has, so that a full disk is the guest's own ENOSPC.
    fn free_bytes(&self) -> Result<u64, JobError> {
        let dir = match &self.writes {
            Writes::Refused => return Ok(0),
            // A kept device must have the same layout the next time, whatever the disk has then.
            Writes::Kept(_) => return Ok(KEPT_FREE_BYTES),
            Writes::ThrownAway(dir) => dir,
        };
        let stat = rustix::fs::statvfs(dir)
            .map_err(|error| JobError::path(dir, "cannot keep the guest's writes there", error))?;
        let available = stat.f_bavail.saturating_mul(stat.f_frsize);
        let share = available / self.sharers() as u64;
        Ok((share - share / RESERVED_FRACTION).min(MOST_FREE_BYTES))
    }

    fn sharers(&self) -> usize {
        usize::from(self.disks.max(1))
    }
}

/// Free space of a device whose writes are kept.
const KEPT_FREE_BYTES: u64 = 64 << 30;

/// Journal of a device whose writes are kept.
const KEPT_JOURNAL_BYTES: u64 = 64 << 20;

/// A UUID that is the same every time: disks of one guest differ in their last byte.
fn uuid(ordinal: u8) -> [u8; 16] {
    // Version 8 (application-defined), RFC 9562 section 5.8.
    let mut uuid = *b"inarch\x80tree\x80\0\0\0\0";
    uuid[6] = 0x80;
    uuid[8] = 0x80;
    uuid[15] = ordinal;
    uuid
}
