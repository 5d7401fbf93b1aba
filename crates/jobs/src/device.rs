//! Makes a device from a source: tree, plan, overlay.

pub(crate) mod confinement;
mod report;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use inarch_block::{BLOCK_SIZE, BlockMap, Content, Device, Overlay};
use inarch_format::disk::{ANNOUNCED_BYTES, DiskFormat, uuid};
use inarch_format::oci::ImageConfig;
use inarch_format::{ImageOptions, Layout, Planned, ext4, format_by_name};
use inarch_kept::KeptBase;
use inarch_kept::disk_space::DiskSpace;
use inarch_source::identity::identity;
use inarch_source::{Opened, Resources, Source, open_with};
use inarch_tree::Tree;
use inarch_tree::scan::Report;
use inarch_tree::select::Selection;
use inarch_vhost::blk::BlkOptions;

use crate::JobError;

pub use report::DiskReport;

/// The properties of a disk that a guest learns before its device is made.
pub(crate) fn disk_options(queues: u16, read_only: bool, serial: &str) -> BlkOptions {
    BlkOptions { queues, capacity: ANNOUNCED_BYTES, read_only, serial: serial.into(), ..BlkOptions::default() }
}

/// What becomes of a guest's writes.
#[derive(Clone, Debug)]
pub enum Writes {
    /// They fail: the disk is read-only.
    Refused,
    /// They go to a nameless file in this directory, and end with the server.
    ThrownAway(PathBuf),
    /// They go to this file, and are there again the next time.
    Kept(PathBuf),
}

/// Wraps a tree's content, so that what is read is recorded.
#[derive(Clone)]
pub(crate) struct Watcher(pub Arc<Watch>);

/// What a [`Watcher`] does.
pub(crate) type Watch = dyn Fn(Arc<dyn Content>, &Arc<Tree>) -> Arc<dyn Content> + Send + Sync;

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

/// A finished device, and facts about it.
pub(crate) struct Prepared {
    pub device: Arc<Device>,
    pub tree: Arc<Tree>,
    pub report: Report,
    pub notes: Vec<String>,
    pub summary: Summary,
    /// How a container image is to be started.
    pub image: Option<ImageConfig>,
    /// The inode numbers of an ext4.
    pub numbering: Option<ext4::Numbering>,
    pub scan_time: Duration,
    pub plan_time: Duration,
}

/// What was planned, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub blocks: u64,
    /// Blocks of computed metadata.
    pub metadata_blocks: u64,
    /// Free blocks, for the guest's writes.
    pub free_blocks: u64,
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
    /// How long the scan runs at the lowest priority.
    pub patience: Duration,
    pub format: DiskFormat,
    pub writes: Writes,
    /// Tells the disks of one guest apart (their UUIDs).
    pub ordinal: u8,
    /// How many disks the guest has: they share the overlay's space and this process's descriptors.
    pub disks: u8,
    /// What a kept run has changed of the tree so far.
    pub kept: Option<KeptBase>,
    /// Where a guest that cannot write to it mounts something else: directories, paths from the root.
    pub mount_points: Vec<Vec<u8>>,
    /// Records which files are read.
    pub trace: Option<Watcher>,
}

/// Does `work` on `source`. A panic, which standard error reports, becomes an error.
pub(crate) fn contained<T>(source: &Path, work: impl FnOnce() -> Result<T, JobError>) -> Result<T, JobError> {
    // Half-finished state is dropped with the work and not visible outside.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(JobError::PlanPanicked { path: source.to_owned() }))
}

impl Recipe {
    /// Opens the source, plans, and opens the overlay. A panic becomes an error too, because somebody waits for the
    /// result.
    pub fn prepare(&self) -> Result<Prepared, JobError> {
        contained(self.source.path(), || self.try_prepare())
    }

