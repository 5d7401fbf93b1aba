//! Draws a comparison as an SVG picture: a bar for each transport, cut into boot and command, with a dot for each run.

use std::fmt::Write;

use inarch_jobs::compare::{CompareReport, Measured};

use crate::chart::{Axis, escaped};

/// Measures in pixels.
const LEFT: f64 = 110.0;
const WIDTH: f64 = 520.0;
const ROW: f64 = 30.0;
const BAR: f64 = 18.0;
const TOP: f64 = 70.0;

/// Colours of the parts.
const BOOT: &str = "#b8c4d6";
const COMMAND: &str = "#3465a4";

/// The picture.
pub fn svg(report: &CompareReport) -> String {
    let runs = report.results.iter().filter(|one| one.failure.is_none()).flat_map(|one| &one.runs);
    let longest = runs.map(|run| run.total).fold(f64::MIN_POSITIVE, f64::max);
    let states = report.results.chunk_by(|one, other| one.page_cache == other.page_cache);
    let rows = report.results.len() as f64 + states.clone().count() as f64;
    let bottom = TOP + rows * ROW;
    let axis = Axis { left: LEFT, width: WIDTH, top: TOP, bottom, longest, label: "seconds, medians" };
    let mut text = axis.begin(&report.command.join(" "), 90.0);
    // Writing to a String cannot fail.
    for (x, colour, name) in [(10.0, BOOT, "boot"), (80.0, COMMAND, "command"), (180.0, "black", "a run")] {
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
    let machine = &report.machine;
    let about = super::table::about(machine);
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
        LEFT - 8.0,
        middle + 4.5,
        escaped(&measured.name)
    );
    let (Some(total), Some(boot)) = (measured.median(|run| run.total), measured.median(|run| run.boot)) else {
        let reason = escaped(measured.failure.as_deref().unwrap_or("no run"));
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{:.1}\" font-size=\"11\" fill=\"#a40000\">{reason}</text>",
            LEFT + 4.0,
            middle + 4.0
        );
        return;
    };
    let parts = [(0.0, boot.min(total), BOOT), (boot.min(total), total, COMMAND)];
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
    let most = measured.runs.iter().map(|run| run.total).fold(total, f64::max);
    let _ = writeln!(text, "<text x=\"{:.1}\" y=\"{:.1}\">{total:.2}</text>", axis.place(most) + 8.0, middle + 4.5);
}
