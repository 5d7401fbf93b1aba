//! Trees that a run's guest gets as an archive, which it unpacks: into its memory, or onto a disk.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use inarch_block::{self as block, Content, WriteError, stream_parts};
use inarch_format::oci::ImageConfig;
use inarch_format::{Format, ImageOptions, Layout, Stream, tar::Tar};
use inarch_tree::select::Selection;
use inarch_vm::protocol::{Mount, MountSource};

use super::attempt::{DiskFailure, pair};
use crate::JobError;
use crate::image::{StreamParts, stored_bytes};
use crate::notes::shown;
use crate::source::{Resources, Source, open_with};

/// Bytes of a page, the unit of a tmpfs.
const PAGE: u64 = 4096;
/// Bytes that a tmpfs takes for a file beside its content: inode, directory entry, name.
const INODE: u64 = 1024;

/// A tree, and where the guest unpacks it.
#[derive(Clone)]
pub(super) struct UnpackedTree {
    source: Source,
    content: Arc<dyn Content>,
    archive: Arc<dyn Stream>,
    /// How many there are before it.
    ordinal: usize,
    /// Absolute path in the guest; `/` for the root.
    pub destination: PathBuf,
    /// Whether the guest cannot write to it afterwards.
    pub read_only: bool,
    /// Whether it is unpacked onto the scratch disk, as it does not fit into the guest's memory.
    pub on_scratch: bool,
    /// How a container image says that it is started.
    pub image: Option<ImageConfig>,
    /// What the user should know, a line each.
    pub notes: Vec<String>,
}

impl UnpackedTree {
    /// Scans the tree, whose size says where it can be unpacked by a guest of `memory` bytes.
    pub fn open(
        (source, selection): (Source, &Selection),
        ordinal: usize,
        destination: PathBuf,
        read_only: bool,
        memory: u64,
        spool_directory: &Path,
    ) -> Result<UnpackedTree, JobError> {
        let resources = Resources { spool_directory: spool_directory.to_owned(), ..Resources::default() };
        let opened = open_with(&source, selection, &resources)?;
        let (_, bytes) = stored_bytes(&opened.tree, PAGE);
        let needed = bytes + opened.tree.inodes().count() as u64 * INODE;
        // A tmpfs takes half of the memory at most; the rest is for what runs there.
        let on_scratch = needed > memory / 2;
        let planned = Tar.plan(&opened.tree, &ImageOptions::default());
        let planned = planned.map_err(|error| JobError::Other(format!("{source}: {error}")))?;
        let Layout::Stream(archive) = planned.layout else {
            return Err(JobError::Other(format!("{source}: an archive is no stream")));
        };
        let mut notes = opened.notes;
        notes.extend(planned.notes);
        if on_scratch {
            let mib = |bytes: u64| bytes >> 20;
            notes.push(format!(
                "{}: {} MiB are unpacked onto a disk of the guest, as it has {} MiB of memory",
                shown(source.path()),
                mib(needed),
                mib(memory)
            ));
        }
        let (content, archive, image) = (opened.content, Arc::from(archive), opened.image);
        Ok(UnpackedTree { source, content, archive, ordinal, destination, read_only, on_scratch, image, notes })
    }

    /// Name of the port by which the archive comes.
    pub fn port(&self) -> String {
        format!("inarch-tree-{}", self.ordinal)
    }

    /// How the guest mounts it.
    pub fn mount(&self) -> Mount {
        Mount {
            source: MountSource::Archive { port: self.port(), on_scratch: self.on_scratch },
            // As many files as there are; the root's mode comes with the archive.
            options: "nr_inodes=0".to_owned(),
            read_only: self.read_only,
            no_suid_no_dev: false,
            ..Mount::tmpfs(&self.destination)
        }
    }

    /// Sends the archive by one end of a new connection; gives the other.
    pub fn connect(&self, failure: &Arc<DiskFailure>) -> Result<OwnedFd, JobError> {
        let (mut ours, theirs) = pair()?;
        let (tree, failure) = (self.clone(), Arc::clone(failure));
        thread::spawn(move || {
            let source = block::Source { map: None, content: &*tree.content };
            let length = tree.archive.length();
            match stream_parts(StreamParts::new(&*tree.archive), length, source, &mut ours, &()) {
                // What is still on its way to the guest would be lost with our end, which QEMU ends when it does.
                Ok(_) => drop(ours.read(&mut [0])),
                // QEMU is gone, and why is said elsewhere.
                Err(WriteError::Output { .. } | WriteError::Cancelled) => {}
                Err(WriteError::Content { error, .. }) => failure.set(tree.explain(&error)),
                Err(error @ WriteError::Panicked) => {
                    failure.set(JobError::Other(format!("{}: {error}", shown(tree.source.path()))));
                }
            }
        });
        Ok(theirs)
    }

    /// Why a file of it could not be read.
    fn explain(&self, error: &std::io::Error) -> JobError {
        let changed = self.content.changed();
        JobError::Other(match changed.named.first() {
            Some(file) => {
                let path = shown(&self.source.name_of(&file.path));
                format!("{path}: {} while it was sent to the guest", file.reason)
            }
            None => format!("{}: cannot read a file of it: {error}", shown(self.source.path())),
        })
    }
}

impl std::fmt::Debug for UnpackedTree {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("UnpackedTree").field("source", &self.source).field("destination", &self.destination).finish()
    }
}
