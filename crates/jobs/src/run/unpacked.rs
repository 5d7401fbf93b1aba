//! Trees that a run's guest gets as an archive and unpacks, into its memory or onto a disk.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use inarch_block::{self as block, Content, WriteError, stream_parts};
use inarch_format::oci::ImageConfig;
use inarch_format::{Format, ImageOptions, Layout, Stream, tar::Tar};
use inarch_kept::disk_space::DiskSpace;
use inarch_lifecycle::shown;
use inarch_source::{Resources, Source, open_with};
use inarch_tree::select::Selection;
use inarch_vm::protocol::{Mount, MountSource};

use super::RunError;
use super::failure::DiskFailure;
use super::sockets::pair;
use crate::JobError;
use crate::device::confinement::disk_among_others;
use crate::image::{StreamParts, stored_bytes};

/// Bytes of a page, the unit of a tmpfs.
const PAGE: u64 = 4096;
/// Bytes that a tmpfs needs for a file besides its content: inode, dentry, name.
const INODE: u64 = 1024;

/// Where a guest has room to unpack.
pub(super) struct Places<'a> {
    all_memory: u64,
    /// Bytes left in its memory.
    memory: u64,
    /// The host directory of the guest's scratch disk, and the bytes left there; `None` if the guest's kernel does not
    /// support such disks.
    disk: Option<(&'a Path, u64)>,
}

