//! From a source to a device: tree, plan, overlay.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inarch_block::{BLOCK_SIZE, BlockMap, Content, Device, Overlay};
use inarch_format::oci::ImageConfig;
use inarch_format::{ImageOptions, Layout, Planned, ext4, format_by_name};
use inarch_tree::Tree;
use inarch_tree::scan::Report;
use inarch_tree::select::Selection;
use inarch_vhost::blk::BlkOptions;

use crate::JobError;
use crate::disk::room::Room;
use crate::kept::{KeptBase, Layered};
use crate::source::identity::identity;
use crate::source::{Opened, Resources, Source, open_with};
use crate::text::shown;

/// Bytes that a device announces before its plan is known. The file system on it is smaller and says its own size;
/// what lies beyond reads as zeros.
const ANNOUNCED_BYTES: u64 = 64 << 40;

/// What a guest is told about a disk before its device is made.
pub(crate) fn disk_options(queues: u16, read_only: bool, serial: &str) -> BlkOptions {
    BlkOptions { queues, capacity: ANNOUNCED_BYTES, read_only, serial: serial.into(), ..BlkOptions::default() }
}

/// The file system on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4, which can be written to.
    #[default]
    Ext4,
    /// EROFS, read-only.
    Erofs,
    /// SquashFS without compression, read-only.
    Squashfs,
}

impl FileSystem {
    /// Every file system that can be served.
    pub const ALL: [FileSystem; 3] = [FileSystem::Ext4, FileSystem::Erofs, FileSystem::Squashfs];

    /// Its name: for the user, for mount(8), and of its kernel module.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Erofs => "erofs",
            FileSystem::Squashfs => "squashfs",
        }
    }

    /// Whether a guest can write to it.
    pub fn is_writable(self) -> bool {
        self == FileSystem::Ext4
    }
}

impl FromStr for FileSystem {
    type Err = String;

    fn from_str(text: &str) -> Result<FileSystem, String> {
        FileSystem::ALL
            .into_iter()
            .find(|file_system| file_system.name() == text)
            .ok_or_else(|| format!("'{text}' is no file system that can be served; these are: ext4, erofs, squashfs"))
    }
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
    pub summary: Summary,
    /// How a container image says that it is started.
    pub image: Option<ImageConfig>,
    pub scan_time: Duration,
    pub plan_time: Duration,
}

/// What was planned, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub blocks: u64,
    /// Those that are computed.
    pub metadata_blocks: u64,
    /// Those that the guest can write to.
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
    /// How long a scan takes no more than the time that others leave of the processors.
    pub patience: Duration,
    pub format: FileSystem,
    pub writes: Writes,
    /// Tells the disks of one guest apart (their UUIDs).
    pub ordinal: u8,
    /// How many disks the guest has: they share the overlay's space and this process's descriptors.
    pub disks: u8,
    /// What a kept run has changed of the tree so far.
    pub kept: Option<KeptBase>,
    /// Where a guest that cannot write to it mounts something else: directories, paths from the root.
    pub mount_points: Vec<Vec<u8>>,
}

/// Does what is to be done with `source`; a panic, of which standard error tells, becomes an error.
fn contained<T>(source: &Path, work: impl FnOnce() -> Result<T, JobError>) -> Result<T, JobError> {
    // What is half-done goes with the work: nothing of it is seen from outside.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let source = shown(source);
        Err(JobError::Other(format!("{source}: planning its disk failed: this is a mistake in the program")))
    })
}

impl Recipe {
    /// Opens the source, plans, and opens the overlay. A panic is an error like others: somebody waits for the outcome.
    pub fn prepare(&self) -> Result<Prepared, JobError> {
        contained(self.source.path(), || self.try_prepare())
    }

