//! Promise: with nothing but the files of its trace in an empty root, a build of one of Debian's C projects makes the same, byte for byte.

use std::path::Path;

use crate::support::debian::source;
use crate::support::{INARCH, host, scratch};

#[test]
fn bzip2() {
    let dir = scratch();
    let project = source("bzip2", dir.path());
    let project = project.canonicalize().unwrap();
    let replay = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/promises/support/replay.sh");
    let words =
        [replay.to_str().unwrap(), INARCH, project.to_str().unwrap(), "^$", "make", "-j2", "bzip2", "bzip2recover"];
    let said = host("bash", &words, dir.path());
    let compared = said.lines().last().and_then(|line| line.strip_suffix(" files are the same")?.parse().ok());
    // Objects, an archive and two programs.
    assert!(compared.is_some_and(|files: usize| files > 8), "{said}");
}
