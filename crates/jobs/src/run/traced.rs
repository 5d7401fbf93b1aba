//! Records what a guest does with the trees of a run.
//!
//! Where the guest asks this process for files (virtiofs, 9P), each request passes a recorder. The record is complete: the guest has just
//! booted, so its kernel has nothing cached. A request over virtiofs has the number of its thread, too. A guest with a disk asks for
//! blocks: they tell which files' content was read, at least in part, but show no look-ups, listings or empty files.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_block::{Content, ReadFiles};
use inarch_lifecycle::LifecycleError;
use inarch_tree::{InodeId, Tree};
use inarch_vfs::{FileSystem, Identity, RecordLevel, Recorder, Recording};
use inarch_vm::session::Outcome;
use rustix::fs::{Mode, OFlags, open};

use super::observed::Observed;
use inarch_trace::{Extent, Gathering, MOST_BYTES, Statistics, Touched, TraceReport, TracedTree, listed_beneath};

/// The trees of a run, as far as they are recorded. All clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunTrace {
    taken: Arc<Mutex<HashMap<PathBuf, Taken>>>,
    observed: Option<Observed>,
}

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
    Requests {
        recording: Recording,
        writer: Gathering,
        /// This machine's directory, if the guest changes it.
        changes: Option<OwnedFd>,
    },
    /// The files whose blocks were read.
    Blocks { tree: Arc<Tree>, read: Arc<ReadFiles> },
}

impl RunTrace {
    /// Records nothing yet.
    pub fn new(level: RecordLevel) -> RunTrace {
        RunTrace { observed: (level == RecordLevel::Process).then(Observed::default), ..RunTrace::default() }
    }

    /// The guest's processes, if they are recorded.
    pub fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    /// The tree at this path in the guest.
    pub fn tree(&self, destination: &Path) -> TreeTrace {
        TreeTrace { run: self.clone(), destination: destination.to_owned() }
    }

    /// What was recorded until now. `ended` is how the command did; `ways` has the name of each tree's transport, and where the guest
    /// sees it. Records nothing more.
    ///
    /// # Errors
    /// A recording failed.
    pub fn finish(self, ended: &Outcome, ways: &[(PathBuf, &'static str)]) -> Result<TraceReport, LifecycleError> {
        let mut taken = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
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
        let mut touched = touched.without(is_outside);
        let inherited = Vec::new();
        let processes = self.observed.map(|observed| observed.finish());
        let lacks_processes = processes.as_ref().is_some_and(|processes| processes.lacks);
        let processes = processes.map_or_else(Vec::new, |processes| {
            touched.belongs_to_processes(&processes.threads);
            processes.processes
        });
        let statistics = Statistics::default();
        let verification = None;
        Ok(TraceReport {
            status: status(ended),
            is_timed_out: *ended == Outcome::TimedOut,
            touched,
            outside,
            inherited,
            accesses,
            processes,
            lacks_processes,
            statistics,
            trees,
            verification,
            is_complete: true,
        })
    }
}

/// How a command of a guest ended, as of wait(2). One that ran out of time was ended with its machine.
fn status(ended: &Outcome) -> ExitStatus {
    ExitStatus::from_raw(match ended {
        Outcome::Exited(status) | Outcome::Failed { status, .. } => i32::from(*status) << 8,
        Outcome::Signaled(signal) => i32::from(*signal),
        Outcome::TimedOut | Outcome::GuestDied => libc::SIGKILL,
    })
}

impl TreeTrace {
    /// The same as `layer`, and each request is recorded. `tells_threads` says whether requests have the numbers of threads;
    /// `changes` is the directory that they change.
    ///
    /// # Errors
    /// There can be no more threads, or the directory cannot be opened.
    pub fn over(
        &self,
        layer: Arc<dyn FileSystem>,
        tells_threads: bool,
        changes: Option<&Path>,
    ) -> io::Result<Arc<dyn FileSystem>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let changes = changes.map(|directory| open(directory, flags, Mode::empty())).transpose()?;
        let observed = self.run.observed.clone().filter(|_| tells_threads);
        let level = if observed.is_some() { RecordLevel::Process } else { RecordLevel::Command };
        let recording = Recording::new(level).with_repeats().with_names();
        let writer = Touched::beneath(&self.destination).within(MOST_BYTES).gather(&recording)?;
        self.take(Taken::Requests { recording: recording.clone(), writer, changes });
        let process_of = move |thread, _| observed.as_ref().map_or(thread, |observed| observed.process_of(thread));
        Ok(Arc::new(Recorder::new(layer, recording, process_of)))
    }

    /// The same as `content`, which belongs to `tree`, and the files that are read are recorded.
    pub fn watch(&self, content: Arc<dyn Content>, tree: &Arc<Tree>) -> Arc<dyn Content> {
        let read = Arc::new(ReadFiles::new(content, tree.inode_count()));
        self.take(Taken::Blocks { tree: Arc::clone(tree), read: Arc::clone(&read) });
        read
    }

    /// Replaces what an earlier start of the guest left, which never ran the command.
    fn take(&self, taken: Taken) {
        let mut trees = self.run.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Taken::Requests { recording, .. }) = trees.insert(self.destination.clone(), taken) {
            recording.end();
        }
    }
}

impl Taken {
    fn finish(self, destination: &Path) -> Result<(Touched, u64, Extent), LifecycleError> {
        match self {
            Taken::Requests { recording, writer, changes } => {
                recording.end();
                let written = writer.join().map_err(|_| LifecycleError::Panicked)?;
                let (mut touched, accesses) = written.map_err(LifecycleError::Wait)?;
                if let Some(root) = changes {
                    let beneath = |path: &Path| path.strip_prefix(destination).map(Path::to_owned).unwrap_or_default();
                    touched.find_renamed(&mut |path| listed_beneath(root.as_fd(), &beneath(path)));
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_as_it_was() {
        for (ended, expected) in [
            (Outcome::Exited(3), r#"{"trace":1,"status":3,"accesses":0}"#),
            (Outcome::Signaled(9), r#"{"trace":1,"signal":9,"accesses":0}"#),
            (Outcome::TimedOut, r#"{"trace":1,"timed_out":true,"accesses":0}"#),
        ] {
            let report = RunTrace::default().finish(&ended, &[]).unwrap();
            let mut lines = Vec::new();
            inarch_trace::lines(&report, false, &mut lines).unwrap();
            assert_eq!(String::from_utf8(lines).unwrap().lines().next(), Some(expected));
        }
    }
}
