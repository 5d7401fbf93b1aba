//! `--timings`: what took how long in an appliance, as text and as an SVG picture.

use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use inarch_jobs::appliance::{Step, Timeline};
use inarch_jobs::{WholeFile, create_named, shown};

use super::picture::escaped;
use crate::columns::columns;
use crate::output::introduce;

/// Says at once if the picture cannot be written.
pub fn check(wanted: &Option<Option<PathBuf>>) -> anyhow::Result<()> {
    if let Some(Some(path)) = wanted {
        WholeFile::create(path)?;
    }
    Ok(())
}

/// Tells what was asked for: nothing, the text, or both.
pub fn tell(wanted: &Option<Option<PathBuf>>, timeline: &Timeline) -> anyhow::Result<()> {
    let Some(picture) = wanted else { return Ok(()) };
    introduce(&told(timeline));
    let Some(path) = picture else { return Ok(()) };
    let written = create_named(path).and_then(|mut file| file.write_all(drawn(timeline).as_bytes()));
    written.map_err(|error| anyhow::anyhow!("{}: cannot write it: {error}", shown(path)))
}

/// A time line as text: a bar for each step.
fn told(timeline: &Timeline) -> String {
    const WIDTH: f64 = 40.0;
    let total = timeline.total().as_secs_f64().max(0.001);
    let row = |step: &inarch_jobs::appliance::Step| {
        let (began, took) = (step.began.as_secs_f64(), step.took.as_secs_f64());
        let before = (began / total * WIDTH) as usize;
        let length =
            ((took / total * WIDTH).round() as usize).clamp(1, WIDTH as usize + 1 - before.min(WIDTH as usize));
        let place = if step.in_guest { "guest" } else { "host" };
        let bar = format!("{}{}", " ".repeat(before), "#".repeat(length));
        vec![format!("{began:.3}"), format!("{took:.3}"), place.to_owned(), shown(Path::new(&step.what)), bar]
    };
    let heads = ["AT", "SECONDS", "WHERE", "WHAT", ""].map(str::to_owned).to_vec();
    let rows: Vec<_> = [heads].into_iter().chain(timeline.steps().iter().map(row)).collect();
    columns(&rows, &[0, 1]) + &format!("{total:.3} s in all\n")
}

/// Measures of the picture, in pixels: the names of the steps are left of the bars.
const NAMES: f64 = 300.0;
const BARS: f64 = 560.0;
const TOP: f64 = 44.0;
const ROW: f64 = 22.0;

/// Colours of what this machine does, and of what the guest does.
const COLOURS: [(&str, &str); 2] = [("this machine", "#3b6ea5"), ("the guest", "#d9822b")];

/// So many marks of the time there are at most.
const MOST_MARKS: f64 = 8.0;

/// A time line as a picture: a bar for each step, over an axis of seconds.
fn drawn(timeline: &Timeline) -> String {
    let total = timeline.total().as_secs_f64().max(0.001);
    let place = |seconds: f64| NAMES + seconds / total * BARS;
    let bottom = TOP + ROW * timeline.steps().len() as f64;
    let (width, height) = (NAMES + BARS + 80.0, bottom + 30.0);
    // Writing to a String cannot fail.
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"24\" font-size=\"14\">{total:.3} s in all</text>\n"
    );
    for (number, (who, colour)) in COLOURS.into_iter().enumerate() {
        let x = NAMES + 120.0 * number as f64;
        let _ = writeln!(text, "<rect x=\"{x}\" y=\"14\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        let _ = writeln!(text, "<text x=\"{}\" y=\"24\">{who}</text>", x + 18.0);
    }
    let between = between_marks(total);
    let marks = (total / between).floor() as u32;
    for seconds in (0..=marks).map(|mark| f64::from(mark) * between) {
        let x = place(seconds);
        let _ = writeln!(text, "<path d=\"M{x:.1},{TOP} V{bottom}\" stroke=\"#ddd\"/>");
        let label = rounded(seconds);
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{label} s</text>",
            bottom + 18.0
        );
    }
    for (row, step) in timeline.steps().iter().enumerate() {
        draw(&mut text, step, TOP + ROW * row as f64, place);
    }
    text + "</svg>\n"
}

fn draw(text: &mut String, step: &Step, y: f64, place: impl Fn(f64) -> f64) {
    /// The longest name that fits; the whole one shows where the pointer rests.
    const LONGEST: usize = 46;
    let (began, took) = (step.began.as_secs_f64(), step.took.as_secs_f64());
    let what = shown(Path::new(&step.what));
    let mut short: String = what.chars().take(LONGEST).collect();
    if what.chars().count() > LONGEST {
        short.push('\u{2026}');
    }
    let [(_, host), (_, guest)] = COLOURS;
    let colour = if step.in_guest { guest } else { host };
    let (x, end) = (place(began), place(began + took));
    let (width, base) = ((end - x).max(1.5), y + 15.0);
    let _ = writeln!(text, "<g><title>{}</title>", escaped(&what));
    let _ = writeln!(text, "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\">{}</text>", NAMES - 10.0, escaped(&short));
    let _ = writeln!(
        text,
        "<rect x=\"{x:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"14\" rx=\"2\" fill=\"{colour}\"/>",
        y + 4.0
    );
    let _ = writeln!(text, "<text x=\"{:.1}\" y=\"{base}\" fill=\"#333\">{took:.3}</text></g>", x + width + 5.0);
}

/// Seconds between two marks: 1, 2 or 5 times a power of ten.
fn between_marks(total: f64) -> f64 {
    let least = total / MOST_MARKS;
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|times| times * power).find(|between| *between >= least).unwrap_or(10.0 * power)
}

/// Without the digits that a mark does not need.
fn rounded(seconds: f64) -> String {
    let text = format!("{seconds:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        for (total, between) in [(0.4, 0.05), (1.0, 0.2), (1.7, 0.5), (8.0, 1.0), (61.0, 10.0)] {
            assert!((between_marks(total) - between).abs() < 1e-9, "{total}: {}", between_marks(total));
        }
        assert_eq!(["0", "0.5", "10"].map(str::to_owned), [0.0, 0.5, 10.0].map(rounded));
    }
}
