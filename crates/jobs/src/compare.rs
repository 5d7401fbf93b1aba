//! `compare`: runs a command in guests that have its files by different transports, or on this machine, and measures how long each way takes.
//!
//! 1. Each way has a turn in every round, and each round begins with a different one, so that changes on this machine meanwhile affect
//!    all ways alike.
//! 2. Before a run, this machine's page cache is emptied, or it is left as the runs before have filled it ([`PageCache`]).
//! 3. A package cache that the guest gets ([`RunCache`]) is as earlier runs have left it, or empty ([`PackageCaches`]).
//! 4. A way that fails is reported, and has no further turns. The others go on.
//!
//! What counts is the whole run, from its start to its end: preparation, boot, command, and the machine's end.

mod handle;
mod host;
mod machine;
mod report;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_cache::{CachePlace, Scope};
use inarch_lifecycle::Events;
use inarch_lifecycle::scratch::Scratch;
use rustix::fs::sync;

use crate::JobError;
use crate::run::{self, Mode, Publish, Root, RunCache, RunEvent, RunRequest, Streams, TreeMount, Way, WireOptions};

pub use handle::{CompareHandle, CompareStopper, start};
use handle::{Subject, Turn};
pub use host::{HostPlace, HostWay};
pub use machine::Machine;
pub use report::{Best, CommandAlone, CompareEvent, CompareReport, Measured, Next, OneRun, PackageCaches, PageCache};

/// How much of a failed command's output is told.
const TOLD: u64 = 600;

/// Where this machine's caches are emptied.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// What to compare.
#[derive(Clone, Debug)]
pub struct CompareRequest {
    /// The run. Each transport in turn takes its root, and those trees whose transport is open.
    pub run: RunRequest,
    /// The transports, and how requests of live ones travel.
    pub ways: Vec<(Way, WireOptions)>,
    /// Command lines of this machine, which have their turns after the transports.
    pub host_ways: Vec<HostWay>,
    /// How often each is measured in each state of the page cache; at least 1.
    pub runs: u32,
    /// States of this machine's page cache.
    pub page_caches: Vec<PageCache>,
    /// States of the run's package caches; each transport is measured with each of them. If there are none, the caches are as in any run.
    pub package_caches: Vec<PackageCaches>,
}

/// What has a turn in each round.
#[derive(Clone, Debug)]
enum Contender {
    Guest((Way, WireOptions), Option<PackageCaches>),
    Host(HostWay),
}

impl Contender {
    fn way(&self) -> String {
        match self {
            Contender::Guest((way, options), _) => format!("{}{options}", way.name()),
            Contender::Host(host) => host.name.clone(),
        }
    }

    fn package_cache(&self) -> Option<PackageCaches> {
        match self {
            Contender::Guest(_, package_cache) => *package_cache,
            Contender::Host(_) => None,
        }
    }
}

impl CompareRequest {
    fn contenders(&self) -> impl Iterator<Item = Contender> {
        let states = || match &self.package_caches[..] {
            [] => vec![None],
            states => states.iter().copied().map(Some).collect(),
        };
        let guests =
            self.ways.iter().flat_map(move |way| states().into_iter().map(|state| Contender::Guest(*way, state)));
        guests.chain(self.host_ways.iter().cloned().map(Contender::Host))
    }

    /// The run by one transport, with empty package caches below `empty`, if that is given, and with its output in `output`.
    fn by(&self, way: (Way, WireOptions), empty: Option<&Path>, output: &File) -> Result<RunRequest, JobError> {
        let copy = || output.try_clone().map(Into::into);
        let streams = || Ok(Streams { input: None, output: copy()?, error: copy()? });
        let streams = streams().map_err(|error| self.no_output(error))?;
        let trees = self.run.trees.iter().map(|tree| if is_open(tree) { by(tree, way) } else { tree.clone() });
        let (root_via, root_wire) = if self.run.root == Root::None { (Way::Auto, WireOptions::default()) } else { way };
        // A signal ends this process, and the machine with it.
        let signals = None;
        let trees = trees.collect();
        let caches = match empty {
            Some(empty) => self.run.caches.iter().map(|cache| emptied(cache, empty)).collect::<Result<_, _>>()?,
            None => self.run.caches.clone(),
        };
        Ok(RunRequest {
            root_via,
            root_wire,
            trees,
            caches,
            streams: Arc::new(streams),
            signals,
            terminal: false,
            ..self.run.clone()
        })
    }

