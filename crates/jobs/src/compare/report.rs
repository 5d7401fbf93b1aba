//! What a comparison reports while it runs, and at its end.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use inarch_lifecycle::shown;
use serde::Serialize;

use super::{Contender, Machine};
use crate::device::DiskReport;
use crate::run::{CpuSeconds, RunReport};

/// A run that takes more than this many times the median is an outlier.
const OUTLIER: f64 = 1.25;

/// Medians that differ by less than this factor are taken for equal.
const CLOSE: f64 = 1.03;

/// This machine's page cache before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PageCache {
    /// It was emptied: all that is read comes from the disk.
    Empty,
    /// It has what earlier runs read.
    Warm,
}

impl PageCache {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            PageCache::Empty => "empty",
            PageCache::Warm => "warm",
        }
    }
}

/// The package caches of a run before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageCaches {
    /// Nothing is in them, and what the run adds is thrown away.
    Empty,
    /// As earlier runs, or else one that is not measured, have left them.
    Filled,
}

impl PackageCaches {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            PackageCaches::Empty => "empty",
            PackageCaches::Filled => "filled",
        }
    }
}

/// What happens in a comparison. Its text is one line.
#[derive(Clone, Debug)]
pub enum CompareEvent {
    /// An unmeasured run fills the page cache, and the package caches.
    Fills {
        /// The way.
        way: String,
    },
    /// A run was measured.
    Measured {
        /// The way.
        way: String,
        /// The page cache before it.
        page_cache: PageCache,
        /// Its number, from 1.
        round: u32,
        /// How many there will be.
        of: u32,
        /// How long it took.
        seconds: f64,
    },
    /// The command failed.
    CommandFailed {
        /// The way.
        way: String,
        /// The command's status.
        status: u8,
        /// The end of its output.
        said: String,
    },
}

impl fmt::Display for CompareEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CompareEvent::Fills { way } => write!(f, "{way}: a run that is not measured fills the caches"),
            CompareEvent::Measured { way, page_cache, round, of, seconds } => {
                write!(f, "{way}, page cache {}: run {round} of {of} took {seconds:.2} s", page_cache.name())
            }
            CompareEvent::CommandFailed { way, status, said } => {
                let said = shown(Path::new(said));
                write!(f, "{way}: the command's status is {status}; the end of its output: {said}")
            }
        }
    }
}

/// A run's figures. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OneRun {
    /// Until the machine was started; without a guest, until there was the mount.
    pub prepare: f64,
    /// From there until the command began: the machine, its kernel, and the mounts of its trees.
    pub boot: f64,
    /// The command, until its output had ended.
    pub command: f64,
    /// What the command took of the guest's processors, if it ended.
    pub cpu: Option<CpuSeconds>,
    /// From the start to the end. What follows the command is the machine's end.
    pub total: f64,
    /// The command's status.
    pub status: u8,
    /// Requests of the guest for its trees: to read and write blocks of disks, and for anything of what is shared live. Nothing without a
    /// guest.
    pub requests: Option<u64>,
    /// Bytes of files and metadata that the guest read of trees that were disks; nothing where none was.
    pub disk_bytes: Option<u64>,
    /// Whether it took much longer than the others.
    pub is_outlier: bool,
}

impl OneRun {
    pub(super) fn of(report: &RunReport, status: u8) -> OneRun {
        let disks = || report.trees.iter().filter_map(|tree| Some((tree.destination.is_some(), tree.disk.as_ref()?)));
        let of_disks: u64 = disks().map(|(_, disk)| disk.reads + disk.writes).sum();
        let of_shares: u64 = report.trees.iter().filter_map(|tree| tree.requests).sum();
        // The disk that only takes writes holds no tree.
        let read =
            |(is_tree, disk): (bool, &DiskReport)| is_tree.then(|| disk.file_bytes_read + disk.metadata_bytes_read);
        let phases = &report.phases;
        let (prepare, boot, command) = match &report.moments {
            Some(at) => (at.machine, at.command - at.machine, at.end - at.command),
            // A command that did not end by itself.
            None => (0.0, phases.boot, phases.command),
        };
        OneRun {
            prepare,
            boot,
            command,
            cpu: report.cpu,
            total: phases.total,
            status,
            requests: Some(of_disks + of_shares),
            disk_bytes: disks().filter_map(read).reduce(|all, bytes| all + bytes),
            is_outlier: false,
        }
    }
}

