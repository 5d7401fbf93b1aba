//! Pictures and pages that commands draw.

use std::fs;
use std::path::Path;

use super::host;

/// Parses a picture; or a page, which is as strict but for its elements without an end.
const PARSE: &str = "
import re, sys, xml.dom.minidom
text = open(sys.argv[1], encoding='utf-8').read()
if text.startswith('<!DOCTYPE html>'):
    text = re.sub('(<meta [^>]*)>', r'\\1/>', text)
xml.dom.minidom.parseString(text.encode())
";

/// What an SVG picture or a page for a browser consists of. It is whole, and well-formed.
#[track_caller]
pub fn drawn(path: &Path) -> String {
    host("python3", &["-c", PARSE, path.to_str().unwrap()], Path::new("/"));
    let text = fs::read_to_string(path).unwrap();
    let is_whole = match text.starts_with("<!DOCTYPE html>\n") {
        true => text.ends_with("</html>\n"),
        false => text.starts_with("<svg ") && text.ends_with("</svg>\n"),
    };
    assert!(is_whole, "{text}");
    text
}

/// Asserts that a file is a picture of a profile, with what is expected below it. Which functions were seen is up to the machine.
#[track_caller]
pub fn assert_profile(path: &Path, expected: &[&str]) {
    let picture = drawn(path);
    for part in ["profile of ", ">Processor time: ", ">Waiting: "].iter().chain(expected) {
        assert!(picture.contains(part), "{part}: {picture}");
    }
}
