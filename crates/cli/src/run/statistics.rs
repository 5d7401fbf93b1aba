//! `inarch run --stats` and `--timings`: where the time of a run went.

use std::fmt::Write;

use inarch_jobs::counted;
use inarch_jobs::run::{DiskReport, Moments, RunReport, TreeReport};

use crate::chart::Axis;
use crate::columns::columns;
use crate::disk::escaped;
use crate::output::{complain, introduce};
use crate::size;
use crate::stats::{self, of_requests};

/// The longest bar, in letters.
const BAR: f64 = 40.0;

/// Says on standard error what the guest asked for, and what that took.
pub fn tell(report: &RunReport) {
    if let Some(cpu) = report.cpu {
        complain(format_args!(
            "the command took {:.2} s, and {:.2} s of the guest's processors: {:.2} s in programs, {:.2} s in its kernel",
            report.moments.map_or(report.phases.command, |moments| moments.end - moments.command),
            cpu.user + cpu.system,
            cpu.user,
            cpu.system
        ));
    }
    report.trees.iter().for_each(tell_tree);
}

fn tell_tree(tree: &TreeReport) {
    let name = tree.destination.as_deref().unwrap_or("what the guest writes");
    if let Some(disk) = &tree.disk {
        complain(format_args!("{name} by {}: {}", tree.way, of_disk(disk)));
    }
    if let Some(requests) = tree.requests {
        complain(format_args!("{name} by {}: {}", tree.way, of_requests(requests, &tree.operations)));
        introduce(&stats::table(&tree.operations));
    }
}

/// A disk's requests, in one line.
fn of_disk(disk: &DiskReport) -> String {
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

/// The parts of a run: a name, when it began, and when it ended; in seconds from the run's start.
fn parts(moments: &Moments, total: f64) -> [(&'static str, f64, f64); 7] {
    let Moments { machine, kernel, agent, command, end, machine_ended } = *moments;
    [
        ("preparation", 0.0, machine),
        ("machine, firmware", machine, kernel),
        ("kernel", kernel, agent),
        ("drivers, trees", agent, command),
        ("command", command, end),
        ("machine's end", end, machine_ended),
        ("what is kept", machine_ended, total.max(machine_ended)),
    ]
}

/// The parts of a run as a table with bars.
pub fn time_line(moments: &Moments, total: f64) -> String {
    let parts = parts(moments, total);
    let place = |seconds: f64| (seconds / total.max(f64::MIN_POSITIVE) * BAR).round() as usize;
    let mut rows = vec![["PART", "FROM", "SECONDS"].map(str::to_owned).to_vec()];
    for (name, from, to) in parts {
        let (start, end) = (place(from), place(to));
        let bar = match end.saturating_sub(start) {
            0 => "▏".to_owned(),
            length => "█".repeat(length),
        };
        rows.push(vec![name.to_owned(), format!("{from:.3}"), format!("{:.3}", to - from), " ".repeat(start) + &bar]);
    }
    columns(&rows, &[1, 2])
}

/// The parts of a run as a picture.
pub fn time_line_svg(command: &str, moments: &Moments, total: f64) -> String {
    const COLOURS: [&str; 7] = ["#c4a000", "#b8c4d6", "#8fa8c8", "#729fcf", "#3465a4", "#888a85", "#babdb6"];
    const ROW: f64 = 28.0;
    let parts = parts(moments, total);
    let axis = Axis { left: 140.0, width: 500.0, top: 44.0, bottom: 44.0 + parts.len() as f64 * ROW, longest: total };
    let mut text = axis.begin(command, 90.0);
    for (at, ((name, from, to), colour)) in parts.into_iter().zip(COLOURS).enumerate() {
        let (middle, x) = (axis.top + (at as f64 + 0.5) * ROW, axis.place(from));
        let width = (axis.place(to) - x).max(1.0);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"16\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555\">{:.3}</text>",
            axis.left - 8.0,
            middle + 4.5,
            escaped(name),
            middle - 8.0,
            x + width + 6.0,
            middle + 4.5,
            to - from
        );
    }
    text + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENTS: Moments =
        Moments { machine: 0.1, kernel: 0.5, agent: 1.5, command: 2.0, end: 9.0, machine_ended: 9.5 };

    #[test]
    fn a_time_line_shows_each_part_where_it_was() {
        let text = time_line(&MOMENTS, 10.0);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "PART                FROM  SECONDS");
        assert_eq!(lines[3], "kernel             0.500    1.000    ████");
        assert_eq!(lines[5], format!("command            2.000    7.000  {}{}", " ".repeat(8), "█".repeat(28)));
        assert!(lines[1].ends_with('▏'), "{text}");
    }

    #[test]
    fn a_picture_quotes_the_command() {
        let text = time_line_svg("sh -c '<&>'", &MOMENTS, 10.0);
        assert!(text.contains("&lt;&amp;&gt;") && text.ends_with("</svg>\n"), "{text}");
    }
}
