//! Draws a comparison as an SVG picture: a bar for each transport, cut into boot and command, with a dot for each run.

use std::fmt::Write;

use inarch_jobs::compare::{CompareReport, Measured};

use crate::disk::escaped;

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
    let step = step(longest);
    let axis = (longest / step).ceil() * step;
    let place = |seconds: f64| LEFT + seconds / axis * WIDTH;
    let states = report.results.chunk_by(|one, other| one.page_cache == other.page_cache);
    let rows = report.results.len() as f64 + states.clone().count() as f64;
    let (width, bottom) = (LEFT + WIDTH + 90.0, TOP + rows * ROW);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        height = bottom + 60.0
    );
    let title = escaped(&report.command.join(" "));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "<text x=\"10\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{title}</text>");
    for (x, colour, name) in [(10.0, BOOT, "boot"), (80.0, COMMAND, "command"), (180.0, "black", "a run")] {
        let mark = match name {
            "a run" => format!("<circle cx=\"{}\" cy=\"43\" r=\"2.5\" fill=\"{colour}\"/>", x + 6.0),
            _ => format!("<rect x=\"{x}\" y=\"37\" width=\"12\" height=\"12\" fill=\"{colour}\"/>"),
        };
        let _ = writeln!(text, "{mark}<text x=\"{}\" y=\"48\">{name}</text>", x + 17.0);
    }
    for number in 0..=(axis / step).round() as usize {
        let seconds = number as f64 * step;
        let x = place(seconds);
        let _ = writeln!(
            text,
            "<path d=\"M{x:.1},{TOP} V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            bottom + 16.0,
            trimmed(seconds)
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">seconds, medians</text>",
        LEFT + WIDTH / 2.0,
        bottom + 34.0
    );
    let mut y = TOP;
    for state in states {
        let name = state.first().map_or("", |one| one.page_cache.name());
        let _ = writeln!(text, "<text x=\"10\" y=\"{:.1}\" fill=\"#555\">page cache {name}</text>", y + 20.0);
        y += ROW;
        for measured in state {
            row(&mut text, measured, y, &place);
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
fn row(text: &mut String, measured: &Measured, y: f64, place: &dyn Fn(f64) -> f64) {
    let middle = y + ROW / 2.0;
    let _ = writeln!(
        text,
        "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        LEFT - 8.0,
        middle + 4.5,
        measured.way
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
        let (x, width) = (place(from), place(to) - place(from));
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
            place(run.total)
        );
    }
    let most = measured.runs.iter().map(|run| run.total).fold(total, f64::max);
    let _ = writeln!(text, "<text x=\"{:.1}\" y=\"{:.1}\">{total:.2}</text>", place(most) + 8.0, middle + 4.5);
}

/// The distance of marks on an axis up to `longest`: 1, 2 or 5 times a power of ten, so that there are about six.
fn step(longest: f64) -> f64 {
    let power = 10f64.powf((longest / 6.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|step| longest / step <= 6.0)
        .unwrap_or(power * 10.0)
}

/// A number without zeros at its end.
fn trimmed(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_a_handful_of_round_marks() {
        for (longest, expected) in [(0.9, 0.2), (6.0, 1.0), (7.3, 2.0), (29.0, 5.0), (31.0, 10.0), (3600.0, 1000.0)] {
            let step = step(longest);
            assert!((step - expected).abs() < 1e-9, "{longest}: {step}");
        }
        assert_eq!([trimmed(0.0), trimmed(1.5), trimmed(20.0)], ["0", "1.5", "20"]);
    }
}
