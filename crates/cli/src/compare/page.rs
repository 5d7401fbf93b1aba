//! Writes a comparison as a page for a browser: one file, with the picture in it and without scripts.

use std::fmt::Write;

use inarch_jobs::compare::CompareReport;

use super::{chart, table};
use crate::chart::escaped;

const STYLE: &str = "body { font-family: sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
svg { max-width: 100%; height: auto }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: 0.25em 0.8em; border-bottom: 1px solid #ddd; text-align: right }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left }
code { background: #f2f2f2; padding: 0.1em 0.3em }";

/// The page.
pub fn html(report: &CompareReport) -> String {
    let command = escaped(&report.command.join(" "));
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{command}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n\
         <h1><code>{command}</code></h1>\n"
    );
    // Writing to a String cannot fail.
    for best in &report.best {
        let _ = writeln!(text, "<p><b>{}</b></p>", escaped(&best.to_string()));
    }
    for remark in table::remarks(report) {
        let _ = writeln!(text, "<p>{}</p>", escaped(&remark));
    }
    text += &chart::svg(report);
    text += "<h2>Medians</h2>\n<table>\n";
    let head = table::HEAD.map(|word| word.to_lowercase()).into_iter();
    text += &row("th", &head.chain(["failure".to_owned()]).collect::<Vec<_>>());
    for measured in &report.results {
        let mut cells = table::cells(measured);
        cells.push(measured.failure.clone().unwrap_or_default());
        text += &row("td", &cells);
    }
    text += "</table>\n<p>Seconds; the processor time is the command's.</p>\n<h2>Runs</h2>\n<table>\n";
    text += &row(
        "th",
        &["page cache", "way", "run", "total", "prepare", "boot", "command", "user", "system", "status"]
            .map(str::to_owned),
    );
    for measured in &report.results {
        for (number, run) in measured.runs.iter().enumerate() {
            let seconds = [run.total, run.prepare, run.boot, run.command].map(table::seconds);
            let cpu = run.cpu.map_or_else(Default::default, |cpu| [cpu.user, cpu.system].map(table::seconds));
            let mut cells = vec![measured.page_cache.name().to_owned(), measured.name(), (number + 1).to_string()];
            cells.extend(seconds.into_iter().chain(cpu));
            cells.push(run.status.to_string());
            text += &row("td", &cells);
        }
    }
    text += "</table>\n<h2>Machine</h2>\n<ul>\n";
    let _ = writeln!(text, "<li>{}</li>", escaped(&table::about(&report.machine)));
    let machine = &report.machine;
    if let Some(clock) = machine.clock_after {
        let _ = writeln!(text, "<li>clock {clock:.0} MHz after the last run</li>");
    }
    if let Some(others) = machine.others {
        let _ = writeln!(text, "<li>{others:.2} processors used by other programs and the kernel meanwhile</li>");
    }
    for warning in &machine.warnings {
        let _ = writeln!(text, "<li>{}</li>", escaped(warning));
    }
    text + "</ul>\n</body>\n</html>\n"
}

/// A row of a table. `kind` is `th` or `td`.
fn row(kind: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!("<{kind}>{}</{kind}>", escaped(cell))).collect();
    format!("<tr>{cells}</tr>\n")
}
