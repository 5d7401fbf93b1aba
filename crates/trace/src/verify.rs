//! Runs a traced command again in a view of nothing but the recorded inputs, and compares what both runs made.
//!
//! If the command needed a file that the record lacks, the other run does not find it, and fails or makes something else. What it
//! writes goes to an upper layer that is thrown away. Where it differs, a third run sees everything that was there before the
//! command: if that one differs too, the command is not reproducible, and the record need not be the reason.
//!
//! A file that the command changed cannot be shown again as it was. Then nothing is claimed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;

use inarch_lifecycle::LifecycleError;
use inarch_lifecycle::confinement::{Access, Confinement, Grants, Work};
use inarch_source::spool_directory;
use inarch_vfs::{Changes, Only, RecordLevel, Shown};
use rustix::fs::{FileType, fstat, statvfs, tell};
use rustix::process::geteuid;

use super::compare::{Mismatch, changes, compare};
use super::content::is_changed;
use super::duty::{Current, Duty};
use super::minimise::{Minimised, minimise};
use super::serve::{Given, host, run_in_view};
use super::touched::{Change, Use};
use super::{TraceError, TraceReport, TraceRequest};
use inarch_upper::{Clients, Upper, UpperPlace};

/// The most lines that are kept of what a run printed, and bytes of them.
const LINES: usize = 5;
const LAST_BYTES: u64 = 4096;

/// Whether the recorded inputs are all that the command needs.
#[derive(Debug)]
pub enum Verification {
    /// They are: with nothing else there, it made the same.
    Verified {
        /// The number of files, directories and links that were compared.
        outputs: usize,
        /// Which of them it does not need, if that was asked.
        minimised: Option<Minimised>,
    },
    /// The command changed or removed what was there before, so there is nothing left to run it on again.
    Unclean {
        /// Those paths.
        changed: Vec<PathBuf>,
    },
    /// The trace was stopped before the end.
    Stopped,
    /// It did something else.
    Different(Different),
}

/// What another run with nothing but the recorded inputs did otherwise.
#[derive(Debug)]
pub struct Different {
    /// That run.
    pub again: Again,
    /// What it looked for in vain although it is there: at most 64 paths.
    pub missed: Vec<PathBuf>,
    /// Files that it used and that somebody else changed since the first run.
    pub changed: Vec<PathBuf>,
    /// A third run, with everything that was there before the command. If that differs too, the command is not reproducible.
    pub with_all: Again,
}

/// A run that was compared with the first one.
#[derive(Debug)]
pub struct Again {
    /// How it ended, if not as the first one did.
    pub ended: Option<Ended>,
    /// The last lines that it printed, if it ended otherwise.
    pub said: Vec<String>,
    /// What it made otherwise.
    pub mismatches: Vec<Mismatch>,
}

impl Again {
    /// Whether it did the same as the first one.
    pub fn is_same(&self) -> bool {
        self.ended.is_none() && self.mismatches.is_empty()
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this status.
    Status(ExitStatus),
    /// Before it began: why the command could not be executed.
    NotExecuted(String),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Status(status) => status.fmt(f),
            Ended::NotExecuted(reason) => f.write_str(reason),
        }
    }
}

/// A regular file as standard input, and where the command began to read it, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct InputFile(u64);

impl InputFile {
    /// What this process has; `None` if it is no regular file.
    pub fn of_this_process() -> Option<InputFile> {
        let input = io::stdin();
        let is_file = fstat(&input).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        tell(&input).ok().filter(|_| is_file).map(InputFile)
    }

    /// The same again, with a position of its own.
    fn reopened(self) -> io::Result<Stdio> {
        let mut file = File::open("/proc/self/fd/0")?;
        file.seek(SeekFrom::Start(self.0))?;
        Ok(file.into())
    }
}

/// A command that was traced, to be run again.
pub(super) struct Trial<'t> {
    pub request: &'t TraceRequest,
    /// The first run, with ignored paths.
    pub first: &'t TraceReport,
    /// Its standard input, if that can be read again.
    pub input: Option<InputFile>,
    /// The soft limit of descriptors that it had.
    pub limit: Option<u64>,
    pub current: &'t Current,
    pub duty: &'t Duty,
}

