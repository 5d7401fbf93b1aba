//! Prints a comparison: as a table with bars, as Markdown, and as CSV.

use std::path::Path;

use inarch_jobs::compare::{CompareReport, Machine, Measured, OneRun};
use inarch_jobs::{counted, shown};

use crate::columns::columns;
use crate::size;

/// How wide the longest bar is.
const BAR: usize = 30;

/// The words above the columns.
pub const HEAD: [&str; 8] = ["PAGE CACHE", "VIA", "TOTAL", "BOOT", "COMMAND", "CPU", "REQUESTS", "FROM DISKS"];

/// The cells of a row. What failed has its reason in the last one.
pub fn cells(measured: &Measured) -> Vec<String> {
    let seconds = |figure: fn(&OneRun) -> f64| {
        measured.median(figure).map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.2}"))
    };
    let is_known = measured.runs.iter().all(|run| run.cpu.is_some());
    let cpu = if is_known { seconds(|run| run.cpu.map_or(0.0, |cpu| cpu.user + cpu.system)) } else { "-".to_owned() };
    let first = measured.runs.first().filter(|_| measured.failure.is_none());
    let dash = || "-".to_owned();
    vec![
        measured.page_cache.name().to_owned(),
        measured.name.clone(),
        seconds(|run| run.total),
        seconds(|run| run.boot),
        seconds(|run| run.command),
        cpu,
        first.and_then(|run| run.requests).map_or_else(dash, |requests| requests.to_string()),
        first.and_then(|run| run.disk_bytes).map_or_else(dash, size::show),
    ]
}

/// The longest of all medians.
fn longest(report: &CompareReport) -> f64 {
    let totals = report.results.iter().filter_map(|one| one.median(|run| run.total));
    totals.fold(f64::MIN_POSITIVE, f64::max)
}

/// A bar whose first part is the boot.
fn bar(measured: &Measured, longest: f64) -> String {
    let (Some(total), Some(boot)) = (measured.median(|run| run.total), measured.median(|run| run.boot)) else {
        return format!("failed: {}", measured.failure.as_deref().unwrap_or("no run"));
    };
    let letters = |seconds: f64| (seconds / longest * BAR as f64).round() as usize;
    let (boot, total) = (letters(boot.min(total)), letters(total));
    "░".repeat(boot) + &"█".repeat(total - boot)
}

/// For a terminal.
pub fn text(report: &CompareReport) -> String {
    let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
    let longest = longest(report);
    for measured in &report.results {
        let mut row = cells(measured);
        row.push(bar(measured, longest));
        rows.push(row);
    }
    let mut text = columns(&rows, &[2, 3, 4, 5, 6, 7]);
    text += "Seconds, the medians; ░ boot, █ command\n";
    for (measured, number, run) in outliers(report) {
        let name = measured.page_cache.name();
        text += &format!("run {number} by {} with the page cache {name} took {:.2} s\n", measured.name, run.total);
    }
    text += &best(report);
    text
}

/// Runs that took much longer than the others, with their numbers.
fn outliers(report: &CompareReport) -> impl Iterator<Item = (&Measured, usize, &OneRun)> {
    report.results.iter().flat_map(|one| {
        one.runs.iter().enumerate().filter(|(_, run)| run.is_outlier).map(move |(number, run)| (one, number + 1, run))
    })
}

/// What is the fastest.
fn best(report: &CompareReport) -> String {
    report.best.iter().map(|best| format!("{best}\n")).collect()
}

/// The machine in half a sentence.
pub fn about(machine: &Machine) -> String {
    let processors = counted(machine.processors as u64, "processor", "processors");
    let name = machine.processor.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let accel = machine.accel.as_ref().map_or(String::new(), |accel| format!(", {}", accel.to_uppercase()));
    format!("{processors}{name}, Linux {}{accel}", machine.kernel)
}

/// For a document.
pub fn markdown(report: &CompareReport) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(&HEAD.map(|word| word.to_lowercase()));
    text += "|---|---|---:|---:|---:|---:|---:|---:|\n";
    text.extend(report.results.iter().map(|measured| line(&cells(measured))));
    text += &format!(
        "\n`{}`: seconds, the medians of {} runs; {}\n\n{}",
        shown(Path::new(&report.command.join(" "))).replace('`', "'"),
        report.results.iter().map(|one| one.runs.len()).max().unwrap_or(0),
        about(&report.machine),
        best(report)
    );
    text
}

/// A line for each run, for a program.
pub fn csv(report: &CompareReport) -> String {
    let mut text = "page_cache,via,run,total,boot,command,user,system,status,requests,disk_bytes\n".to_owned();
    for measured in &report.results {
        for (number, run) in measured.runs.iter().enumerate() {
            let cpu = run.cpu.map_or_else(|| ",".to_owned(), |cpu| format!("{:.6},{:.6}", cpu.user, cpu.system));
            let number_of = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
            let (requests, bytes) = (number_of(run.requests), number_of(run.disk_bytes));
            text += &format!(
                "{},{},{},{:.6},{:.6},{:.6},{cpu},{},{requests},{bytes}\n",
                measured.page_cache.name(),
                measured.name,
                number + 1,
                run.total,
                run.boot,
                run.command,
                run.status
            );
        }
    }
    text
}