/// What was measured of one way in one state of the page cache.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The transport's name, or that of a command line of this machine.
    pub way: String,
    #[serde(skip)]
    pub(super) contender: Contender,
    /// The page cache before each run.
    pub page_cache: PageCache,
    /// The package caches before each run, where a state of them was asked for.
    pub package_cache: Option<PackageCaches>,
    /// The runs, in their order.
    pub runs: Vec<OneRun>,
    /// Why there are no more.
    pub failure: Option<String>,
}

impl Measured {
    pub(super) fn new(contender: Contender, page_cache: PageCache) -> Measured {
        let (way, package_cache) = (contender.way(), contender.package_cache());
        Measured { way, contender, page_cache, package_cache, runs: Vec::new(), failure: None }
    }

    /// The way, and the state of the package caches if that is not the usual one.
    pub fn name(&self) -> String {
        match self.package_cache {
            Some(PackageCaches::Empty) => format!("{}, caches empty", self.way),
            _ => self.way.clone(),
        }
    }

    /// The median of a figure over the runs; none if there are none, or if it failed.
    pub fn median(&self, figure: fn(&OneRun) -> f64) -> Option<f64> {
        if self.failure.is_some() { None } else { median(self.runs.iter().map(figure).collect()) }
    }

    /// The median of a count over the runs; none if one of them does not have it.
    pub fn median_count(&self, count: fn(&OneRun) -> Option<u64>) -> Option<u64> {
        let counts = self.runs.iter().map(|run| Some(count(run)? as f64)).collect::<Option<_>>();
        counts.filter(|_| self.failure.is_none()).and_then(median).map(|median| median.round() as u64)
    }

    /// The whole times of the runs that are no outliers.
    fn usual_totals(&self) -> impl Iterator<Item = f64> {
        self.runs.iter().filter(|run| !run.is_outlier).map(|run| run.total)
    }

    /// Marks runs that took much longer than the median.
    pub(super) fn mark_outliers(&mut self) {
        let Some(median) = self.median(|run| run.total) else { return };
        self.runs.iter_mut().for_each(|run| run.is_outlier = run.total > median * OUTLIER);
    }
}

/// The median; the mean of the middle two of an even number.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        length if length % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Where the command's status is not as it should be, the figures of the way do not count. It should be 0 if it is that each time by any
/// way, else what it is most often. Returns what it should be.
pub(super) fn note_different_statuses(results: &mut [Measured]) -> Option<u8> {
    let measured = || results.iter().filter(|one| one.failure.is_none() && !one.runs.is_empty());
    let succeeds = measured().any(|one| one.runs.iter().all(|run| run.status == 0));
    let expected =
        if succeeds { 0 } else { most_frequent(measured().flat_map(|one| &one.runs).map(|run| run.status))? };
    let way = measured().find(|one| one.runs.iter().all(|run| run.status == expected)).map(Measured::name);
    let by = way.map_or_else(|| "most often".to_owned(), |way| format!("by {way}"));
    for measured in results.iter_mut().filter(|one| one.failure.is_none()) {
        let other = measured.runs.iter().map(|run| run.status).find(|status| *status != expected);
        measured.failure = other.map(|status| format!("the command's status is {status}, and was {expected} {by}"));
    }
    Some(expected)
}

fn most_frequent(statuses: impl Iterator<Item = u8>) -> Option<u8> {
    let mut statuses: Vec<u8> = statuses.collect();
    statuses.sort_unstable();
    let same = statuses.chunk_by(|one, other| one == other).max_by_key(|same| same.len())?;
    same.first().copied()
}

/// The fastest way in one state of the page cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Best {
    /// The page cache before each run.
    pub page_cache: PageCache,
    /// The way.
    pub way: String,
    /// The median of its whole runs, in seconds.
    pub seconds: f64,
    /// Its requests, if it has any.
    pub requests: Option<u64>,
    /// The second one.
    pub next: Option<Next>,
    /// The way by which the command alone takes the least, if that is another one.
    pub command: Option<CommandAlone>,
}

