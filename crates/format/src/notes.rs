//! Collects notes about an input, bounded whatever the input.

use std::collections::BTreeMap;

/// The most paths named for one reason; the rest are counted.
const NAMED: u64 = 5;

/// Notes: for each reason the first few paths and a count of the rest, so that a hostile archive can fill neither the
/// memory nor the screen.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// For each reason, its count and its lines in order.
    reasons: BTreeMap<String, (u64, Vec<String>)>,
    /// Lines about no path, and a count of further ones.
    general: (Vec<String>, u64),
}

/// The most distinct reasons; later ones are counted together.
const REASONS: usize = 100;

/// The most bytes of a path that a note shows.
const SHOWN: usize = 200;

/// A path for a note; a very long one is shortened in the middle.
pub(crate) fn shown(path: &[u8]) -> String {
    match (path.first_chunk::<{ SHOWN / 2 }>(), path.last_chunk::<{ SHOWN / 2 }>()) {
        (Some(start), Some(end)) if path.len() > SHOWN => {
            format!("{}...{}", start.escape_ascii(), end.escape_ascii())
        }
        _ => path.escape_ascii().to_string(),
    }
}

/// A number of things: `1 file`, `2 files`.
pub fn counted(number: impl Into<u64>, one: &str, many: &str) -> String {
    let number = number.into();
    format!("{number} {}", if number == 1 { one } else { many })
}

impl Notes {
    /// Adds `reason` for the file at `path`.
    pub(crate) fn add(&mut self, path: &[u8], reason: &str) {
        let known = self.reasons.contains_key(reason) || self.reasons.len() < REASONS;
        let reason = if known { reason } else { "other reasons" };
        let (count, lines) = self.reasons.entry(reason.to_owned()).or_default();
        *count += 1;
        if *count <= NAMED {
            lines.push(format!("{}: {reason}", shown(path)));
        }
    }

    /// Adds a line about the whole input.
    pub(crate) fn tell(&mut self, line: String) {
        let (lines, more) = &mut self.general;
        if lines.len() < REASONS {
            lines.push(line);
        } else {
            *more += 1;
        }
    }

    /// The lines: first those about the whole input, then by reason.
    pub(crate) fn into_lines(self) -> Vec<String> {
        let (mut all, more) = self.general;
        if more > 0 {
            all.push(format!("{more} more of this kind"));
        }
        for (reason, (count, lines)) in self.reasons {
            all.extend(lines);
            if count > NAMED {
                all.push(format!("{} more: {reason}", count - NAMED));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_notes_of_one_reason_are_few_lines() {
        let mut notes = Notes::default();
        for i in 0..1000 {
            notes.add(format!("a\n{i}").as_bytes(), "is a socket");
        }
        notes.add(b"b", "another");
        let lines = notes.into_lines();
        assert_eq!(lines.len(), 7);
        assert_eq!(lines[0], "b: another");
        assert_eq!(lines[1], r"a\n0: is a socket");
        assert_eq!(lines[6], "995 more: is a socket");
    }

    #[test]
    fn a_long_path_is_shown_by_its_ends() {
        let mut notes = Notes::default();
        notes.add(&[b"start/", &[b'x'; 4000][..], b"/end"].concat(), "is long");
        let lines = notes.into_lines();
        assert!(lines[0].starts_with("start/xx") && lines[0].ends_with("xx/end: is long") && lines[0].len() < 250);
    }

    #[test]
    fn many_reasons_are_few_lines() {
        let mut notes = Notes::default();
        for i in 0..1000 {
            notes.add(b"a", &format!("reason {i}"));
        }
        assert!(notes.into_lines().len() < 120);
    }
}