    /// Whether a run of each way that is not measured comes before those with the page cache in this state: it fills the page cache, or the
    /// package caches, which stay filled from the first state on.
    fn begins_unmeasured(&self, page_cache: PageCache, is_first: bool) -> bool {
        page_cache == PageCache::Warm || (is_first && self.package_caches.contains(&PackageCaches::Filled))
    }

    /// The command's output cannot be taken.
    fn no_output(&self, error: io::Error) -> JobError {
        JobError::path(&self.run.overlay_dir, "cannot take the command's output", error)
    }
}

/// Whether a tree may go any way.
fn is_open(tree: &TreeMount) -> bool {
    tree.via == Way::Auto && !tree.live && !tree.write_through
}

fn by(tree: &TreeMount, (via, wire): (Way, WireOptions)) -> TreeMount {
    TreeMount { via, wire, ..tree.clone() }
}

/// A cache in which nothing is, and to which nothing is added: one below an empty directory.
fn emptied(cache: &RunCache, directory: &Path) -> Result<RunCache, JobError> {
    let place = CachePlace::new(directory, Scope::User, &cache.place.name)?;
    Ok(RunCache { place, publish: Publish::Never, mode: Mode::Shared, live: false, remote: None, ..cache.clone() })
}

/// Empties this machine's page cache, and its caches of names and inodes (Documentation/admin-guide/sysctl/vm.rst, `drop_caches`).
///
/// # Errors
/// Only root may.
fn empty_page_cache() -> io::Result<()> {
    sync();
    fs::write(DROP_CACHES, "3")
}

/// Measures, until it is stopped.
fn measure_all(
    request: &CompareRequest,
    turn: &Turn,
    events: &Events<CompareEvent>,
) -> Result<CompareReport, JobError> {
    if request.page_caches.contains(&PageCache::Empty) {
        let fail = |error| JobError::path(Path::new(DROP_CACHES), "the page cache cannot be emptied", error);
        empty_page_cache().map_err(fail)?;
    }
    let mut machine = Machine::look();
    let mut comparing = Comparing { request, turn, events, accel: None, told: HashSet::new() };
    let mut results: Vec<Measured> = Vec::new();
    for page_cache in &request.page_caches {
        let mut of_state: Vec<_> = request.contenders().map(|one| Measured::new(one, *page_cache)).collect();
        // What failed in one state fails in the next.
        for measured in &mut of_state {
            let before = results.iter().find(|before| before.name() == measured.name());
            measured.failure = before.and_then(|before| before.failure.clone());
        }
        if request.begins_unmeasured(*page_cache, results.is_empty()) {
            of_state
                .iter_mut()
                .filter(|one| one.failure.is_none())
                .try_for_each(|measured| comparing.fill(measured))?;
        }
        for round in 0..request.runs {
            // Another one begins each round.
            let first = round as usize % of_state.len().max(1);
            of_state.rotate_left(first);
            of_state.iter_mut().try_for_each(|measured| comparing.measure(measured, round + 1))?;
            of_state.rotate_right(first);
        }
        results.append(&mut of_state);
    }
    machine.look_again(comparing.accel);
    results.iter_mut().for_each(Measured::mark_outliers);
    let status = report::note_different_statuses(&mut results);
    Ok(CompareReport::new(machine, request.run.command.clone(), status, results))
}

/// A comparison under way.
struct Comparing<'a> {
    request: &'a CompareRequest,
    turn: &'a Turn,
    events: &'a Events<CompareEvent>,
    /// How the guests' instructions ran: kvm, tcg, or uml.
    accel: Option<String>,
    /// The ways whose command was told to have failed.
    told: HashSet<String>,
}

