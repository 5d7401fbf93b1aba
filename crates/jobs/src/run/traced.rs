//! Records what a guest does with the trees of a run.
//!
//! Where the guest asks this process for files (virtiofs, 9P), each request passes a recorder, and the answer is complete: the guest has
//! just booted, so its kernel knows nothing that it has not asked for. Where the guest has a disk, its kernel asks for
//! blocks. They tell which files' content was read, at least in part; look-ups, listings and empty files do not show.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_block::{Content, ReadFiles};
use inarch_tree::{InodeId, Tree};
use inarch_vfs::{FileSystem, Identity, RecordLevel, Recorder, Recording};

use crate::lifecycle::LifecycleError;
use crate::trace::{Extent, Gathering, Statistics, Touched, TraceReport, TracedTree};

/// The trees of a run, as far as they are recorded. All clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunTrace(Arc<Mutex<HashMap<PathBuf, Taken>>>);

/// A tree in the trace of a run.
#[derive(Clone, Debug)]
pub(crate) struct TreeTrace {
    run: RunTrace,
    /// Where the guest sees it.
    destination: PathBuf,
}

/// What is recorded of a tree.
#[derive(Debug)]
enum Taken {
    /// Each request.
    Requests { recording: Recording, writer: Gathering },
    /// The files whose blocks were read.
    Blocks { tree: Arc<Tree>, read: Arc<ReadFiles> },
}

impl RunTrace {
    /// The tree at this path in the guest.
    pub fn tree(&self, destination: &Path) -> TreeTrace {
        TreeTrace { run: self.clone(), destination: destination.to_owned() }
    }

    /// What was recorded until now. `status` is the command's; `ways` has the name of each tree's transport, and where the guest
    /// sees it. Records nothing more.
    ///
    /// # Errors
    /// A recording failed.
    pub fn finish(self, status: u8, ways: &[(PathBuf, &'static str)]) -> Result<TraceReport, LifecycleError> {
        let mut taken = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let (mut touched, mut accesses, mut trees, mut outside) = (Touched::default(), 0, Vec::new(), Vec::new());
        // The root first, and each mount point after what is above it.
        for (destination, way) in ways {
            let Some(taken) = taken.remove(destination) else {
                outside.push(destination.clone());
                continue;
            };
            let (here, count, extent) = taken.finish(destination)?;
            touched = touched.covered_by(here, destination);
            accesses += count;
            trees.push(TracedTree { destination: destination.clone(), way, extent });
        }
        // What the agent mounts of the guest's own kernel.
        outside.extend(["/dev", "/proc", "/run", "/sys"].map(PathBuf::from));
        let is_outside = |path: &Path| outside.iter().any(|outside| path.starts_with(outside));
        let touched = touched.without(is_outside);
        let status = ExitStatus::from_raw(i32::from(status) << 8);
        let (inherited, processes) = (Vec::new(), Vec::new());
        let statistics = Statistics::default();
        let verification = None;
        Ok(TraceReport {
            status,
            touched,
            outside,
            inherited,
            accesses,
            processes,
            statistics,
            trees,
            verification,
            is_complete: true,
        })
    }
}

impl TreeTrace {
    /// The same as `layer`, and each request is recorded.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn over(&self, layer: Arc<dyn FileSystem>) -> io::Result<Arc<dyn FileSystem>> {
        let recording = Recording::new(RecordLevel::Command).with_repeats().with_names();
        let writer = Touched::beneath(&self.destination).gather(&recording)?;
        self.take(Taken::Requests { recording: recording.clone(), writer });
        // A guest's numbers say nothing here.
        Ok(Arc::new(Recorder::new(layer, recording, |thread, _| thread)))
    }

    /// The same as `content`, which belongs to `tree`, and the files that are read are recorded.
    pub fn watch(&self, content: Arc<dyn Content>, tree: &Arc<Tree>) -> Arc<dyn Content> {
        let read = Arc::new(ReadFiles::new(content, tree.inode_count()));
        self.take(Taken::Blocks { tree: Arc::clone(tree), read: Arc::clone(&read) });
        read
    }

    /// In place of what an earlier start of the guest left, which never ran the command.
    fn take(&self, taken: Taken) {
        let mut trees = self.run.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Taken::Requests { recording, .. }) = trees.insert(self.destination.clone(), taken) {
            recording.end();
        }
    }
}

impl Taken {
    fn finish(self, destination: &Path) -> Result<(Touched, u64, Extent), LifecycleError> {
        match self {
            Taken::Requests { recording, writer } => {
                recording.end();
                let written = writer.join().map_err(|_| LifecycleError::Panicked)?;
                let (touched, accesses) = written.map_err(LifecycleError::Wait)?;
                Ok((touched, accesses, Extent::All))
            }
            Taken::Blocks { tree, read } => {
                let (touched, files) = files_read(destination, &tree, &read);
                Ok((touched, files, Extent::FilesRead))
            }
        }
    }
}

/// The files of a tree that were read, by each of their names, and their number.
fn files_read(destination: &Path, tree: &Tree, read: &ReadFiles) -> (Touched, u64) {
    let mut touched = Touched::beneath(destination);
    let mut count = 0;
    let mut directories = vec![(InodeId(0), Vec::new())];
    while let Some((directory, path)) = directories.pop() {
        for entry in tree.entries(directory) {
            let mut beneath = path.clone();
            if !beneath.is_empty() {
                beneath.push(b'/');
            }
            beneath.extend_from_slice(entry.name);
            let inode = tree.inode(entry.inode);
            if inode.file_type() == inarch_tree::FileType::Directory {
                directories.push((entry.inode, beneath));
            } else if read.was_read(entry.inode) {
                count += 1;
                let (mode, size, mtime) = (inode.mode(), inode.size(), inode.mtime());
                touched.was_read(&beneath, Identity { inode: inode.source_ino(), mode, size, mtime });
            }
        }
    }
    (touched, count)
}
