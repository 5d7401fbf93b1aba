//! What the pictures of this program have in common: SVG with an axis of seconds.

use std::fmt::Write;

/// About the width of a letter of a title, in pixels.
const TITLE_LETTER: f64 = 10.0;

/// The axis of a picture: seconds from left to right. Measures are in pixels.
pub struct Axis {
    /// Where zero is.
    pub left: f64,
    /// From there to the last mark.
    pub width: f64,
    /// Where the lines of the marks begin.
    pub top: f64,
    /// Where they end.
    pub bottom: f64,
    /// The most seconds.
    pub longest: f64,
    /// What the marks count.
    pub label: &'static str,
}

impl Axis {
    /// The last mark, in seconds.
    fn end(&self) -> f64 {
        let longest = self.longest.max(f64::MIN_POSITIVE);
        let step = step(longest);
        (longest / step).ceil() * step
    }

    /// Where a moment is.
    pub fn place(&self, seconds: f64) -> f64 {
        self.left + seconds / self.end() * self.width
    }

    /// The beginning of a picture: its title, and the axis. `right` is the room beside the axis.
    pub fn begin(&self, title: &str, right: f64) -> String {
        let (width, height) = (self.left + self.width + right, self.bottom + 60.0);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let title = escaped(&shortened(title, (width / TITLE_LETTER) as usize));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "<text x=\"10\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{title}</text>");
        let step = step(self.longest.max(f64::MIN_POSITIVE));
        for number in 0..=(self.end() / step).round() as usize {
            let seconds = number as f64 * step;
            let (x, top, bottom) = (self.place(seconds), self.top, self.bottom);
            let _ = writeln!(
                text,
                "<path d=\"M{x:.1},{top} V{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
                bottom + 16.0,
                trimmed(seconds)
            );
        }
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>",
            self.left + self.width / 2.0,
            self.bottom + 34.0,
            self.label
        );
        text
    }
}

/// Text as XML 1.0 holds it. It cannot hold most control characters at all (section 2.2); those are replaced.
pub fn escaped(text: &str) -> String {
    let one = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        // It can hold these, but a terminal takes them for more.
        '\t' | '\n' | '\r' | '\u{7f}'..='\u{9f}' => format!("&#{};", u32::from(c)),
        c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => '\u{fffd}'.to_string(),
        c => c.to_string(),
    };
    text.chars().map(one).collect()
}

/// A text of at most `most` letters.
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most.saturating_sub(1)) {
        Some((end, _)) if text.chars().count() > most => format!("{}…", text.get(..end).unwrap_or_default().trim_end()),
        _ => text.to_owned(),
    }
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
        assert_eq!(["äbcd", "äbc d", "äbcde"].map(|text| shortened(text, 4)), ["äbcd", "äbc…", "äbc…"]);
        assert_eq!([trimmed(0.0), trimmed(1.5), trimmed(20.0)], ["0", "1.5", "20"]);
    }
}