    fn try_prepare(&self) -> Result<Prepared, JobError> {
        self.check()?;
        let started = Instant::now();
        let mut opened =
            open_with(&self.source, &self.selection, &self.resources())?.with_directories(&self.mount_points)?;
        if let Some(kept) = &self.kept {
            kept.files.keep_base(&opened.tree)?;
            let laid = kept.lay_over(opened)?;
            opened = laid.opened;
            opened.notes.extend(laid.layered.notes(&kept.run, &kept.destination));
        }
        let scan_time = started.elapsed();

        let (map, summary, overlay, notes) = match self.format {
            FileSystem::Ext4 => {
                let room = self.room()?;
                let options = room.options(uuid(self.ordinal));
                let plan = ext4::plan(Arc::clone(&opened.tree), &options)
                    .map_err(|error| JobError::Plan { source_path: self.source.path().to_owned(), error })?;
                let overlay = self.overlay(plan.map.blocks(), &opened, &options, room)?;
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
        let device = Device::new(map, opened.content, overlay, ANNOUNCED_BYTES / BLOCK_SIZE as u64);
        Ok(Prepared {
            device: Arc::new(device),
            tree: opened.tree,
            report: opened.report,
            notes: opened.notes.into_iter().chain(notes).collect(),
            summary,
            image: opened.image,
            scan_time,
            plan_time: started.elapsed() - scan_time,
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
        let reason = if !self.format.is_writable() {
            format!("nothing can be written to {}, so there is nothing to keep", self.format.name())
        } else if self.kept.is_none() && self.takes_in(file) {
            "the overlay lies in the tree that it is for, and would change it; put it somewhere else".to_owned()
        } else {
            return Ok(());
        };
        Err(JobError::Other(format!("{}: {reason}", shown(file))))
    }

    /// How much the guest may write.
    fn room(&self) -> Result<Room, JobError> {
        match &self.writes {
            Writes::Refused => Ok(Room::NONE),
            Writes::ThrownAway(dir) => Room::thrown_away(dir, self.sharers() as u64),
            // An overlay that is there stays of the size that it was made with.
            Writes::Kept(file) => match Overlay::note(file)? {
                Some(note) => Ok(Room::noted(note)),
                None => {
                    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
                    // The next command's tree is written before this one's is removed.
                    let beside = self.kept.as_ref().map_or(0, |kept| kept.files.base_bytes());
                    Room::kept(dir, self.sharers() as u64, beside)
                }
            },
        }
    }

    fn overlay(
        &self,
        blocks: u64,
        opened: &Opened,
        options: &ext4::Options,
        room: Room,
    ) -> Result<Option<Overlay>, JobError> {
        Ok(match &self.writes {
            Writes::Refused => None,
            Writes::ThrownAway(dir) => Some(Overlay::ephemeral(dir, blocks)?),
            Writes::Kept(file) => Some(Overlay::open_or_create(file, blocks, identity(opened, options), room.note())?),
        })
    }

    /// The blocks of a file system that is never written to, and what there is to know of it.
    fn plan_read_only(&self, tree: &Arc<Tree>, format: FileSystem) -> Result<(BlockMap, Vec<String>), JobError> {
        let name = format.name();
        let refuse = |reason: String| JobError::Other(format!("{}: {reason}", self.source));
        let planner = format_by_name(name).ok_or_else(|| refuse(format!("there is no planner of {name}")))?;
        // SquashFS has none.
        let uuid = (format != FileSystem::Squashfs).then(|| uuid(self.ordinal));
        let options = ImageOptions { uuid, ..ImageOptions::default() };
        let Planned { layout, notes } = planner.plan(tree, &options).map_err(|error| refuse(error.to_string()))?;
        match layout {
            Layout::Blocks(map) => Ok((map, notes)),
            _ => Err(refuse(format!("{name} cannot be served, only written"))),
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

/// The disk of a kept run as one of its commands had it.
pub(crate) struct Remade {
    pub layered: Arc<Layered>,
    /// The bytes of the host's files.
    pub host: Arc<dyn Content>,
    pub device: Arc<Device>,
    pub numbering: ext4::Numbering,
}

/// Makes the disk of a kept run again: of the host's tree as it was, what the run had changed before, and the overlay at
/// `file`; without a look at what the tree is now.
pub(crate) fn remake(source: &Path, kept: &KeptBase, file: &Path, ordinal: u8) -> Result<Remade, JobError> {
    let laid = kept.lay_over(Opened::at(source, kept.files.load_base()?)?)?;
    let gone = || JobError::path(file, "cannot open the overlay of the kept run", std::io::ErrorKind::NotFound);
    let options = Room::noted(Overlay::note(file)?.ok_or_else(gone)?).options(uuid(ordinal));
    let plan = ext4::plan(Arc::clone(&laid.opened.tree), &options)
        .map_err(|error| JobError::Plan { source_path: source.to_owned(), error })?;
    let overlay = Overlay::open(file, plan.map.blocks(), identity(&laid.opened, &options))?;
    let device = Device::new(plan.map, laid.opened.content, Some(overlay), ANNOUNCED_BYTES / BLOCK_SIZE as u64);
    Ok(Remade { layered: laid.layered, host: laid.host, device: Arc::new(device), numbering: plan.numbering })
}

/// A UUID that is the same every time: disks of one guest differ in their last byte.
fn uuid(ordinal: u8) -> [u8; 16] {
    // Version 8 (application-defined), RFC 9562 section 5.8.
    let mut uuid = *b"inarch\x80tree\x80\0\0\0\0";
    uuid[6] = 0x80;
    uuid[8] = 0x80;
    uuid[15] = ordinal;
    uuid
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
