//! A test that does not test something says so, in a line that begins with `skipped: ` and its name: `.ci/run` prints these lines, and without the name
//! none says what was not tested.

use std::fs;
use std::path::{Path, PathBuf};

const SKIPPED: &str = "\"skipped: ";

/// What asks for something that a machine may lack. A test that returns right after it says nothing.
const ASKED: [&str; 2] = ["geteuid().is_root() {", "/dev/fuse\").exists() {"];

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// The names of the tests in a source file; of a program that is a test itself, those of all its functions.
fn tests(text: &str) -> Vec<&str> {
    if text.contains("\nfn main() {") {
        return text.split("fn ").skip(1).filter_map(|rest| rest.split_once('(')).map(|(name, _)| name).collect();
    }
    let after = text.split("#[test]").skip(1);
    after.filter_map(|rest| rest.split_once("fn ")?.1.split_once('(')).map(|(name, _)| name).collect()
}

/// What is wrong in a source file.
fn offences(text: &str) -> Vec<String> {
    let tests = tests(text);
    let mut offences = Vec::new();
    for (at, _) in text.match_indices(SKIPPED) {
        let rest = &text[at + SKIPPED.len()..];
        let name = rest.split([':', '"']).next().unwrap_or_default();
        // Put in from the caller, or of the thread, which has the test's name.
        if !name.starts_with('{') && !tests.contains(&name) {
            offences.push(format!("no test is called {name:?}"));
        }
    }
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.starts_with("//")).collect();
    for pair in lines.windows(2) {
        if pair[0].starts_with("if !") && ASKED.iter().any(|asked| pair[0].ends_with(asked)) && pair[1] == "return;" {
            offences.push(format!("{} return; says nothing", pair[0]));
        }
    }
    offences
}

#[test]
fn in_all_sources() {
    let mut paths = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut paths);
    assert!(paths.len() > 500, "{}", paths.len());
    let own = Path::new(file!()).file_name().unwrap();
    let mut found = Vec::new();
    for path in paths.iter().filter(|path| path.file_name() != Some(own)) {
        let text = fs::read_to_string(path).unwrap();
        found.extend(offences(&text).into_iter().map(|offence| format!("{}: {offence}", path.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn offences_are_seen() {
    let test = |body: &str| format!("#[test]\nfn this_holds() {{\n    {body}\n}}\n");
    assert_eq!(offences(&test("println!(\"skipped: this_holds: not root\");")), [""; 0]);
    assert_eq!(offences(&test("println!(\"skipped: {test}: not root\");")), [""; 0]);
    assert_eq!(offences(&test("println!(\"skipped: not root\");")).len(), 1);
    assert_eq!(
        offences(&test("if !rustix::process::geteuid().is_root() {\n        // Why.\n        return;\n    }")).len(),
        1
    );
}
