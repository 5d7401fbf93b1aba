//! `apply`: brings what the guest of a kept run changed into the host's tree.
//!
//! 1. Every path that differs is looked at on the host ([`check`]): what is no longer as it was scanned, nor yet as the
//!    guest has it, is a conflict, and left alone.
//! 2. The record says that an apply has begun, and which paths it leaves alone. Killed from here on, it is gone on
//!    with: each step looks at what is there, and what is as the guest has it is done.
//! 3. What has other names in the guest while something else takes its old one is put aside under a name of ours.
//! 4. Directories and content are made, in the order of paths: each file whole under no name or one of ours, and then
//!    put in its place in one step. What was there is compared with the scan once more when it has come out.
//! 5. What is gone in the guest is removed, the deepest first; then directories get their attributes.
//! 6. The record says that the apply has ended. If nothing is left to be applied, the next run begins with the host's
//!    tree as it is ([`super::spent`]).

mod attributes;
mod check;
mod crew;
mod host;
mod links;
mod make;
mod put;
mod steps;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::bytes::Bytes;
use super::diff::{RunDiff, TreeDiff};
use super::record::{Applied, Applying, Record};
use super::{KeptRun, Store, now};
use crate::JobError;
use crate::notes::shown;
use check::Check;
use host::Host;

/// What to apply.
#[derive(Clone, Debug)]
pub struct ApplyRequest {
    /// The kept run.
    pub name: String,
    /// Absolute paths in the guest: these and what is below them; everything if there are none.
    pub paths: Vec<PathBuf>,
    /// Replace and remove what changed on the host too.
    pub force: bool,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What came of an apply.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ApplyReport {
    /// What was done, or would be, to which path of the host: `add`, `change`, `remove`, `attributes`.
    pub done: Vec<(&'static str, String)>,
    /// Paths that were as the guest has them already.
    pub already: u64,
    /// Paths of the host that were left alone, and why.
    pub conflicts: Vec<(String, String)>,
    /// Paths that could not be done, and why.
    pub failures: Vec<(String, String)>,
    /// What was set neither of owners nor of extended attributes, for want of privilege or support, a line for each kind.
    pub lost: Vec<String>,
    /// What else the user should know, a line each.
    pub notes: Vec<String>,
    /// Whether the run is spent: its next command begins with the host's tree as it is.
    pub complete: bool,
}

impl ApplyReport {
    /// Whether everything that was asked for was done.
    pub fn is_whole(&self) -> bool {
        self.conflicts.is_empty() && self.failures.is_empty() && self.lost.is_empty()
    }
}

/// Applies what the guest of a kept run changed.
///
/// # Errors
/// Nothing could be applied at all. What cannot be done to single paths is in the report.
pub fn apply(request: &ApplyRequest) -> Result<ApplyReport, JobError> {
    let mut run = Store::of_user()?.open(&request.name)?;
    let Some(record) = run.record.clone() else {
        return Err(JobError::Other(format!("the kept run '{}' has no record", request.name)));
    };
    let diff = RunDiff::of(&run, &record)?;
    let mut report = ApplyReport { notes: diff.notes(), ..ApplyReport::default() };
    check_paths(request, &diff)?;
    let mut works = Vec::new();
    for tree in diff.trees() {
        works.push((tree, open(tree)?));
    }
    let earlier = record.applying.as_ref().map(Earlier::new);
    let mut checks = Vec::new();
    for (tree, host) in &mut works {
        checks.push(Check::all(tree, host, request, earlier.as_ref(), &mut report));
    }
    if request.dry_run {
        for ((tree, _), check) in works.iter().zip(&checks) {
            report.done.extend(
                check.wanted().map(|(difference, _)| (steps::verb(difference), host_path(tree, &difference.path))),
            );
        }
        return Ok(report);
    }
    let token = begin(&mut run, record, request, &checks)?;
    for ((_, host), check) in works.iter_mut().zip(checks) {
        steps::apply_tree(&check, host, &token, request.force, &mut report);
    }
    end(&mut run, request, &mut report)?;
    Ok(report)
}

/// An apply that was interrupted.
struct Earlier {
    conflicts: Vec<PathBuf>,
    paths: Vec<PathBuf>,
}

impl Earlier {
    fn new(applying: &Applying) -> Earlier {
        let paths = |list: &[Bytes]| list.iter().map(Bytes::to_path).collect();
        Earlier { conflicts: paths(&applying.conflicts), paths: paths(&applying.paths) }
    }

    /// Whether it may have been in the midst of applying `path`.
    fn had_begun(&self, path: &Path) -> bool {
        let chosen = self.paths.is_empty() || self.paths.iter().any(|top| path.starts_with(top));
        chosen && !self.conflicts.iter().any(|conflict| conflict == path)
    }
}

/// Refuses a path that names nothing that changed: it may be misspelt.
fn check_paths(request: &ApplyRequest, diff: &RunDiff) -> Result<(), JobError> {
    let is_named = |path: &Path| {
        diff.trees()
            .iter()
            .any(|tree| tree.differences.iter().any(|difference| tree.in_guest(&difference.path).starts_with(path)))
    };
    match request.paths.iter().find(|path| !is_named(path)) {
        Some(path) => Err(JobError::Other(format!(
            "{}: the kept run '{}' changed nothing there; inarch diff {} lists what it changed",
            shown(path),
            request.name,
            request.name
        ))),
        None => Ok(()),
    }
}

/// Notes that an apply has begun; gives the word that makes its temporary names its own.
fn begin(run: &mut KeptRun, record: Record, request: &ApplyRequest, checks: &[Check<'_>]) -> Result<String, JobError> {
    let unique = || {
        let nanoseconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        format!("{:x}-{:x}", std::process::id(), nanoseconds.map_or(0, |since| since.as_nanos()))
    };
    let token = record.applying.as_ref().map_or_else(unique, |applying| applying.token.clone());
    let bytes = |paths: &[PathBuf]| paths.iter().map(|path| Bytes::path(path)).collect();
    let conflicts: Vec<PathBuf> = checks.iter().flat_map(Check::conflicts).collect();
    let applying = Applying { token: token.clone(), conflicts: bytes(&conflicts), paths: bytes(&request.paths) };
    run.save(Record { applying: Some(applying), applied: None, ..record })?;
    Ok(token)
}

fn end(run: &mut KeptRun, request: &ApplyRequest, report: &mut ApplyReport) -> Result<(), JobError> {
    let Some(record) = run.record.clone() else { return Ok(()) };
    report.complete = request.paths.is_empty() && report.is_whole();
    let applied = report.complete.then(Applied::now).transpose()?;
    run.save(Record { applying: None, applied, used: now(), ..record })
}

/// The first path of the host that is no longer as everything was applied.
pub(super) fn first_missing(diff: &RunDiff) -> Result<Option<String>, JobError> {
    let everything = ApplyRequest { name: String::new(), paths: Vec::new(), force: false, dry_run: true };
    for tree in diff.trees() {
        let mut host = open(tree)?;
        let check = Check::all(tree, &mut host, &everything, None, &mut ApplyReport::default());
        if let Some(difference) = check.first_missing() {
            return Ok(Some(host_path(tree, &difference.path)));
        }
    }
    Ok(None)
}

fn open(tree: &TreeDiff) -> Result<Host, JobError> {
    Host::open(&tree.tree.source(), tree.tree.cross)
        .map_err(|error| JobError::path(&tree.tree.source(), "cannot open the tree", error))
}

/// A path of a tree as the host has it, fit to be printed.
fn host_path(tree: &TreeDiff, path: &[u8]) -> String {
    use std::os::unix::ffi::OsStrExt;
    let source = tree.tree.source();
    shown(&if path.is_empty() { source } else { source.join(std::ffi::OsStr::from_bytes(path)) })
}
