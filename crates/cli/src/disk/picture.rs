//! Draws what the tools made as an SVG picture: overhead, seconds and bytes over the sizes of disks.

use std::fmt::Write;
use std::path::Path;

use inarch_jobs::make_disk::compare::{Measured, Outcome};
use inarch_jobs::shown;

use crate::chart::escaped;
use crate::size;

/// The picture's measures, in pixels.
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const STEP: f64 = WIDTH + LEFT + 20.0;
const ROW: f64 = HEIGHT + TOP + 50.0;

/// What a panel shows.
struct Panel {
    title: &'static str,
    value: fn(&Measured) -> Option<f64>,
    label: fn(f64) -> String,
}

const PANELS: [Panel; 3] = [
    Panel { title: "overhead", value: |one| Some(one.overhead()? * 100.0), label: |value| format!("{value:.3}%") },
    Panel {
        title: "seconds",
        value: |one| match &one.outcome {
            Outcome::Made(made) => Some(made.seconds),
            _ => None,
        },
        label: |value| format!("{value:.3}"),
    },
    Panel {
        title: "bytes allocated",
        value: |one| match &one.outcome {
            Outcome::Made(made) => Some(made.allocated as f64),
            _ => None,
        },
        label: |value| size::show(value as u64),
    },
];

/// Where a value lies between others on a logarithmic axis, from 0 to 1.
fn place(value: f64, (least, most): (f64, f64)) -> f64 {
    let (least, most) = (least.ln(), most.ln());
    if most > least { (value.ln() - least) / (most - least) } else { 0.5 }
}

/// The least and the most of them; none if there are none.
fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| match bounds {
        None => Some((value, value)),
        Some((least, most)) => Some((value.min(least), value.max(most))),
    })
}

/// The colour of curve `number` of `all`, in CSS notation.
fn colour(number: usize, all: usize) -> String {
    let lightness = if number.is_multiple_of(2) { 35 } else { 55 };
    format!("hsl({}, 75%, {lightness}%)", number * 360 / all.max(1))
}

/// Draws the results: a row for each directory.
pub fn picture(measured: &[Measured]) -> String {
    let mut places: Vec<&Path> = measured.iter().map(|one| &*one.on).collect();
    places.dedup();
    let mut formats: Vec<&str> = Vec::new();
    for one in measured.iter().filter(|one| matches!(one.outcome, Outcome::Made(_))) {
        if !formats.contains(&one.format) {
            formats.push(one.format);
        }
    }
    let (width, height) = (STEP * PANELS.len() as f64 + 100.0, ROW * places.len() as f64 + 10.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (row, on) in places.iter().enumerate() {
        let here: Vec<&Measured> = measured.iter().filter(|one| one.on == *on).collect();
        for (column, panel) in PANELS.iter().enumerate() {
            let (x, y) = (STEP * column as f64 + LEFT, ROW * row as f64 + TOP);
            draw(&mut text, panel, on, &here, &formats, (x, y));
        }
        for (number, format) in formats.iter().enumerate() {
            let (x, y) = (STEP * PANELS.len() as f64 + 10.0, ROW * row as f64 + TOP + 14.0 * number as f64);
            let colour = colour(number, formats.len());
            // Writing to a String cannot fail.
            let _ = writeln!(text, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{format}</text>");
        }
    }
    text + "</svg>\n"
}

fn draw(text: &mut String, panel: &Panel, on: &Path, here: &[&Measured], formats: &[&str], (x, y): (f64, f64)) {
    // Zero has no logarithm.
    let value = |one: &Measured| (panel.value)(one).filter(|value| *value > 0.0);
    let points = || here.iter().filter_map(|one| Some((one.size as f64, value(one)?)));
    let (Some(sizes), Some(values)) =
        (bounds(points().map(|(size, _)| size)), bounds(points().map(|(_, value)| value)))
    else {
        return;
    };
    let at = |size: f64, value: f64| (x + WIDTH * place(size, sizes), y + HEIGHT * (1.0 - place(value, values)));
    let title = escaped(&format!("{}, on {}", panel.title, shown(on)));
    let bottom = y + HEIGHT;
    let _ = writeln!(text, "<text x=\"{x}\" y=\"{}\" font-size=\"13\">{title}</text>", y - 12.0);
    let _ = writeln!(text, "<path d=\"M{x},{y} V{bottom} H{}\" fill=\"none\" stroke=\"#888\"/>", x + WIDTH);
    for (value, height) in [(values.1, y + 4.0), (values.0, bottom)] {
        let label = (panel.label)(value);
        let _ = writeln!(text, "<text x=\"{}\" y=\"{height}\" text-anchor=\"end\">{label}</text>", x - 4.0);
    }
    let mut marks: Vec<u64> = here.iter().map(|one| one.size).collect();
    marks.sort_unstable();
    marks.dedup();
    for mark in marks.into_iter().filter(|mark| (sizes.0..=sizes.1).contains(&(*mark as f64))) {
        let (place, _) = at(mark as f64, values.0);
        let label = size::show(mark);
        let _ = writeln!(text, "<text x=\"{place}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", bottom + 14.0);
    }
    for (number, format) in formats.iter().enumerate() {
        let mut line: Vec<(f64, f64)> = here
            .iter()
            .filter(|one| one.format == *format)
            .filter_map(|one| Some((one.size as f64, value(one)?)))
            .collect();
        line.sort_by(|one, other| one.0.total_cmp(&other.0));
        let colour = colour(number, formats.len());
        let points: Vec<String> =
            line.iter().map(|(size, value)| at(*size, *value)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(text, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", points.join(" "));
        for point in &points {
            let (x, y) = point.split_once(',').unwrap_or_default();
            let _ = writeln!(
                text,
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"2.5\" fill=\"{colour}\"><title>{format}</title></circle>"
            );
        }
    }
}
