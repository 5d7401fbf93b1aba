//! Remembers a run of a command, so that the next can be skipped: a state is a directory with what the command used, what it left, and what
//! it printed.
//!
//! 1. A [`Run`] says what is about to be run: the command and its surroundings.
//! 2. [`State::check`] compares it with the remembered run, and each file that the remembered run used or left with what is there
//!    now. If nothing that counts has changed, it makes missing outputs again, and the command need not run.
//! 3. Otherwise the state [forgets](State::forget) before the command starts, so that a run that is killed leaves none, and
//!    [remembers](State::remember) the run after it has succeeded.

mod fact;
mod hashed;
mod key;
mod memory;
mod record;
mod restore;
mod store;

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_lifecycle::trust::Obstacle;

use super::capture::{Captured, MOST};
use super::globs::Ignored;
use super::{TraceReport, TraceRequest, serve};
use fact::{Seen, look};
use key::Key;
use memory::{Left, Memory, Said};
use record::Recorder;
use store::Store;

/// The longest file about a run, in bytes.
const LONGEST_FILE: u64 = 1 << 30;

/// A directory with what is remembered of a run, which this process has for itself.
#[derive(Debug)]
pub struct State {
    store: Store,
    earlier: Option<Memory>,
    /// When the command was about to run: no file that it used may be changed after that.
    began: Option<hashed::Time>,
}

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Something is in the way to the directory.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// The directory cannot be used.
    #[error(transparent)]
    Path(#[from] PathError),
    /// It has other content.
    #[error("{}: not empty, and no state of a trace; name another directory", shown(.0))]
    NotOurs(PathBuf),
    /// The trace that this process runs in uses it, and would wait for this one.
    #[error("{}: in use by the trace that this one runs in; name another directory", shown(.0))]
    Within(PathBuf),
}

