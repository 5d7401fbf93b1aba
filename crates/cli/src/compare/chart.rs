//! Draws a comparison as an SVG picture: a bar for each way, cut into what is before the command, the command and what is after it, with a dot
//! for each run.

use std::fmt::Write;

use inarch_jobs::compare::{CompareReport, Measured};

use super::table::{about, failure, parts};
use crate::chart::{Axis, escaped, shortened};

/// Measures in pixels.
const LEFT: f64 = 110.0;
const LETTER: f64 = 7.5;
const SMALL_LETTER: f64 = 5.8;
const WIDTH: f64 = 520.0;
const RIGHT: f64 = 90.0;
const ROW: f64 = 30.0;
const BAR: f64 = 18.0;
const TOP: f64 = 70.0;

/// Colours of the parts.
const BEFORE: &str = "#b8c4d6";
const COMMAND: &str = "#3465a4";
const AFTER: &str = "#8a9bb5";

/// The picture.
pub fn svg(report: &CompareReport) -> String {
    let runs = report.results.iter().filter(|one| one.failure.is_none()).flat_map(|one| &one.runs);
    let longest = runs.map(|run| run.total).fold(f64::MIN_POSITIVE, f64::max);
    let states = report.results.chunk_by(|one, other| one.page_cache == other.page_cache);
    let rows = report.results.len() as f64 + states.clone().count() as f64;
    let bottom = TOP + rows * ROW;
    let widest = report.results.iter().map(|one| one.name().chars().count()).max().unwrap_or(0);
    let left = LEFT.max(widest as f64 * LETTER + 18.0);
    let axis = Axis { left, width: WIDTH, top: TOP, bottom, longest, label: "seconds, medians" };
    let mut text = axis.begin(&report.command.join(" "), RIGHT);
    // Writing to a String cannot fail.
    let parts = [
        (10.0, BEFORE, "before the command"),
        (180.0, COMMAND, "command"),
        (275.0, AFTER, "after it"),
        (360.0, "black", "a run"),
    ];
    for (x, colour, name) in parts {
        let mark = match name {
            "a run" => format!("<circle cx=\"{}\" cy=\"43\" r=\"2.5\" fill=\"{colour}\"/>", x + 6.0),
            _ => format!("<rect x=\"{x}\" y=\"37\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"),
        };
        let _ = writeln!(text, "{mark}<text x=\"{}\" y=\"48\">{name}</text>", x + 17.0);
    }
    let mut y = TOP;
    for state in states {
        let name = state.first().map_or("", |one| one.page_cache.name());
        let _ = writeln!(text, "<text x=\"10\" y=\"{:.1}\" fill=\"#555\">page cache {name}</text>", y + 20.0);
        y += ROW;
        for measured in state {
            row(&mut text, measured, y, &axis);
            y += ROW;
        }
    }
    let about = shortened(&about(&report.machine), ((left + WIDTH + RIGHT) / SMALL_LETTER) as usize);
    let _ = writeln!(
        text,
        "<text x=\"10\" y=\"{:.1}\" font-size=\"11\" fill=\"#777\">{}</text>",
        bottom + 52.0,
        escaped(&about)
    );
    text + "</svg>\n"
}

/// A transport's bar.
fn row(text: &mut String, measured: &Measured, y: f64, axis: &Axis) {
    let middle = y + ROW / 2.0;
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        axis.left - 8.0,
        middle + 4.5,
        escaped(&measured.name())
    );
    let Some([before, command, total]) = parts(measured) else {
        let reason = escaped(&shortened(failure(measured), ((WIDTH + RIGHT) / SMALL_LETTER) as usize));
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{:.1}\" font-size=\"11\" fill=\"#a40000\">{reason}</text>",
            axis.left + 4.0,
            middle + 4.0
        );
        return;
    };
    let parts = [(0.0, before, BEFORE), (before, command, COMMAND), (command, total, AFTER)];
    for (from, to, colour) in parts {
        let (x, width) = (axis.place(from), axis.place(to) - axis.place(from));
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>",
            middle - BAR / 2.0
        );
    }
    for run in &measured.runs {
        let _ = writeln!(
            text,
            "<circle cx=\"{:.1}\" cy=\"{middle:.1}\" r=\"2.5\" fill=\"black\" stroke=\"white\" stroke-width=\"0.7\"/>",
            axis.place(run.total)
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{total:.2} s</text>",
        axis.left + WIDTH + RIGHT - 10.0,
        middle + 4.5
    );
}
