//! `runs` and `discard`: lists kept runs with their states, and deletes them.

use serde::Serialize;

use super::beside::still_beside;
use super::record::Record;
use super::{Bytes, KeptTree, Store};
use crate::KeptError;

/// A kept run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// Its name.
    pub name: String,
    /// Whether it can be continued.
    pub state: RunState,
    /// When it began, in seconds since 1970.
    pub created: u64,
    /// When it was last used, in seconds since 1970.
    pub used: u64,
    /// Its last command.
    pub command: Vec<String>,
    /// How that ended; nothing while it runs and where it was killed.
    pub status: Option<u8>,
    /// How many names it added or changed.
    pub changed: u64,
    /// How many of the host's names it removed.
    pub deleted: u64,
    /// Whether there are uncounted changes, of a command that is running or was killed.
    pub is_more: bool,
    /// Files that applies left beside their places, under names of their own.
    pub left: Vec<String>,
    /// Bytes on the host's disk that it takes.
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
}

/// Whether a kept run can be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunState {
    /// It can.
    Clean,
    /// Another process uses it.
    InUse,
    /// An apply has begun and not ended.
    ApplyUnfinished,
    /// Everything was applied: its next command begins with the host's trees as they are then.
    Applied,
}

/// All kept runs, by name.
pub fn runs() -> Result<Vec<RunReport>, KeptError> {
    let store = Store::of_user()?;
    let mut reports = Vec::new();
    for name in store.names()? {
        if let Some((record, used)) = store.look(&name)? {
            reports.push(report(&store, name, &record, used));
        }
    }
    Ok(reports)
}

/// The names of all kept runs.
///
/// # Errors
/// They cannot be listed.
pub fn names() -> Result<Vec<String>, KeptError> {
    Store::of_user()?.names()
}

/// Deletes the kept run `name`, with everything that its guest wrote. If it has an unfinished apply, or one that left
/// files in the host's tree, only with `force`.
pub fn discard(name: &str, force: bool) -> Result<(), KeptError> {
    let store = Store::of_user()?;
    let run = store.open(name)?;
    if !force && run.record.as_ref().is_some_and(|record| record.applying.is_some()) {
        let more = ", --force discards the run and leaves what was applied";
        return Err(KeptError::Applying { name: name.to_owned(), more });
    }
    let left = run.record.as_ref().map(still_beside).unwrap_or_default();
    if let (false, Some(first)) = (force, left.first()) {
        let more = if left.len() > 1 { format!(", and {} more", left.len() - 1) } else { String::new() };
        return Err(KeptError::Beside { name: name.to_owned(), left: format!("{first}{more}") });
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
        })
        .collect();
    // A run in use changes meanwhile. A command that needs unreadable data reports it.
    let held = |tree: &KeptTree| store.files(&name, tree.ordinal).load_layer().ok().flatten();
    // What was applied is the host's, though it is kept until the next command.
    let unapplied = record.trees.iter().filter(|tree| !tree.read_only && record.applied.is_none());
    let counts = unapplied.filter_map(held).map(|layer| layer.counts());
    let (changed, deleted) = counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let unfolded = |tree: &KeptTree| store.files(&name, tree.ordinal).unfolded().ok().flatten().is_some();
    let is_more = record.trees.iter().any(|tree| !tree.read_only && unfolded(tree));
    let state = match record {
        _ if used => RunState::InUse,
        Record { applying: Some(_), .. } => RunState::ApplyUnfinished,
        Record { applied: Some(_), .. } => RunState::Applied,
        _ => RunState::Clean,
    };
    let size = |tree: &KeptTree| store.files(&name, tree.ordinal).bytes();
    RunReport {
        state,
        created: record.created,
        used: record.used,
        command: record.command.iter().map(lossy).collect(),
        status: record.status,
        changed,
        deleted,
        is_more,
        left: still_beside(record),
        overlay_bytes: record.trees.iter().map(size).sum(),
        trees,
        name,
    }
}
