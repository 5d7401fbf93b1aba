//! `--timings`: what took how long in a run or an appliance, as text and as an SVG picture.

use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use inarch_jobs::run::Step;
use inarch_jobs::{WholeFile, create_named, shown};

use crate::chart::{Axis, escaped};
use crate::columns::columns;
use crate::output::complain;
use crate::say;

/// Says at once if the picture cannot be written.
pub fn check(wanted: &Option<Option<PathBuf>>) -> anyhow::Result<()> {
    if let Some(Some(path)) = wanted {
        WholeFile::create(path)?;
    }
    Ok(())
}

/// Tells what was asked for: nothing, the text, or both.
pub fn tell(wanted: &Option<Option<PathBuf>>, steps: &[Step]) -> anyhow::Result<()> {
    let Some(picture) = wanted else { return Ok(()) };
    if steps.is_empty() {
        complain("--timings: the command did not run to its end, so there is nothing to tell");
        return Ok(());
    }
    say::table(&told(steps));
    let Some(path) = picture else { return Ok(()) };
    let written = create_named(path).and_then(|mut file| file.write_all(drawn(steps).as_bytes()));
    written.map_err(|error| anyhow::anyhow!("{}: cannot write it: {error}", shown(path)))
}

/// From the start to the end of the last step, in seconds; never zero.
fn total(steps: &[Step]) -> f64 {
    let end = steps.iter().map(|step| step.began.saturating_add(step.took)).max();
    end.unwrap_or_default().as_secs_f64().max(0.001)
}

/// A time line as text: a bar for each step.
fn told(steps: &[Step]) -> String {
    const WIDTH: f64 = 40.0;
    let total = total(steps);
    let row = |step: &Step| {
        let (began, took) = (step.began.as_secs_f64(), step.took.as_secs_f64());
        let before = (began / total * WIDTH) as usize;
        let length =
            ((took / total * WIDTH).round() as usize).clamp(1, WIDTH as usize + 1 - before.min(WIDTH as usize));
        let place = if step.in_guest { "guest" } else { "host" };
        let bar = format!("{}{}", " ".repeat(before), "#".repeat(length));
        vec![format!("{began:.3}"), format!("{took:.3}"), place.to_owned(), shown(Path::new(&step.what)), bar]
    };
    let heads = ["AT", "SECONDS", "WHERE", "WHAT", ""].map(str::to_owned).to_vec();
    let rows: Vec<_> = [heads].into_iter().chain(steps.iter().map(row)).collect();
    columns(&rows, &[0, 1]) + &format!("{total:.3} s in all\n")
}

/// Measures of the picture, in pixels: the names of the steps are left of the bars.
const NAMES: f64 = 300.0;
const BARS: f64 = 560.0;
const TOP: f64 = 44.0;
const ROW: f64 = 22.0;

/// Colours of what this machine does, and of what the guest does.
const COLOURS: [(&str, &str); 2] = [("this machine", "#3b6ea5"), ("the guest", "#d9822b")];

/// A time line as a picture: a bar for each step, over an axis of seconds.
fn drawn(steps: &[Step]) -> String {
    let total = total(steps);
    let bottom = TOP + ROW * steps.len() as f64;
    let axis = Axis { left: NAMES, width: BARS, top: TOP, bottom, longest: total, label: "seconds" };
    let mut text = axis.begin(&format!("{total:.3} s in all"), 80.0);
    for (number, (who, colour)) in COLOURS.into_iter().enumerate() {
        let x = NAMES + 120.0 * number as f64;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "<rect x=\"{x}\" y=\"14\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        let _ = writeln!(text, "<text x=\"{}\" y=\"24\">{who}</text>", x + 18.0);
    }
    for (row, step) in steps.iter().enumerate() {
        draw(&mut text, step, TOP + ROW * row as f64, &axis);
    }
    text + "</svg>\n"
}

fn draw(text: &mut String, step: &Step, y: f64, axis: &Axis) {
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
    let (x, end) = (axis.place(began), axis.place(began + took));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn step(what: &str, began: u64, took: u64, in_guest: bool) -> Step {
        let [began, took] = [began, took].map(Duration::from_millis);
        Step { what: what.to_owned(), in_guest, began, took }
    }

    #[test]
    fn each_step_is_shown_where_it_was() {
        let steps = [step("preparation", 0, 1000, false), step("<&\u{1b}>", 1000, 3000, true)];
        let lines = [
            "   AT  SECONDS  WHERE  WHAT".to_owned(),
            format!("0.000    1.000  host   preparation  {}", "#".repeat(10)),
            format!("1.000    3.000  guest  <&\\u{{1b}}>    {}{}", " ".repeat(10), "#".repeat(30)),
            "4.000 s in all".to_owned(),
        ];
        assert_eq!(told(&steps).lines().collect::<Vec<_>>(), lines);
        let picture = drawn(&steps);
        assert!(picture.contains("&lt;&amp;\\u{1b}&gt;") && picture.ends_with("</svg>\n"), "{picture}");
    }
}