    fn try_prepare(&self) -> Result<Prepared, JobError> {
        self.check()?;
        let started = Instant::now();
        let mut opened =
            open_with(&self.source, &self.selection, &self.resources())?.with_directories(&self.mount_points)?;
        opened.notes = self.source.named(&opened.notes);
        if let Some(kept) = &self.kept {
            kept.files.keep_base(&opened.tree)?;
            let laid = kept.lay_over(opened)?;
            opened = laid.opened;
            opened.notes.extend(laid.layered.notes(&kept.run, &kept.destination));
        }
        let scan_time = started.elapsed();
        tracing::debug!(source = ?self.source.path(), entries = opened.tree.entry_count(), ?scan_time, "a tree is scanned");

        let mut numbering = None;
        let (map, summary, overlay, notes) = match self.format {
            DiskFormat::Ext4 => {
                let room = self.room()?;
                let options = room.options(uuid(self.ordinal));
                let plan = ext4::plan(Arc::clone(&opened.tree), &options)
                    .map_err(|error| JobError::Plan { source_path: self.source.path().to_owned(), error })?;
                let overlay = self.overlay(plan.map.blocks(), &opened, &options, room)?;
                numbering = Some(plan.numbering);
                let ext4::Summary { blocks, metadata_blocks, free_blocks, .. } = plan.summary;
                (plan.map, Summary { blocks, metadata_blocks, free_blocks }, overlay, Vec::new())
            }
            format => {
                let (map, notes) = self.plan_read_only(&opened.tree, format)?;
                let metadata_blocks = map.metadata().iter().map(|range| range.end - range.start).sum();
                let summary = Summary { blocks: map.blocks(), metadata_blocks, free_blocks: 0 };
                (map, summary, None, notes)
            }
        };
        let content = match &self.trace {
            Some(Watcher(watch)) => watch(opened.content, &opened.tree),
            None => opened.content,
        };
        let plan_time = started.elapsed() - scan_time;
        tracing::debug!(format = self.format.name(), blocks = summary.blocks, ?plan_time, "a disk is planned");
        let device = Device::new(map, content, overlay, ANNOUNCED_BYTES / BLOCK_SIZE as u64);
        Ok(Prepared {
            device: Arc::new(device),
            tree: opened.tree,
            report: opened.report,
            notes: opened.notes.into_iter().chain(notes).collect(),
            summary,
            image: opened.image,
            numbering,
            scan_time,
            plan_time,
        })
    }

    /// What opening the source may use.
    pub fn resources(&self) -> Resources {
        let mut resources = Resources { patience: self.patience, sharers: self.sharers(), ..Resources::default() };
        match &self.writes {
            Writes::Refused => {}
            Writes::ThrownAway(dir) => resources.spool_directory.clone_from(dir),
            Writes::Kept(_) => resources.stamp = true,
        }
        resources
    }

    /// What is plainly wrong before anything is opened.
    pub fn check(&self) -> Result<(), JobError> {
        let Writes::Kept(file) = &self.writes else { return Ok(()) };
        if !self.format.is_writable() {
            return Err(JobError::NothingToKeep { overlay: file.clone(), format: self.format.name() });
        }
        if self.kept.is_none() && self.takes_in(file) {
            return Err(JobError::OverlayInTree { overlay: file.clone() });
        }
        Ok(())
    }

    /// How much the guest may write.
    fn room(&self) -> Result<DiskSpace, JobError> {
        match &self.writes {
            Writes::Refused => Ok(DiskSpace::NONE),
            Writes::ThrownAway(dir) => Ok(DiskSpace::thrown_away(dir, self.sharers() as u64)?),
            // An overlay that is there stays of the size that it was made with.
            Writes::Kept(file) => match Overlay::note(file)? {
                Some(note) => Ok(DiskSpace::noted(note)),
                None => {
                    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
                    // The next command's tree is written before this one's is removed.
                    let beside = self.kept.as_ref().map_or(0, |kept| kept.files.base_bytes());
                    Ok(DiskSpace::kept(dir, self.sharers() as u64, beside)?)
                }
            },
        }
    }

    fn overlay(
        &self,
        blocks: u64,
        opened: &Opened,
        options: &ext4::Options,
        room: DiskSpace,
    ) -> Result<Option<Overlay>, JobError> {
        Ok(match &self.writes {
            Writes::Refused => None,
            Writes::ThrownAway(dir) => Some(Overlay::ephemeral(dir, blocks)?),
            Writes::Kept(file) => Some(Overlay::open_or_create(file, blocks, identity(opened, options), room.note())?),
        })
    }

    /// Plans a read-only file system; returns its block map and facts about it.
    fn plan_read_only(&self, tree: &Arc<Tree>, format: DiskFormat) -> Result<(BlockMap, Vec<String>), JobError> {
        let name = format.name();
        let from = || self.source.clone();
        let planner = format_by_name(name).ok_or_else(|| JobError::NotServed { from: from(), format: name })?;
        // SquashFS has none.
        let uuid = (format != DiskFormat::Squashfs).then(|| uuid(self.ordinal));
        let options = ImageOptions { uuid, ..ImageOptions::default() };
        let Planned { layout, notes } =
            planner.plan(tree, &options).map_err(|error| JobError::Format { from: from(), error })?;
        match layout {
            Layout::Blocks(map) => Ok((map, notes)),
            _ => Err(JobError::NotServed { from: from(), format: name }),
        }
    }

    /// Whether a scan of the source would find `file`.
    pub fn takes_in(&self, file: &Path) -> bool {
        self.source.takes_in(file, self.selection.cross)
    }

    fn sharers(&self) -> usize {
        usize::from(self.disks.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_one_line_that_names_the_source() {
        let outcome: Result<(), JobError> = contained(Path::new("/some/tree"), || panic!("on purpose"));
        let line = outcome.unwrap_err().to_string();
        assert!(line.starts_with("/some/tree: ") && line.lines().count() == 1, "{line}");
        assert!(contained(Path::new(""), || Ok(())).is_ok());
    }
}