impl Trial<'_> {
    /// Runs it again and compares.
    pub fn verify(&self) -> Result<Verification, TraceError> {
        if self.duty.stop.is_stopped() {
            return Ok(Verification::Stopped);
        }
        let made = changes(&self.first.touched, &|path| self.is_ignored(path));
        let changed: Vec<PathBuf> =
            made.iter().filter(|(_, change)| **change != Change::Made).map(|(path, _)| (*path).to_owned()).collect();
        if !changed.is_empty() {
            return Ok(Verification::Unclean { changed });
        }
        match self.compare_with(&made) {
            // Its first signal came before the command of a further run.
            Err(TraceError::Interrupted(_)) => Ok(Verification::Stopped),
            verification => verification,
        }
    }

    /// The same where there is something to run it on again. `made` is what the first run made.
    fn compare_with(&self, made: &BTreeMap<&Path, Change>) -> Result<Verification, TraceError> {
        let shown = self.shown()?;
        let (again, missed) = self.run(shown.clone(), made)?;
        if self.duty.stop.is_stopped() {
            return Ok(Verification::Stopped);
        }
        if again.is_same() {
            let minimised = self.request.minimise.map(|most| self.minimise(&shown, made, most)).transpose()?;
            return Ok(Verification::Verified { outputs: made.len(), minimised });
        }
        let (with_all, _) = self.run(shown.and_all_others(), made)?;
        if self.duty.stop.is_stopped() {
            return Ok(Verification::Stopped);
        }
        Ok(Verification::Different(Different { again, missed, changed: self.changed_meanwhile(), with_all }))
    }

    /// The files whose content the command used, and which are not as they were then.
    fn changed_meanwhile(&self) -> Vec<PathBuf> {
        let inputs = self.first.touched.inputs().filter(|input| input.is_content());
        let changed = inputs.filter(|input| input.identity.is_some_and(|identity| is_changed(input.path, identity)));
        changed.map(|input| input.path.to_owned()).collect()
    }

    /// Looks for files without which it makes the same.
    fn minimise(&self, shown: &Shown, made: &BTreeMap<&Path, Change>, most_runs: u32) -> Result<Minimised, TraceError> {
        let is_directory = |mode: u32| mode & libc::S_IFMT == libc::S_IFDIR;
        let used = self.first.touched.inputs().filter(|input| !input.is(Use::Absent));
        let files = used.filter(|input| input.identity.is_some_and(|identity| !is_directory(identity.mode)));
        let files: Vec<&Path> = files.map(|input| input.path).collect();
        minimise(&files, most_runs, |away| {
            let mut shown = shown.clone();
            away.iter().for_each(|path| shown.hide(path.as_os_str().as_bytes()));
            let again = match self.run(shown, made) {
                Err(TraceError::Interrupted(_)) => return Ok(None),
                run => run?.0,
            };
            // A run that was stopped says nothing.
            Ok((!self.duty.stop.is_stopped()).then(|| again.is_same()))
        })
    }

    fn is_ignored(&self, path: &Path) -> bool {
        self.request.ignored.is_ignored(path)
    }

    /// What the command used of what was there before.
    fn shown(&self) -> Result<Shown, TraceError> {
        let directory = std::env::current_dir();
        let directory =
            directory.map_err(|error| LifecycleError::Setup { what: "the path of the working directory", error })?;
        let mut shown = Shown::nothing();
        for path in self.first.outside.iter().chain([&directory]) {
            shown.show(path.as_os_str().as_bytes());
        }
        for input in self.first.touched.inputs() {
            let path = input.path.as_os_str().as_bytes();
            if input.is(Use::Absent) {
                shown.hide(path);
                continue;
            }
            match &input.identity {
                Some(identity) => shown.show_directory(path, identity),
                None => shown.show(path),
            }
            if let Some(names) = input.names() {
                shown.list(path, names.map(|name| name.as_bytes()));
            }
        }
        Ok(shown)
    }

    /// Runs it with this much visible, and compares what it made with what the first run `made`. Also returns what it missed.
    fn run(&self, shown: Shown, made: &BTreeMap<&Path, Change>) -> Result<(Again, Vec<PathBuf>), TraceError> {
        let setup = |error: io::Error| LifecycleError::Setup { what: "a temporary file", error };
        let no_input = |error: io::Error| LifecycleError::Setup { what: "the standard input once more", error };
        let host = host(true)?;
        let only = Arc::new(Only::of(Arc::clone(&host) as _, shown));
        let place = UpperPlace::ThrownAway(spool_directory());
        let clients = Clients { changes: Changes::Guest, without_opening: false, opens_directories: false };
        let lower = only.clone();
        // A thread that makes files for others has a umask of its own, which the command must not inherit.
        let over = thread::scope(|scope| scope.spawn(|| Upper::over(lower, &place, clients, None)).join());
        let (layer, upper) = over.map_err(|_| LifecycleError::Panicked)??;
        let upper_path = upper.path().unwrap_or(Path::new("/")).join("upper");
        let mut confinement = Confinement::new(Work::Mount).granted(Path::new("/"), Access::Read)?;
        if let Some(path) = upper.path() {
            confinement = confinement.granted(path, Access::Change)?;
        }
        let mut printed = tempfile::tempfile_in(spool_directory()).map_err(setup)?;
        let given = Given {
            input: Some(self.input.map_or_else(|| Ok(Stdio::null()), InputFile::reopened).map_err(no_input)?),
            output: Some(printed.try_clone().map_err(setup)?.into()),
            errors: Some(printed.try_clone().map_err(setup)?.into()),
            limit: self.limit,
        };
        let request = TraceRequest { level: RecordLevel::Command, ..self.request.clone() };
        let started = |command| self.current.is(command);
        let mut points = inarch_mount::restrictions_beneath(Path::new("/"));
        let ran = run_in_view(&request, (layer, &host), confinement, given, self.duty, started);
        let (ended, mismatches) = match ran {
            Ok(report) => {
                let other = changes(&report.touched, &|path| self.is_ignored(path));
                let ended = (report.status != self.first.status).then_some(Ended::Status(report.status));
                (ended, compare(made, &other, &upper_path))
            }
            Err(TraceError::NotExecuted { reason, .. }) => (Some(Ended::NotExecuted(reason)), Vec::new()),
            Err(error) => return Err(error),
        };
        if (ended.is_some() || !mismatches.is_empty()) && is_full(&upper_path) {
            return Err(TraceError::NoRoom(spool_directory()));
        }
        let said = if ended.is_some() { last_lines(&mut printed).map_err(setup)? } else { Vec::new() };
        let missed = only.missed().into_iter().map(|path| PathBuf::from(OsString::from_vec(path)));
        // The way to mounts was looked for to make the view. One may have come or gone since this was asked for.
        points.extend(inarch_mount::restrictions_beneath(Path::new("/")));
        let missed = missed.filter(|path| !points.iter().any(|(point, _)| point.starts_with(path)));
        Ok((Again { ended, said, mismatches }, missed.collect()))
    }
}

/// Whether hardly anything more can be written where `path` is.
pub(super) fn is_full(path: &Path) -> bool {
    const LITTLE: u64 = 64 << 10;
    statvfs(path).is_ok_and(|fs| {
        // Some is kept for root.
        let blocks = if geteuid().is_root() { fs.f_bfree } else { fs.f_bavail };
        blocks.saturating_mul(fs.f_frsize) < LITTLE || fs.f_files > 0 && fs.f_ffree == 0
    })
}

/// The last lines of a file.
fn last_lines(file: &mut File) -> io::Result<Vec<String>> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
    let mut text = Vec::new();
    file.take(LAST_BYTES).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    // A terminal would obey them.
    let clean = |line: &str| line.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
    let lines: Vec<String> = text.lines().map(clean).collect();
    let first = lines.len().saturating_sub(LINES);
    Ok(lines.into_iter().skip(first).collect())
}
