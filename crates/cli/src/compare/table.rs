//! Prints a comparison: as a table with bars, as Markdown, and as CSV.

use std::path::Path;

use inarch_jobs::compare::{CompareReport, Machine, Measured, OneRun};
use inarch_jobs::{counted, shown};

use crate::columns::columns;
use crate::size;

/// How wide the longest bar is.
const BAR: usize = 24;

/// The words above the columns.
pub const HEAD: [&str; 9] =
    ["PAGE CACHE", "WAY", "TOTAL", "PREPARE", "BOOT", "COMMAND", "CPU", "REQUESTS", "BYTES READ"];

/// Seconds: hundredths, and thousandths of what takes less than a tenth.
pub fn seconds(seconds: f64) -> String {
    if seconds < 0.1 { format!("{seconds:.3}") } else { format!("{seconds:.2}") }
}

/// The cells of a row, medians.
pub fn cells(measured: &Measured) -> Vec<String> {
    let seconds = |figure: fn(&OneRun) -> f64| measured.median(figure).map_or_else(|| "-".to_owned(), seconds);
    let is_known = measured.runs.iter().all(|run| run.cpu.is_some());
    let cpu = if is_known { seconds(|run| run.cpu.map_or(0.0, |cpu| cpu.user + cpu.system)) } else { "-".to_owned() };
    let dash = || "-".to_owned();
    vec![
        measured.page_cache.name().to_owned(),
        measured.name(),
        seconds(|run| run.total),
        seconds(|run| run.prepare),
        seconds(|run| run.boot),
        seconds(|run| run.command),
        cpu,
        measured.median_count(|run| run.requests).map_or_else(dash, |requests| requests.to_string()),
        measured.median_count(|run| run.disk_bytes).map_or_else(dash, size::show),
    ]
}

/// Why a way has no figures.
pub fn failure(measured: &Measured) -> &str {
    measured.failure.as_deref().unwrap_or("no run")
}

/// The ends of a bar's parts, in seconds: when the command begins, when it ends, and when all has ended.
pub fn parts(measured: &Measured) -> Option<[f64; 3]> {
    let total = measured.median(|run| run.total)?;
    let before = measured.median(|run| run.prepare + run.boot)?.min(total);
    let command = measured.median(|run| run.prepare + run.boot + run.command)?.clamp(before, total);
    Some([before, command, total])
}

/// The longest of all medians.
fn longest(report: &CompareReport) -> f64 {
    let totals = report.results.iter().filter_map(|one| one.median(|run| run.total));
    totals.fold(f64::MIN_POSITIVE, f64::max)
}

fn bar(measured: &Measured, longest: f64) -> String {
    let Some(parts) = parts(measured) else { return format!("failed: {}", failure(measured)) };
    let [before, command, total] = parts.map(|seconds| (seconds / longest * BAR as f64).round() as usize);
    "░".repeat(before) + &"█".repeat(command - before) + &"▒".repeat(total - command)
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
    let mut text = columns(&rows, &[2, 3, 4, 5, 6, 7, 8]);
    text += &format!("Seconds, the medians of {}; ░ before the command, █ command, ▒ after it\n", runs(report));
    text += &format!("{}\n", about(&report.machine));
    text.extend(remarks(report).map(|line| line + "\n"));
    text += &best(report);
    text
}

/// How many runs the medians are of.
fn runs(report: &CompareReport) -> String {
    let most = report.results.iter().map(|one| one.runs.len()).max().unwrap_or(0);
    counted(most as u64, "run", "runs")
}

/// What a reader should know of the figures, a line each.
pub fn remarks(report: &CompareReport) -> impl Iterator<Item = String> {
    let failed = report.status.filter(|status| *status != 0);
    let failed = failed.map(|status| format!("the command failed in every run that counts: its status was {status}"));
    let outliers = report.results.iter().flat_map(|one| {
        let median = one.median(|run| run.total).unwrap_or(f64::MAX);
        let outliers = one.runs.iter().enumerate().filter(|(_, run)| run.is_outlier);
        outliers.map(move |(number, run)| {
            let (number, times, cache) = (number + 1, run.total / median, one.page_cache.name());
            format!(
                "run {number} by {} (page cache {cache}) took {:.2} s, {times:.2} times the median: something else may have been at work",
                one.name(),
                run.total
            )
        })
    });
    failed.into_iter().chain(outliers)
}

/// What is the fastest.
fn best(report: &CompareReport) -> String {
    report.best.iter().map(|best| format!("{best}\n")).collect()
}

/// The machine in a line.
pub fn about(machine: &Machine) -> String {
    let processors = counted(machine.processors as u64, "processor", "processors");
    let name = machine.processor.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let clock = machine.clock.map_or(String::new(), |clock| format!(" at {clock:.0} MHz"));
    let governor = machine.governor.as_ref().map_or(String::new(), |governor| format!(", governor {governor}"));
    let accel = machine.accel.as_ref().map_or(String::new(), |accel| format!(", guests by {}", accel.to_uppercase()));
    let (before, after) = (machine.load_before, machine.load_after);
    format!("{processors}{name}{clock}{governor}, Linux {}{accel}, load {before:.2}, then {after:.2}", machine.kernel)
}

/// For a document.
pub fn markdown(report: &CompareReport) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(&HEAD.map(|word| word.to_lowercase()));
    text += "|---|---|---:|---:|---:|---:|---:|---:|---:|\n";
    text.extend(report.results.iter().map(|measured| line(&cells(measured))));
    text += &format!(
        "\n`{}`: seconds, the medians of {}; {}\n\n{}",
        shown(Path::new(&report.command.join(" "))).replace('`', "'"),
        runs(report),
        about(&report.machine),
        best(report)
    );
    let failed = report.results.iter().filter(|one| one.failure.is_some());
    let failed = failed.map(|one| format!("{} (page cache {}): {}", one.name(), one.page_cache.name(), failure(one)));
    let remarks: Vec<String> = failed.chain(remarks(report)).chain(report.machine.warnings.iter().cloned()).collect();
    if !remarks.is_empty() {
        text += &format!("\n- {}\n", remarks.join("\n- "));
    }
    text
}

/// A line for each run, and for each way that failed, for a program.
pub fn csv(report: &CompareReport) -> String {
    let mut text =
        "page_cache,package_cache,way,run,total,prepare,boot,command,user,system,status,requests,disk_bytes,failure\n"
            .to_owned();
    for measured in &report.results {
        let package_cache = measured.package_cache.map_or("", |state| state.name());
        let way = format!("{},{package_cache},{}", measured.page_cache.name(), quoted(&measured.way));
        for (number, run) in measured.runs.iter().enumerate() {
            let cpu = run.cpu.map_or_else(|| ",".to_owned(), |cpu| format!("{:.6},{:.6}", cpu.user, cpu.system));
            let number_of = |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
            let (requests, bytes) = (number_of(run.requests), number_of(run.disk_bytes));
            text += &format!(
                "{way},{},{:.6},{:.6},{:.6},{:.6},{cpu},{},{requests},{bytes},\n",
                number + 1,
                run.total,
                run.prepare,
                run.boot,
                run.command,
                run.status
            );
        }
        if let Some(failure) = &measured.failure {
            text += &format!("{way},,,,,,,,,,,{}\n", quoted(failure));
        }
    }
    text
}

/// A field of CSV (RFC 4180, section 2).
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