/// Only a stop is an error here; why a way failed is in its results.
impl Comparing<'_> {
    /// Runs it once without a measurement, so that the page cache has what it reads.
    fn fill(&mut self, measured: &mut Measured) -> Result<(), JobError> {
        self.events.emit(CompareEvent::Fills { way: measured.name() });
        self.run(measured).map(drop)
    }

    /// A measured run.
    fn measure(&mut self, measured: &mut Measured, round: u32) -> Result<(), JobError> {
        if measured.failure.is_some() {
            return Ok(());
        }
        let (way, page_cache, of) = (measured.name(), measured.page_cache, self.request.runs);
        if page_cache == PageCache::Empty
            && let Err(error) = empty_page_cache()
        {
            measured.failure = Some(format!("the page cache cannot be emptied: {error}"));
            return Ok(());
        }
        if let Some(run) = self.run(measured)? {
            self.events.emit(CompareEvent::Measured { way, page_cache, round, of, seconds: run.total });
            measured.runs.push(run);
        }
        Ok(())
    }

    /// A run; notes why it failed.
    fn run(&mut self, measured: &mut Measured) -> Result<Option<OneRun>, JobError> {
        let ran = self.output().and_then(|mut output| {
            let run = match &measured.contender {
                Contender::Guest(way, caches) => self.in_guest(*way, *caches, &output)?,
                Contender::Host(host) => host.run(&output, &self.request.run.overlay_dir, self.turn)?,
            };
            if self.turn.is_stopped() {
                return Err(JobError::Stopped);
            }
            if run.status != 0 && self.told.insert(measured.name()) {
                let said = last_words(&mut output).unwrap_or_default();
                let (way, status) = (measured.name(), run.status);
                self.events.emit(CompareEvent::CommandFailed { way, status, said });
            }
            Ok(run)
        });
        match ran {
            Err(_) if self.turn.is_stopped() => Err(JobError::Stopped),
            Err(error) => {
                measured.failure = Some(error.to_string());
                Ok(None)
            }
            Ok(run) => Ok(Some(run)),
        }
    }

    /// Where a run's output goes.
    fn output(&self) -> Result<File, JobError> {
        let output = tempfile::tempfile_in(&self.request.run.overlay_dir);
        output.map_err(|error| self.request.no_output(error))
    }

    fn in_guest(
        &mut self,
        way: (Way, WireOptions),
        caches: Option<PackageCaches>,
        output: &File,
    ) -> Result<OneRun, JobError> {
        let accel = Arc::new(Mutex::new(None));
        let told = Arc::clone(&accel);
        let events = Events::new(move |event| {
            let accel = match event {
                RunEvent::Acceleration { accel, .. } => accel.to_string(),
                RunEvent::Uml => "uml".to_owned(),
                _ => return,
            };
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(accel);
        });
        let empty = match caches {
            Some(PackageCaches::Empty) => Some(Scratch::within(&self.request.run.overlay_dir)?),
            _ => None,
        };
        let request = self.request.by(way, empty.as_ref().map(Scratch::path), output)?;
        let running = self.turn.begin(|| {
            let running = run::start(request, events)?;
            let subject = Subject::Guest(running.stopper());
            Ok((running, subject))
        })?;
        let report = running.wait();
        self.turn.end();
        if let Some(accel) = accel.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.accel = Some(accel);
        }
        match report.status().filter(|_| report.result.is_ok()) {
            Some(status) => Ok(OneRun::of(&report, status)),
            None => Err(report.result.err().unwrap_or(JobError::GuestDied)),
        }
    }
}

/// The end of a command's output.
fn last_words(output: &mut File) -> io::Result<String> {
    let length = output.seek(SeekFrom::End(0))?;
    output.seek(SeekFrom::Start(length.saturating_sub(TOLD)))?;
    let mut bytes = Vec::new();
    output.take(TOLD).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().rev().take(3).collect();
    Ok(lines.into_iter().rev().collect::<Vec<_>>().join(" | "))
}
