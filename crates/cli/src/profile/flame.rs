//! A flame graph as an SVG picture: a frame is as wide as the time that it takes with the functions that it calls, which are below it. A
//! click makes it as wide as the picture.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::chart::escaped;

/// Seconds of something, and of its parts by their names.
#[derive(Debug, Default, PartialEq)]
pub struct Frame {
    /// All of it, its parts included.
    pub seconds: f64,
    parts: BTreeMap<String, Frame>,
}

impl Frame {
    /// Adds seconds to the frame with the path `names`, and to all on the way to it.
    pub fn add<'n>(&mut self, names: impl IntoIterator<Item = &'n str>, seconds: f64) {
        self.seconds += seconds;
        let mut frame = self;
        for name in names.into_iter().take(DEEPEST) {
            frame = frame.parts.entry(name.to_owned()).or_default();
            frame.seconds += seconds;
        }
    }

    /// Rows of it and its parts that are wide enough to be seen.
    fn depth(&self, least: f64) -> usize {
        let visible = self.parts.values().filter(|part| part.seconds >= least);
        visible.map(|part| part.depth(least)).max().unwrap_or(0) + 1
    }
}

/// Frames that lie above each other, at most.
const DEEPEST: usize = 200;

/// Measures in pixels.
const WIDTH: f64 = 1200.0;
const EDGE: f64 = 10.0;
const ROW: f64 = 17.0;
/// What is narrower is not drawn.
const NARROWEST: f64 = 0.4;

/// What a click does: it lays out the frames of its panel anew, so that the clicked one is as wide as the panel. Each has its place in the
/// whole as `data-x` and `data-w`.
const SCRIPT: &str = "<script><![CDATA[
document.querySelectorAll('svg.f').forEach(function (clicked) {
  clicked.addEventListener('click', function () {
    var x = +clicked.dataset.x, w = +clicked.dataset.w;
    clicked.parentNode.querySelectorAll('svg.f').forEach(function (frame) {
      var left = (frame.dataset.x - x) / w, right = left + frame.dataset.w / w;
      left = Math.max(left, 0), right = Math.min(right, 1);
      frame.setAttribute('x', left * 100 + '%');
      frame.setAttribute('width', Math.max(right - left, 0) * 100 + '%');
    });
  });
});
]]></script>
";

/// A picture of panels with their titles, and lines of text below.
pub fn drawn(title: &str, panels: &[(&str, &Frame)], told: &str) -> String {
    let mut body = String::new();
    let mut y = 44.0;
    for (name, all) in panels {
        // Writing to a String cannot fail.
        let _ =
            writeln!(body, "<text x=\"{EDGE}\" y=\"{:.0}\" font-weight=\"bold\">{}</text>", y + 12.0, escaped(name));
        y += ROW + 4.0;
        let wide = WIDTH - 2.0 * EDGE;
        let least = all.seconds * NARROWEST / wide;
        let height = ROW * all.depth(least) as f64;
        let _ = writeln!(body, "<svg x=\"{EDGE}\" y=\"{y:.0}\" width=\"{wide}\" height=\"{height}\">");
        if all.seconds > 0.0 {
            panel(&mut body, ("all", all), all.seconds, (0.0, 0.0), least);
        } else {
            body += "<text x=\"3\" y=\"12\" fill=\"#555\">none</text>\n";
        }
        body += "</svg>\n";
        y += height + ROW;
    }
    for line in told.lines() {
        y += ROW;
        let _ = writeln!(
            body,
            "<text x=\"{EDGE}\" y=\"{y:.0}\" font-family=\"monospace\" xml:space=\"preserve\">{}</text>",
            escaped(line)
        );
    }
    let height = y + 2.0 * EDGE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{EDGE}\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{}</text>\n{body}{SCRIPT}</svg>\n",
        escaped(title)
    )
}

/// A frame that begins after `before` seconds of the whole, and below it its parts.
fn panel(body: &mut String, (name, frame): (&str, &Frame), whole: f64, (before, y): (f64, f64), least: f64) {
    let (x, width) = (before / whole, frame.seconds / whole);
    let name = escaped(name);
    let _ = writeln!(
        body,
        "<svg class=\"f\" x=\"{:.3}%\" y=\"{y:.0}\" width=\"{:.3}%\" height=\"{ROW}\" data-x=\"{x:.6}\" data-w=\"{width:.6}\">\
         <title>{name}: {:.3} s, {:.1} %</title><rect width=\"100%\" height=\"16\" fill=\"{}\"/>\
         <text x=\"3\" y=\"12\">{name}</text></svg>",
        x * 100.0,
        width * 100.0,
        frame.seconds,
        width * 100.0,
        colour(&name)
    );
    let mut begin = before;
    for (name, part) in &frame.parts {
        if part.seconds >= least {
            panel(body, (name, part), whole, (begin, y + ROW), least);
        }
        begin += part.seconds;
    }
}

/// One of the warm colours, the same for the same name.
fn colour(name: &str) -> String {
    let hash = name.bytes().fold(5381u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
    format!("hsl({},{}%,{}%)", hash % 50, 75 + hash / 50 % 20, 62 + hash / 1000 % 14)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_as_wide_as_its_time_and_has_its_parts_below() {
        let mut all = Frame::default();
        all.add(["thread", "serve", "search"], 3.0);
        all.add(["thread", "serve", "<copy>"], 1.0);
        all.add(["other"], 4.0);
        assert_eq!((all.seconds, all.depth(0.0), all.depth(3.5)), (8.0, 4, 3));
        let picture = drawn("a & b", &[("busy", &all), ("waiting", &Frame::default())], "read   7\n");
        for part in [
            "x=\"0.000%\" y=\"17\" width=\"50.000%\"",
            "x=\"50.000%\" y=\"17\" width=\"50.000%\"",
            "<title>search: 3.000 s, 37.5 %</title>",
            "<title>&lt;copy&gt;: 1.000 s, 12.5 %</title>",
            "a &amp; b",
            ">read   7</text>",
            ">none</text>",
        ] {
            assert!(picture.contains(part), "'{part}' is not in {picture}");
        }
        // A frame that is narrower than half a pixel is left out.
        all.add(["other", "tiny"], 0.0001);
        assert!(!drawn("", &[("busy", &all)], "").contains("tiny"));
    }
}