impl<'a> Places<'a> {
    /// The room of a guest with so much memory, and with disks in `directory`.
    pub fn new(memory: u64, directory: Option<&'a PathBuf>) -> Result<Places<'a>, JobError> {
        let free =
            |directory: &'a PathBuf| Ok::<_, JobError>((&**directory, DiskSpace::thrown_away(directory, 1)?.bytes()));
        // A tmpfs takes at most half of the memory; the rest is for the guest's programs.
        Ok(Places { all_memory: memory, memory: memory / 2, disk: directory.map(free).transpose()? })
    }

    /// Takes `needed` bytes. Returns whether they are on the disk, or the reason why there is no room.
    fn take(&mut self, needed: u64) -> Result<bool, String> {
        let mib_needed = mib(needed).saturating_add(1);
        if let Some(rest) = self.memory.checked_sub(needed) {
            self.memory = rest;
            return Ok(false);
        }
        let memory = format!(
            "unpacked it takes {mib_needed} MiB, and of its {} MiB of memory the guest has {} for that",
            mib(self.all_memory),
            mib(self.memory)
        );
        match &mut self.disk {
            Some((_, free)) if *free >= needed => {
                *free -= needed;
                Ok(true)
            }
            Some((directory, free)) => Err(format!(
                "{memory}, and on a disk {}, which is what {} has free; without --via tar it is not copied",
                mib(*free),
                shown(directory)
            )),
            None => {
                let wanted = mib_needed.saturating_add(mib(self.all_memory / 2 - self.memory)).saturating_mul(2);
                Err(format!(
                    "{memory}, and its kernel knows no disk of ours; give it more (-m {wanted}M), or leave something out"
                ))
            }
        }
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

/// A tree, and where the guest unpacks it.
#[derive(Clone)]
pub(super) struct UnpackedTree {
    pub source: Source,
    /// What is sent; nothing if the tree was not looked at, for a machine that is not started.
    sent: Option<Sent>,
    /// How many unpacked trees come before it.
    ordinal: usize,
    /// Absolute path in the guest; `/` for the root.
    pub destination: PathBuf,
    /// Whether it is read-only after unpacking.
    pub read_only: bool,
    /// Whether it is unpacked onto the scratch disk, because it does not fit into the guest's memory.
    pub on_scratch: bool,
    /// The configuration of a container image.
    pub image: Option<ImageConfig>,
    /// What the user should know, one line each.
    pub notes: Vec<String>,
}

/// An archive, and the bytes of its files.
#[derive(Clone)]
struct Sent {
    content: Arc<dyn Content>,
    archive: Arc<dyn Stream>,
}

impl UnpackedTree {
    /// A tree that is not looked at. Where it is unpacked depends on its size; it is taken to fit into the guest's memory.
    pub fn unseen(source: Source, ordinal: usize, destination: PathBuf, read_only: bool) -> UnpackedTree {
        let (sent, image, notes) = (None, None, Vec::new());
        UnpackedTree { source, sent, ordinal, destination, read_only, on_scratch: false, image, notes }
    }

    /// Scans the tree, and decides by its size where in `places` it is unpacked. `place` is the guest's path, whether
    /// it is read-only, and the directories to be added as mount points.
    pub fn open(
        (source, selection): (Source, &Selection),
        ordinal: usize,
        (destination, read_only, mount_points): (PathBuf, bool, Vec<Vec<u8>>),
        places: &mut Places<'_>,
        spool_directory: &Path,
    ) -> Result<UnpackedTree, JobError> {
        let resources = Resources { spool_directory: spool_directory.to_owned(), ..Resources::default() };
        let opened = open_with(&source, selection, &resources)?.with_directories(&mount_points)?;
        let (_, bytes) = stored_bytes(&opened.tree, PAGE);
        let needed = bytes + opened.tree.inodes().count() as u64 * INODE;
        let on_scratch = places.take(needed).map_err(|reason| RunError::NoRoom { from: source.clone(), reason })?;
        let planned = Tar.plan(&opened.tree, &ImageOptions::default());
        let planned = planned.map_err(|error| JobError::Format { from: source.clone(), error })?;
        let Layout::Stream(archive) = planned.layout else {
            return Err(JobError::NotServed { from: source, format: Tar.name() });
        };
        let mut notes = source.named(&opened.notes);
        notes.extend(planned.notes);
        if on_scratch {
            notes.push(format!(
                "{}: {} MiB are unpacked onto a disk of the guest, as it has {} MiB of memory",
                shown(source.path()),
                mib(needed),
                mib(places.all_memory)
            ));
        }
        let (sent, image) = (Some(Sent { content: opened.content, archive: Arc::from(archive) }), opened.image);
        Ok(UnpackedTree { source, sent, ordinal, destination, read_only, on_scratch, image, notes })
    }

    /// Name of the port for the archive.
    pub fn port(&self) -> String {
        format!("inarch-tree-{}", self.ordinal)
    }

    /// How the guest mounts it.
    pub fn mount(&self) -> Mount {
        Mount {
            source: MountSource::Archive { port: self.port(), on_scratch: self.on_scratch },
            // No limit on files; the archive contains the root's mode.
            options: "nr_inodes=0".to_owned(),
            read_only: self.read_only,
            no_suid_no_dev: false,
            ..Mount::tmpfs(&self.destination)
        }
    }

    /// Sends the archive on one end of a new connection; returns the other.
    pub fn connect(&self, failure: &Arc<DiskFailure>) -> Result<OwnedFd, JobError> {
        let (mut ours, theirs) = pair()?;
        let (tree, failure) = (self.clone(), Arc::clone(failure));
        // A machine that is started has only trees that were looked at.
        let Some(sent) = self.sent.clone() else { return Ok(theirs) };
        // What an image has compressed is unpacked when it is sent.
        let confinement = disk_among_others(&self.source)?.ends_processes();
        thread::spawn(move || {
            confinement.enter();
            let source = block::ImageSource { map: None, content: &*sent.content };
            let length = sent.archive.length();
            match stream_parts(StreamParts::new(&*sent.archive), length, source, &mut ours, &()) {
                // Closing our end would lose what is still in flight to the guest, so it stays open until QEMU ends.
                Ok(_) => drop(ours.read(&mut [0])),
                // QEMU has ended; the reason is reported elsewhere.
                Err(WriteError::Output { .. } | WriteError::Cancelled) => {}
                Err(WriteError::Content { error, .. }) => failure.set(tree.explain(&*sent.content, &error)),
                Err(error @ WriteError::Panicked) => {
                    failure.set(RunError::NotSent { tree: tree.source.path().to_owned(), error }.into());
                }
            }
        });
        Ok(theirs)
    }

    /// Explains why a file could not be read.
    fn explain(&self, content: &dyn Content, error: &std::io::Error) -> JobError {
        let changed = content.changed();
        let error = match changed.named.first() {
            Some(file) => {
                RunError::ChangedOnTheWay { path: self.source.name_of(&file.path), reason: file.reason.clone() }
            }
            None => RunError::Unreadable { tree: self.source.path().to_owned(), error: error.to_string() },
        };
        error.into()
    }
}

impl std::fmt::Debug for UnpackedTree {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("UnpackedTree").field("source", &self.source).field("destination", &self.destination).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_fits_nowhere_is_refused() {
        let directory = PathBuf::from("/");
        let mut places = Places { all_memory: 64 * MIB, memory: 32 * MIB, disk: Some((&directory, 100 * MIB)) };
        assert_eq!(places.take(20 * MIB), Ok(false));
        // Each of two would fit into the memory, but not both.
        assert_eq!(places.take(20 * MIB), Ok(true));
        assert_eq!(places.take(12 * MIB), Ok(false));
        let refused = places.take(90 * MIB).unwrap_err();
        assert!(
            refused.contains("91 MiB") && refused.contains("on a disk 80") && refused.contains("--via tar"),
            "{refused}"
        );
        let mut places = Places { disk: None, memory: 30 * MIB, ..places };
        let refused = places.take(40 * MIB).unwrap_err();
        // What is already in memory, plus this one.
        assert!(refused.contains("41 MiB") && refused.contains("-m 86M"), "{refused}");
        let mut larger = Places { all_memory: 86 * MIB, memory: 41 * MIB, disk: None };
        assert_eq!(larger.take(40 * MIB), Ok(false));
    }
}
