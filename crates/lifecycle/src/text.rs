//! Formats text for people.

use std::path::Path;

pub use inarch_format::counted;

/// A printable path: names in a tree may contain line breaks and terminal control sequences.
pub fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_play_tricks_with_a_terminal() {
        assert_eq!(shown(Path::new("/a b/ü\u{1b}]0;x\u{7}\n")), "/a b/ü\\u{1b}]0;x\\u{7}\\n");
    }
}