/// Why a run is not remembered.
#[derive(Debug, thiserror::Error)]
pub enum NotRemembered {
    /// Another program changed something that the command used or made.
    #[error("{}: changed while the command ran, or too shortly before", shown(.0))]
    Changed(PathBuf),
    /// Nobody can know whether something changes.
    #[error("{}: {why}", shown(path))]
    Unknown {
        /// The path.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Something besides files.
    #[error("{0}")]
    Other(String),
    /// The state cannot be written.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// What would be run.
#[derive(Clone, Debug)]
pub struct Run {
    key: Key,
    outside: Vec<PathBuf>,
    ignored: Ignored,
    /// Files that this program writes about the run.
    own: Vec<PathBuf>,
    is_joint: bool,
}

impl Run {
    /// A run of `request` by this process. `options` are named parts of it that count besides. `own` are absolute paths of files that
    /// are written about it: a listing is the same with and without them. `is_joint` says whether standard output and standard error lead
    /// to the same place.
    ///
    /// # Errors
    /// Something of this process cannot be found out.
    pub fn new(
        request: &TraceRequest,
        options: &[(&str, Vec<u8>)],
        own: Vec<PathBuf>,
        is_joint: bool,
    ) -> std::io::Result<Run> {
        let outside = serve::outside_of(request);
        let (key, ignored) = (key::key(request, &outside, options)?, request.ignored.clone());
        Ok(Run { key, outside, ignored, own, is_joint })
    }

    /// Whether a name does not count in a listing.
    fn is_left_out(&self, path: &Path) -> bool {
        self.outside.iter().any(|outside| path.starts_with(outside))
            || self.own.iter().any(|own| own == path)
            || self.ignored.is_ignored(path)
    }
}

/// What came of a comparison.
#[derive(Debug)]
pub enum Verdict {
    /// Nothing that counts has changed.
    Unchanged(Earlier),
    /// The command has to run, for these reasons: one at least.
    Changed(Vec<String>),
}

/// A run that need not be repeated.
#[derive(Debug)]
pub struct Earlier {
    /// When it ended.
    pub at: SystemTime,
    /// What it printed.
    pub said: Captured,
    /// Files that were written about it, by name.
    pub files: Vec<(String, Vec<u8>)>,
    /// The number of outputs that were missing, and were made again.
    pub restored: usize,
}

impl State {
    /// Opens the directory, making it if it is missing. Waits until no other process has it; calls `waiting` before that.
    ///
    /// # Errors
    /// It has other content, another user could write to it, or it cannot be made.
    pub fn open(path: &Path, waiting: impl FnOnce()) -> Result<State, StateError> {
        Ok(State { store: Store::open(path, waiting)?, earlier: None, began: None })
    }

    /// Its absolute path. It must be [outside](TraceRequest::outside) of what is traced.
    pub fn path(&self) -> &Path {
        self.store.home()
    }

    /// Compares a run with the one that is remembered, and makes missing outputs again if nothing has changed.
    pub fn check(&mut self, run: &Run) -> Verdict {
        let one = |reason: String| Verdict::Changed(vec![reason]);
        let memory = match self.store.state() {
            Ok(Some(file)) => match Memory::read(BufReader::new(file)) {
                Ok(memory) => memory,
                Err(reason) => return one(format!("what is remembered cannot be read: {reason}")),
            },
            Ok(None) => return one("no earlier run is remembered".to_owned()),
            Err(error) => return one(error.to_string()),
        };
        let memory = self.earlier.insert(memory);
        let mut reasons = key_differences(memory, run);
        if !reasons.is_empty() {
            return Verdict::Changed(reasons);
        }
        let is_left_out = |path: &Path| memory.outputs.contains_key(path) || run.is_left_out(path);
        for (path, fact) in &memory.inputs {
            reasons.extend(fact.difference(path, &is_left_out).map(|what| reason(path, &what)));
        }
        let mut missing: Vec<(&Path, &Left)> = Vec::new();
        for (path, left) in &memory.outputs {
            if left.is_kept && matches!(look(path), Ok(Seen::Absent)) {
                missing.push((path, left));
            } else {
                reasons.extend(left.fact.difference(path, &is_left_out).map(|what| reason(path, &what)));
            }
        }
        if !reasons.is_empty() {
            return Verdict::Changed(reasons);
        }
        match again(memory, &missing, &self.store) {
            Ok(earlier) => Verdict::Unchanged(earlier),
            Err(error) => one(error.to_string()),
        }
    }

    /// Remembers nothing any more: the command is about to run.
    ///
    /// # Errors
    /// The directory cannot be written to.
    pub fn forget(&mut self) -> Result<(), StateError> {
        self.store.forget()?;
        self.began = Some(hashed::next_tick());
        Ok(())
    }

    /// Remembers a run with status 0, what it printed, and files about it by name. If that fails, the state is empty.
    ///
    /// # Errors
    /// Something that the command used was changed meanwhile or cannot be known, or the state cannot be written.
    pub fn remember(
        &self,
        run: &Run,
        report: &TraceReport,
        said: &Captured,
        files: &[(&str, Vec<u8>)],
    ) -> Result<(), NotRemembered> {
        let remembered = self.try_to_remember(run, report, said, files);
        if remembered.is_err() {
            // There may be no room.
            self.store.sweep(&std::collections::BTreeSet::new());
        }
        remembered
    }

    fn try_to_remember(
        &self,
        run: &Run,
        report: &TraceReport,
        said: &Captured,
        files: &[(&str, Vec<u8>)],
    ) -> Result<(), NotRemembered> {
        let other = |why: &str| Err(NotRemembered::Other(why.to_owned()));
        if !report.status.success() {
            return other("the command failed");
        }
        if !report.is_complete {
            return other("the trace ended before the processes of the command");
        }
        if let Some(inherited) = report.inherited.first() {
            let number = inherited.descriptor;
            return Err(NotRemembered::Unknown {
                path: inherited.path.clone(),
                why: format!("the command was given it open, as descriptor {number}"),
            });
        }
        if let Some(lacks) = said.lacks {
            return other(lacks);
        }
        let Some(began) = self.began else { return other("the run before was not forgotten") };
        let (is_left_out, earlier) = (|path: &Path| run.is_left_out(path), self.earlier.as_ref());
        let recorder = Recorder { store: &self.store, report, earlier, began, is_left_out: &is_left_out };
        let (inputs, outputs) = recorder.facts()?;
        let kept = Said { sha256: self.store.keep(&said.bytes)?, pieces: said.pieces.clone() };
        let mut memory = Memory {
            at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            is_joint: said.is_joint,
            key: run.key.clone(),
            inputs,
            outputs,
            said: Some(kept),
            ..Memory::default()
        };
        for (name, bytes) in files {
            memory.files.insert((*name).to_owned(), self.store.keep(bytes)?);
        }
        Ok(self.store.commit(&memory)?)
    }
}

fn reason(path: &Path, what: &str) -> String {
    format!("{} ({what})", shown(path))
}

/// What is different about the run itself.
fn key_differences(memory: &Memory, run: &Run) -> Vec<String> {
    let names = memory.key.keys().chain(run.key.keys().filter(|name| !memory.key.contains_key(*name)));
    let different = names.filter(|name| memory.key.get(*name) != run.key.get(*name));
    let mut reasons: Vec<String> = different.map(|name| shown(Path::new(&*String::from_utf8_lossy(name)))).collect();
    if memory.is_joint && !run.is_joint {
        reasons.push("standard errors do not go where standard output goes".to_owned());
    }
    reasons
}

/// Makes all of a run again without running it. All that is kept of it is checked before anything is made.
fn again(memory: &Memory, missing: &[(&Path, &Left)], store: &Store) -> Result<Earlier, PathError> {
    let mut said = Captured { is_joint: memory.is_joint, ..Captured::default() };
    if let Some(Said { sha256, pieces }) = &memory.said {
        (said.bytes, said.pieces) = (store.read(sha256, MOST)?, pieces.clone());
    }
    let files = memory.files.iter().map(|(name, sha256)| Ok((name.clone(), store.read(sha256, LONGEST_FILE)?)));
    let files = files.collect::<Result<Vec<_>, PathError>>()?;
    for digest in missing.iter().filter_map(|(_, left)| left.sha256()) {
        store.check(digest)?;
    }
    restore::restore(missing, store)?;
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(memory.at)).unwrap_or(UNIX_EPOCH);
    Ok(Earlier { at, said, files, restored: missing.len() })
}
