//! [`RunReport`]: what a run reports at its end.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use inarch_lifecycle::{counted, shown};
use inarch_vm::protocol::CpuTime;
pub use inarch_vm::session::Outcome;
use serde::Serialize;

use crate::JobError;
use crate::caches::Published;
use crate::device::DiskReport;
use crate::notes::DiskNote;
use crate::share::{FileReport, OperationReport};
use inarch_trace::TraceReport;

/// The status of a command that ran out of time.
const TIMED_OUT: u8 = 124;

/// What the user should know when a run has ended. Its text is one line.
#[derive(Clone, Debug)]
pub enum RunNote {
    /// What the use of a disk showed.
    Disk(DiskNote),
    /// Not all of the guest's processes are in the trace.
    TraceLacksProcesses,
    /// Not all paths are in the trace: there were more than are remembered.
    TraceLacksPaths,
}

impl fmt::Display for RunNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunNote::Disk(note) => note.fmt(f),
            RunNote::TraceLacksProcesses => f.write_str("the trace lacks something of the guest's processes"),
            RunNote::TraceLacksPaths => f.write_str("the trace lacks paths: the guest used more than are remembered"),
        }
    }
}

/// How a run went.
#[derive(Debug)]
pub struct RunReport {
    /// How the command ended, or why there is no telling.
    pub result: Result<Outcome, JobError>,
    /// What took how long.
    pub phases: Phases,
    /// When each part began, if the command ended.
    pub moments: Option<Moments>,
    /// What the command took, if it ended.
    pub cpu: Option<CpuSeconds>,
    /// How long the guest's processors had nothing to do meanwhile.
    pub rest: Option<RestSeconds>,
    /// The time of this machine's processors that the guest's machine took until the command's end, in seconds: QEMU, or User-Mode Linux.
    pub machine_cpu: Option<f64>,
    /// The trees, in the order in which the guest mounts them.
    pub trees: Vec<TreeReport>,
    /// What the user should know: files that changed, disks that ran full.
    pub notes: Vec<RunNote>,
    /// What may help where the command failed: files of this machine that the guest does not have.
    pub hints: Vec<NotInGuest>,
    /// Of what use its caches were.
    pub caches: Vec<CacheUse>,
    /// What the guest did with its trees, if that was to be recorded and the command ended.
    pub trace: Option<TraceReport>,
}

impl RunReport {
    /// A run that failed before anything was started.
    pub(super) fn of_failure(error: JobError) -> RunReport {
        RunReport {
            result: Err(error),
            phases: Phases::default(),
            moments: None,
            cpu: None,
            rest: None,
            machine_cpu: None,
            trees: Vec::new(),
            notes: Vec::new(),
            hints: Vec::new(),
            caches: Vec::new(),
            trace: None,
        }
    }

    /// What took how long. A run whose command did not end has no steps.
    pub fn steps(&self) -> Vec<Step> {
        let Some(Moments { machine, kernel, agent, command, end, machine_ended }) = self.moments else {
            return Vec::new();
        };
        let step = |what: &str, in_guest, from: f64, to: f64| {
            let [began, took] =
                [from, to - from].map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
            Step { what: what.to_owned(), in_guest, began, took }
        };
        vec![
            step("prepare", false, 0.0, machine),
            step("start the machine", false, machine, kernel),
            step("boot the kernel", true, kernel, agent),
            step("load drivers, mount trees", true, agent, command),
            step("the command", true, command, end),
            step("end the machine", false, end, machine_ended),
            step("keep or publish writes", false, machine_ended, self.phases.total),
        ]
    }

    /// The exit status that a shell would give the command, 124 if it ran out of time; none where the run failed.
    pub fn status(&self) -> Option<u8> {
        match &self.result {
            Ok(Outcome::Exited(status)) => Some(*status),
            Ok(Outcome::Signaled(signal)) => Some(128 + signal),
            Ok(Outcome::TimedOut) => Some(TIMED_OUT),
            Ok(Outcome::Failed { status, .. }) | Err(JobError::Command { status, .. }) => Some(*status),
            Ok(Outcome::GuestDied) | Err(_) => None,
        }
    }
}

/// A file that a failed command was given, or that it is itself, and that exists on this machine but not in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotInGuest {
    /// The file.
    pub path: PathBuf,
    /// The guest's own directory that hides it, such as `/tmp`; `None` if the guest's root is not this machine's.
    pub own_directory: Option<PathBuf>,
    /// The directory that brings it along as a tree; `None` if that would be `/`.
    pub tree: Option<PathBuf>,
}

impl fmt::Display for NotInGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is on this machine, and not in the guest: ", shown(&self.path))?;
        match &self.own_directory {
            Some(own) => write!(f, "the guest's {} is its own", shown(own))?,
            None => f.write_str("the guest's root is another")?,
        }
        self.tree.as_ref().map_or(Ok(()), |tree| write!(f, "; --tree {} brings it along", shown(tree)))
    }
}