/// The way that comes after the fastest one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Next {
    /// The way.
    pub way: String,
    /// How many times as long it takes.
    pub times: f64,
    /// Whether the runs differ by so much that it may be as fast.
    pub is_equal: bool,
    /// Its requests, if it has any.
    pub requests: Option<u64>,
}

/// The way by which the command alone takes the least.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommandAlone {
    /// The way.
    pub way: String,
    /// The median of the command's times, in seconds.
    pub seconds: f64,
}

impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Best { page_cache, way, seconds, .. } = self;
        write!(f, "with the page cache {}, {way} is the fastest: {seconds:.2} s in all", page_cache.name())?;
        match &self.next {
            Some(Next { way: next, is_equal: true, .. }) => {
                write!(f, "; {next} takes as long, within what the runs differ by")?;
            }
            Some(Next { way: next, times, requests, .. }) => {
                write!(f, "; {next}, the next, takes {times:.2} times as long")?;
                if let Some((own, other)) = self.requests.zip(*requests).filter(|(own, other)| own < other) {
                    write!(f, ", and {other} requests in place of {own}")?;
                }
            }
            None => {}
        }
        match &self.command {
            Some(CommandAlone { way, seconds }) => {
                write!(f, "; the command alone takes the least by {way}: {seconds:.2} s")
            }
            None => Ok(()),
        }
    }
}

/// The whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct CompareReport {
    /// Where it was made.
    pub machine: Machine,
    /// The command's words.
    pub command: Vec<String>,
    /// The command's status in every run that counts.
    pub status: Option<u8>,
    /// The ways in each state of the page cache.
    pub results: Vec<Measured>,
    /// The fastest one in each state.
    pub best: Vec<Best>,
}

impl CompareReport {
    pub(super) fn new(
        machine: Machine,
        command: Vec<OsString>,
        status: Option<u8>,
        results: Vec<Measured>,
    ) -> CompareReport {
        let best = [PageCache::Empty, PageCache::Warm].into_iter().filter_map(|state| best(&results, state)).collect();
        let command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        CompareReport { machine, command, status, results, best }
    }

    /// Whether anything was measured.
    pub fn has_figures(&self) -> bool {
        !self.best.is_empty()
    }
}

/// The ways that did not fail, the one with the lowest median first.
fn ranked<'m>(results: impl Iterator<Item = &'m Measured>, figure: fn(&OneRun) -> f64) -> Vec<(&'m Measured, f64)> {
    let mut all: Vec<_> = results.filter_map(|one| Some((one, one.median(figure)?))).collect();
    all.sort_by(|one, other| one.1.total_cmp(&other.1));
    all
}

