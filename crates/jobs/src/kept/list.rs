//! `runs` and `discard`: which runs are kept, and in what state.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use inarch_tree::{FileType, InodeId, Tree};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use serde::Serialize;

use super::record::Record;
use super::{Base, Bytes, KeptTree, Store};
use crate::JobError;

/// A kept run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Its name.
    pub name: String,
    /// Whether it can be gone on with.
    pub state: RunState,
    /// When it began, in seconds since 1970.
    pub created: u64,
    /// When it was last gone on with, in seconds since 1970.
    pub used: u64,
    /// Its last command.
    pub command: Vec<String>,
    /// How that ended; nothing while it runs and where it was killed.
    pub status: Option<u8>,
    /// Bytes on the host's disk that the guest's writes take.
    pub overlay_bytes: u64,
    /// Its trees, the root's first.
    pub trees: Vec<TreeReport>,
}

/// A tree of a kept run.
#[derive(Clone, Debug, Serialize)]
pub struct TreeReport {
    /// The host's directory.
    pub source: String,
    /// Where the guest sees it.
    pub destination: String,
    /// Whether the guest cannot write to it.
    pub read_only: bool,
    /// Whether the host's directory is no longer what the guest was given.
    pub changed: bool,
}

/// Whether a kept run can be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// It can.
    Clean,
    /// Another process uses it.
    InUse,
    /// What it stands on is another one now.
    HostTreeChanged,
    /// An apply has begun and not ended.
    ApplyUnfinished,
}

/// All kept runs, by name.
pub fn runs() -> Result<Vec<RunReport>, JobError> {
    let store = Store::of_user()?;
    let mut reports = Vec::new();
    for name in store.names()? {
        if let Some((record, used)) = store.look(&name)? {
            reports.push(report(&store, name, &record, used));
        }
    }
    Ok(reports)
}

/// Takes the kept run `name` away, with all that its guest wrote. One with an unfinished apply only if `force` is set:
/// that may have left files of its own in the host's tree.
pub fn discard(name: &str, force: bool) -> Result<(), JobError> {
    let store = Store::of_user()?;
    let run = store.open(name)?;
    if !force && run.record.as_ref().is_some_and(|record| record.applying.is_some()) {
        return Err(JobError::Other(format!(
            "an apply of the kept run '{name}' has begun and not ended; inarch apply {name} finishes it, --force \
             discards the run and leaves what was applied"
        )));
    }
    store.discard(run)
}

fn report(store: &Store, name: String, record: &Record, used: bool) -> RunReport {
    let lossy = |bytes: &Bytes| bytes.to_os_string().to_string_lossy().into_owned();
    let trees: Vec<TreeReport> = record
        .trees
        .iter()
        .map(|tree| TreeReport {
            source: tree.source().to_string_lossy().into_owned(),
            destination: tree.destination().to_string_lossy().into_owned(),
            read_only: tree.read_only,
            changed: !used && record.applied.is_none() && is_changed(&store.base(&name, tree.ordinal), tree),
        })
        .collect();
    let state = match record {
        _ if used => RunState::InUse,
        Record { applying: Some(_), .. } => RunState::ApplyUnfinished,
        _ if trees.iter().any(|tree| tree.changed) => RunState::HostTreeChanged,
        _ => RunState::Clean,
    };
    let size = |tree: &KeptTree| store.overlay(&name, tree.ordinal).metadata().map_or(0, |file| file.blocks() * 512);
    RunReport {
        state,
        created: record.created,
        used: record.used,
        command: record.command.iter().map(lossy).collect(),
        status: record.status,
        overlay_bytes: record.trees.iter().map(size).sum(),
        trees,
        name,
    }
}

/// Whether the host's tree is another one than the one kept; a run that has none yet begins with whatever there is.
fn is_changed(base: &Base, tree: &KeptTree) -> bool {
    !tree.read_only && base.file.exists() && base.load().map_or(true, |base| !is_on_host(&base, &tree.source()))
}

/// Whether a directory of the host is still as `tree` says: names that were added show in the times of the directory
/// that they are in.
fn is_on_host(tree: &Tree, source: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(root) = openat(CWD, source, flags, Mode::empty()) else { return false };
    let directories = tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Directory);
    for (id, _) in directories {
        let opened = match tree.path(id) {
            path if path.is_empty() => openat(&root, c".", flags, Mode::empty()),
            path => openat(&root, &path[..], flags | OFlags::NOFOLLOW, Mode::empty()),
        };
        let Ok(directory) = opened else { return false };
        let is_as_kept = |name: &[u8], inode: InodeId| {
            let inode = tree.inode(inode);
            statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|now| {
                let ctime = inode.ctime();
                (now.st_ino, now.st_ctime, now.st_ctime_nsec as u32)
                    == (inode.source_ino(), ctime.seconds, ctime.nanoseconds)
            })
        };
        if (id == InodeId::ROOT && !is_as_kept(b".", id))
            || !tree.entries(id).all(|entry| is_as_kept(entry.name, entry.inode))
        {
            return false;
        }
    }
    true
}
