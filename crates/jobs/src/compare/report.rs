//! What a comparison tells while it goes on, and at its end.

use std::ffi::OsString;
use std::fmt;
use std::path::Path;

use inarch_lifecycle::shown;
use serde::Serialize;

use super::{Contender, Machine};
use crate::run::{CpuSeconds, RunReport};

/// A run that takes more than this many times the median is an outlier.
const OUTLIER: f64 = 1.25;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackageCaches {
    /// Nothing is in them, and what the run adds is thrown away.
    Empty,
    /// As earlier runs, or else one that is not measured, have left them.
    Filled,
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
    /// From the run's start to the guest's first word; without a guest, until there is the mount.
    pub boot: f64,
    /// From there to the command's end; the mounts are in it.
    pub command: f64,
    /// What the command took of the guest's processors, if it ended.
    pub cpu: Option<CpuSeconds>,
    /// From the start to the end.
    pub total: f64,
    /// The command's status.
    pub status: u8,
    /// Requests of the guest for its trees: to read and write blocks of disks, and for anything of what is shared live. Nothing without a
    /// guest.
    pub requests: Option<u64>,
    /// Bytes of files and metadata that the guest read of disks; nothing where no tree was a disk.
    pub disk_bytes: Option<u64>,
    /// Whether it took much longer than the others.
    pub is_outlier: bool,
}

impl OneRun {
    pub(super) fn of(report: &RunReport, status: u8) -> OneRun {
        let disks = || report.trees.iter().filter_map(|tree| tree.disk.as_ref());
        let of_disks: u64 = disks().map(|disk| disk.reads + disk.writes).sum();
        let of_shares: u64 = report.trees.iter().filter_map(|tree| tree.requests).sum();
        let bytes = disks().map(|disk| disk.file_bytes_read + disk.metadata_bytes_read).sum();
        let phases = &report.phases;
        OneRun {
            boot: phases.boot,
            command: phases.command,
            cpu: report.cpu,
            total: phases.total,
            status,
            requests: Some(of_disks + of_shares),
            disk_bytes: disks().next().map(|_| bytes),
            is_outlier: false,
        }
    }
}

/// What was measured of one way in one state of the page cache.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The transport's name, or that of a command line of this machine.
    #[serde(rename = "way")]
    pub name: String,
    #[serde(skip)]
    pub(super) contender: Contender,
    /// The page cache before each run.
    pub page_cache: PageCache,
    /// The runs, in their order.
    pub runs: Vec<OneRun>,
    /// Why there are no more.
    pub failure: Option<String>,
}

impl Measured {
    pub(super) fn new(contender: Contender, page_cache: PageCache) -> Measured {
        Measured { name: contender.name(), contender, page_cache, runs: Vec::new(), failure: None }
    }

    /// The median of a figure over the runs; none if there are none, or if it failed.
    pub fn median(&self, figure: fn(&OneRun) -> f64) -> Option<f64> {
        if self.failure.is_some() { None } else { median(self.runs.iter().map(figure).collect()) }
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

/// Where the command's status is not the same each time, the figures of the transport do not count.
pub(super) fn note_different_statuses(results: &mut [Measured]) {
    let first = results
        .iter()
        .filter(|one| one.failure.is_none())
        .find_map(|one| one.runs.first().map(|run| (one.name.clone(), run.status)));
    let Some((way, expected)) = first else { return };
    for measured in results.iter_mut().filter(|one| one.failure.is_none()) {
        let other = measured.runs.iter().map(|run| run.status).find(|status| *status != expected);
        measured.failure = other.map(|status| format!("the command's status is {status}, and was {expected} by {way}"));
    }
}

/// The fastest way in one state of the page cache.
#[derive(Clone, Debug, Serialize)]
pub struct Best {
    /// The page cache before each run.
    pub page_cache: PageCache,
    /// The way.
    pub way: String,
    /// The median of its whole runs, in seconds.
    pub seconds: f64,
    /// The second one, and how many times as long it takes.
    pub next: Option<(String, f64)>,
}

impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Best { page_cache, way, seconds, next } = self;
        write!(f, "with the page cache {}, {way} is the fastest: {seconds:.2} s in all", page_cache.name())?;
        match next {
            Some((next, ratio)) if *ratio < 1.03 => write!(f, "; {next} takes as long, within what runs differ by"),
            Some((next, ratio)) => write!(f, "; {next}, the next, takes {ratio:.2} times as long"),
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
    /// The ways in each state of the page cache.
    pub results: Vec<Measured>,
    /// The fastest one in each state.
    pub best: Vec<Best>,
}

impl CompareReport {
    pub(super) fn new(machine: Machine, command: Vec<OsString>, results: Vec<Measured>) -> CompareReport {
        let best = [PageCache::Empty, PageCache::Warm].into_iter().filter_map(|state| best(&results, state)).collect();
        let command = command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        CompareReport { machine, command, results, best }
    }

    /// Whether anything was measured.
    pub fn has_figures(&self) -> bool {
        !self.best.is_empty()
    }
}

fn best(results: &[Measured], page_cache: PageCache) -> Option<Best> {
    let of_state = results.iter().filter(|one| one.page_cache == page_cache);
    let mut totals: Vec<_> = of_state.filter_map(|one| Some((&one.name, one.median(|run| run.total)?))).collect();
    totals.sort_by(|one, other| one.1.total_cmp(&other.1));
    let (way, seconds) = totals.first().map(|(name, seconds)| ((*name).clone(), *seconds))?;
    let next = totals.get(1).map(|(next, longer)| ((*next).clone(), longer / seconds.max(f64::MIN_POSITIVE)));
    Some(Best { page_cache, way, seconds, next })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Way;
    use inarch_format::disk::DiskFormat;

    fn measured(way: Way, totals: &[f64], status: u8) -> Measured {
        let run = |total: &f64| OneRun {
            boot: 1.0,
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
            ..Measured::new(Contender::Guest(way, None), PageCache::Warm)
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
        assert_eq!(
            (best.way.as_str(), best.seconds, best.next.clone()),
            ("ext4", 2.0, Some(("virtiofs".to_owned(), 1.5)))
        );
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
        note_different_statuses(&mut results);
        assert!(results.iter().all(|one| one.failure.is_none()));
    }
}