/// Of what use a cache was to a run, and what the run added to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheUse {
    /// The cache.
    pub name: String,
    /// Whose it is.
    pub scope: String,
    /// How many files the guest read of it.
    pub files_read: u64,
    /// How many bytes of files.
    pub bytes_read: u64,
    /// The number of the generation that was published; `None` if none was.
    pub generation: Option<u64>,
    /// How many files are new or changed in it.
    pub files_published: u64,
    /// How many bytes of them were not in the cache.
    pub bytes_published: u64,
    /// How many paths stay as other runs published them meanwhile.
    pub lost: u64,
    /// Seconds that finding and publishing the changes took.
    pub seconds: f64,
    /// Why nothing could be published.
    pub error: Option<String>,
}

impl CacheUse {
    pub(super) fn new(name: String, scope: String) -> CacheUse {
        CacheUse {
            name,
            scope,
            files_read: 0,
            bytes_read: 0,
            generation: None,
            files_published: 0,
            bytes_published: 0,
            lost: 0,
            seconds: 0.0,
            error: None,
        }
    }

    pub(super) fn add(&mut self, published: Published, took: Duration) {
        let Published { generation, files, bytes, lost } = published;
        (self.generation, self.files_published, self.bytes_published) = (generation, files, bytes);
        (self.lost, self.seconds) = (lost, took.as_secs_f64());
    }
}

impl fmt::Display for CacheUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: u64| format!("{} KiB", bytes.div_ceil(1024));
        let files = counted(self.files_read, "file", "files");
        write!(f, "cache {}: {files} read, {}", self.name, kib(self.bytes_read))?;
        match self.generation {
            None => f.write_str("; nothing published")?,
            Some(number) => {
                let files = counted(self.files_published, "file", "files");
                let new = kib(self.bytes_published);
                write!(f, "; {files} published, {new} new, in {:.1} s (generation {number})", self.seconds)?;
            }
        }
        match self.lost {
            0 => Ok(()),
            lost => write!(f, "; {} as another run has them", counted(lost, "path stays", "paths stay")),
        }
    }
}

/// How long the parts of a run took, by this machine's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phases {
    /// Seconds from the run's start to the guest's first word.
    pub boot: f64,
    /// Seconds from there to the command's end; 0 if the guest did not speak.
    pub command: f64,
    /// Seconds from the run's start to its end.
    pub total: f64,
}

/// When each part of a run began, in seconds from the run's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Moments {
    /// QEMU, or User-Mode Linux, was started, for the last time if more than once; before that, the run was prepared.
    pub machine: f64,
    /// The guest's kernel began, by its clock; before that, the machine and its firmware.
    pub kernel: f64,
    /// The guest's first program began: it loads drivers, waits for the trees and mounts them.
    pub agent: f64,
    /// The command.
    pub command: f64,
    /// The command had ended, and its output, too.
    pub end: f64,
    /// The machine had ended. After that, what is kept is stored.
    pub machine_ended: f64,
}

/// A part of the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was done.
    pub what: String,
    /// Whether the guest did it.
    pub in_guest: bool,
    /// When it began, from the start of the run or the appliance.
    pub began: Duration,
    /// How long it took.
    pub took: Duration,
}

/// The processor's time that a command took in its guest, in seconds, with the children that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuSeconds {
    /// In programs.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

/// How long the processors of a guest had nothing to do while a command ran, all together: in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RestSeconds {
    /// Nothing at all, or to wait for something else than a disk: a live tree, a network, a clock.
    pub idle: f64,
    /// To wait for a disk.
    pub waiting_for_disks: f64,
}

impl From<CpuTime> for RestSeconds {
    fn from(time: CpuTime) -> RestSeconds {
        RestSeconds { idle: time.idle.as_secs_f64(), waiting_for_disks: time.waiting.as_secs_f64() }
    }
}

impl From<CpuTime> for CpuSeconds {
    fn from(time: CpuTime) -> CpuSeconds {
        CpuSeconds { user: time.user.as_secs_f64(), system: time.system.as_secs_f64() }
    }
}

/// How one tree was used.
#[derive(Clone, Debug, Serialize)]
pub struct TreeReport {
    /// Its source, as it was given.
    pub source: String,
    /// Where the guest saw it; none of the disk that only takes writes.
    pub destination: Option<String>,
    /// How it reached the guest: ext4, erofs, squashfs, virtiofs, 9p, tar.
    pub way: &'static str,
    /// Why it went this way, where that was left open.
    pub why: Option<&'static str>,
    /// Counters of the guest's requests, if it was a disk.
    pub disk: Option<DiskReport>,
    /// How many requests the guest made, if it was shared live.
    pub requests: Option<u64>,
    /// The same by kind, with their times, if they were measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationReport>,
    /// The files whose requests took the most time, if that was measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slowest_files: Vec<FileReport>,
}