fn best(results: &[Measured], page_cache: PageCache) -> Option<Best> {
    let of_state = || results.iter().filter(|one| one.page_cache == page_cache);
    let requests = |one: &Measured| one.median_count(|run| run.requests);
    let totals = ranked(of_state(), |run| run.total);
    let (fastest, seconds) = *totals.first()?;
    let next = totals.get(1).map(|(next, longer)| {
        let times = longer / seconds.max(f64::MIN_POSITIVE);
        let slowest = fastest.usual_totals().fold(0.0, f64::max);
        let quickest = next.usual_totals().fold(f64::INFINITY, f64::min);
        Next { way: next.name(), times, is_equal: times < CLOSE || slowest >= quickest, requests: requests(next) }
    });
    // A command line of this machine is all command.
    let in_guests = of_state().filter(|one| matches!(one.contender, Contender::Guest(..)));
    let command = ranked(in_guests, |run| run.command).first().and_then(|(one, least)| {
        let of_fastest = fastest.median(|run| run.command)?;
        let is_other = matches!(fastest.contender, Contender::Guest(..)) && of_fastest > least * CLOSE;
        is_other.then(|| CommandAlone { way: one.name(), seconds: *least })
    });
    Some(Best { page_cache, way: fastest.name(), seconds, requests: requests(fastest), next, command })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Way, WireOptions};
    use inarch_format::disk::DiskFormat;

    fn measured(way: Way, totals: &[f64], status: u8) -> Measured {
        let run = |total: &f64| OneRun {
            prepare: 0.25,
            boot: 0.75,
            command: total - 1.0,
            total: *total,
            status,
            cpu: None,
            requests: Some(0),
            disk_bytes: None,
            is_outlier: false,
        };
        Measured {
            runs: totals.iter().map(run).collect(),
            ..Measured::new(Contender::Guest((way, WireOptions::default()), None), PageCache::Warm)
        }
    }

    #[test]
    fn the_lowest_median_is_the_best() {
        let mut slow_once = measured(Way::Disk(DiskFormat::Ext4), &[2.0, 9.0, 2.0], 0);
        slow_once.mark_outliers();
        assert_eq!(slow_once.runs.iter().map(|run| run.is_outlier).collect::<Vec<_>>(), [false, true, false]);
        let mut failed = measured(Way::Ninep, &[1.0], 0);
        failed.failure = Some("no".to_owned());
        let results = [measured(Way::Virtiofs, &[2.5, 3.5], 0), slow_once, failed];
        let best = best(&results, PageCache::Warm).unwrap();
        let next = Next { way: "virtiofs".to_owned(), times: 1.5, is_equal: false, requests: Some(0) };
        assert_eq!((best.way.as_str(), best.seconds, &best.next), ("ext4", 2.0, &Some(next)));
        assert_eq!(
            best.to_string(),
            "with the page cache warm, ext4 is the fastest: 2.00 s in all; virtiofs, the next, takes 1.50 times as long"
        );
        assert!(super::best(&results, PageCache::Empty).is_none());
    }

    #[test]
    fn another_status_is_no_figure() {
        let mut results = [measured(Way::Virtiofs, &[3.0], 0), measured(Way::Ninep, &[1.0], 2)];
        note_different_statuses(&mut results);
        assert!(results[0].failure.is_none());
        assert_eq!(results[1].failure.as_deref(), Some("the command's status is 2, and was 0 by virtiofs"));
        assert_eq!(results[1].median(|run| run.total), None);
        // The same failure everywhere can be compared.
        let mut results = [measured(Way::Virtiofs, &[3.0], 2), measured(Way::Ninep, &[1.0], 2)];
        assert_eq!(note_different_statuses(&mut results), Some(2));
        assert!(results.iter().all(|one| one.failure.is_none()));
        // One that fails is not right for being the first.
        let ext4 = || measured(Way::Disk(DiskFormat::Ext4), &[1.0], 1);
        let mut results = [ext4(), measured(Way::Virtiofs, &[3.0], 0), measured(Way::Ninep, &[1.0], 1)];
        assert_eq!(note_different_statuses(&mut results), Some(0));
        assert_eq!(results.each_ref().map(|one| one.failure.is_some()), [true, false, true]);
        let mut results = [ext4(), measured(Way::Virtiofs, &[3.0], 2), measured(Way::Ninep, &[1.0], 2)];
        assert_eq!(note_different_statuses(&mut results), Some(2));
        assert_eq!(results.each_ref().map(|one| one.failure.is_some()), [true, false, false]);
    }

    #[test]
    fn runs_that_overlap_are_no_difference_and_the_command_may_be_fastest_by_another_way() {
        let results = [measured(Way::Virtiofs, &[2.0, 2.2, 2.4], 0), measured(Way::Ninep, &[2.3, 2.5, 2.6], 0)];
        assert!(best(&results, PageCache::Warm).unwrap().next.unwrap().is_equal);
        let mut results = [measured(Way::Virtiofs, &[2.0], 0), measured(Way::Disk(DiskFormat::Ext4), &[3.0], 0)];
        for (measured, (command, requests)) in results.iter_mut().zip([(1.5, 900), (0.5, 1000)]) {
            measured.runs[0].command = command;
            measured.runs[0].requests = Some(requests);
        }
        assert_eq!(
            best(&results, PageCache::Warm).unwrap().to_string(),
            "with the page cache warm, virtiofs is the fastest: 2.00 s in all; ext4, the next, takes 1.50 times as long, and 1000 requests \
             in place of 900; the command alone takes the least by ext4: 0.50 s"
        );
    }
}
