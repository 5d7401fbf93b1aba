//! `--stats`: how many requests there were of each kind, how long they took, and on which files.

use std::sync::Arc;

use clap::Args;
use inarch_jobs::counted;
use inarch_jobs::serve::DiskReport;
use inarch_jobs::share::{FileReport, Measures, OperationReport, reports};

use crate::columns::columns;
use crate::profile::ProfileArgument;
use crate::say::{self, say};
use crate::size;

/// Kinds of requests that get a line of their own; the others are added up.
const NAMED: usize = 8;

/// Files that are named, if their requests took as many seconds.
const FILES: (usize, f64) = (5, 0.001);

/// The options of servers of live trees, and of mounts.
#[derive(Args, Clone, Debug)]
pub struct StatsArguments {
    /// At the end, print how many requests of each kind there were, and how long they took
    #[arg(long)]
    pub stats: bool,

    #[command(flatten)]
    pub profile: ProfileArgument,
}

impl StatsArguments {
    /// What measures the requests, if one of these was asked for.
    pub fn measures(&self) -> Option<Arc<Measures>> {
        (self.stats || self.profile.is_given()).then(Arc::default)
    }

    /// Serves, and prints and draws what was measured. Prints nothing if there was no request.
    ///
    /// # Errors
    /// Those of `serve`, or the profile cannot be made.
    pub fn around(self, measures: Option<&Measures>, serve: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
        let profile = self.profile.begin()?;
        let served = serve();
        let (operations, files) = measures.map(reports).unwrap_or_default();
        if self.stats && !operations.is_empty() {
            tell_operations("", operations.iter().map(|operation| operation.count).sum(), &operations);
            tell_files(&files);
        }
        let drawn = profile.map_or(Ok(()), |profile| profile.end(table(&operations)));
        served.and(drawn)
    }
}

/// Prints the number of requests after `name`, and a table of what was measured.
pub fn tell_operations(name: &str, requests: u64, operations: &[OperationReport]) {
    let seconds = operations.iter().fold(0.0, |sum, operation| sum + operation.seconds);
    say(format_args!("{name}{}, {seconds:.3} s in the file system", counted(requests, "request", "requests")));
    if !operations.is_empty() {
        say::table(&table(operations));
    }
}

/// Prints a table of the files that took the most time, if it was noticeable.
pub fn tell_files(files: &[FileReport]) {
    let (most, least) = FILES;
    let row = |file: &FileReport| {
        let bytes = if file.bytes == 0 { "-".to_owned() } else { size::show(file.bytes) };
        vec![format!("    {:.3}", file.seconds), file.requests.to_string(), bytes, file.path.clone()]
    };
    let mut rows = vec![["    SECONDS", "REQUESTS", "BYTES", "SLOWEST FILES"].map(str::to_owned).to_vec()];
    rows.extend(files.iter().take(most).filter(|file| file.seconds >= least).map(row));
    if rows.len() > 1 {
        say::table(&columns(&rows, &[0, 1, 2]));
    }
}

/// What a guest asked of a disk, in one line.
pub fn of_disk(disk: &DiskReport) -> String {
    let parts = [
        (disk.file_bytes_read, "of files"),
        (disk.metadata_bytes_read, "of computed metadata"),
        (disk.overlay_bytes_read, "of what the guest wrote"),
    ];
    let parts: Vec<_> = parts
        .iter()
        .filter(|(bytes, _)| *bytes > 0)
        .map(|(bytes, what)| format!("{} {what}", size::show(*bytes)))
        .collect();
    let mut text = format!("{} in {:.3} s", counted(disk.reads, "read", "reads"), disk.read_seconds);
    if !parts.is_empty() {
        text += &format!(" ({})", parts.join(", "));
    }
    if disk.writes > 0 {
        let writes = counted(disk.writes, "write", "writes");
        text += &format!("; {writes} in {:.3} s ({})", disk.write_seconds, size::show(disk.bytes_written));
    }
    if disk.errors > 0 {
        text += &format!("; {} failed", disk.errors);
    }
    text
}

/// A table of the requests to a live tree; those that took the most time come first.
pub fn table(operations: &[OperationReport]) -> String {
    let row = |name: &str, [count, failed, bytes]: [u64; 3], seconds: f64, longest: Option<f64>| {
        let or_dash = |number: u64, text: String| if number == 0 { "-".to_owned() } else { text };
        vec![
            format!("    {name}"),
            count.to_string(),
            or_dash(failed, failed.to_string()),
            or_dash(bytes, size::show(bytes)),
            format!("{seconds:.3}"),
            longest.map_or_else(String::new, |longest| format!("{:.2}", longest * 1e3)),
        ]
    };
    let head = ["    REQUEST", "COUNT", "FAILED", "BYTES", "SECONDS", "LONGEST (MS)"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for one in operations.iter().take(NAMED) {
        rows.push(row(one.name, [one.count, one.failed, one.bytes], one.seconds, Some(one.longest)));
    }
    if let Some(others) = operations.get(NAMED..).filter(|others| !others.is_empty()) {
        let sum = |of: fn(&OperationReport) -> u64| others.iter().map(of).sum();
        let sums = [sum(|one| one.count), sum(|one| one.failed), sum(|one| one.bytes)];
        rows.push(row("others", sums, others.iter().map(|one| one.seconds).sum(), None));
    }
    columns(&rows, &[1, 2, 3, 4, 5])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_requests_have_lines_and_the_rest_is_added_up() {
        let one = |name, seconds| OperationReport { name, count: 2, failed: 1, bytes: 0, seconds, longest: seconds };
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        let all: Vec<_> = names.into_iter().map(|name| one(name, 0.5)).collect();
        let text = table(&all);
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(lines[1], ["a", "2", "1", "-", "0.500", "500.00"]);
        assert_eq!(lines[9], ["others", "4", "2", "-", "1.000"]);
    }
}
