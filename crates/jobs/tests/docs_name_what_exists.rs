//! The documents name files that exist: the targets of their links, paths from the top of the project, and in
//! docs/ARCHITECTURE.md, docs/flows.md and docs/foreign-bytes.md every path. docs/known-attacks.md names tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Directories that begin a path from the top.
const TOP: [&str; 7] = ["crates/", "docs/", "scripts/", "benches/", "fuzz/", "agent/", ".ci/"];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The documents, by their paths from the top, and their text.
fn documents() -> Vec<(String, String)> {
    let mut names = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned(), "CHANGELOG.md".to_owned()];
    for entry in fs::read_dir(top().join("docs")).unwrap() {
        names.push(format!("docs/{}", entry.unwrap().file_name().to_str().unwrap()));
    }
    names.retain(|name| name.ends_with(".md"));
    let read = |name: String| (name.clone(), fs::read_to_string(top().join(&name)).unwrap());
    names.into_iter().map(read).collect()
}

fn is_of_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_./-".contains(c)
}

/// Lines that are no part of a code block.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The words of a line that are set as code.
fn code_words(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The name of a heading in links, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_lead_somewhere() {
    let documents = documents();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (name, text) in &documents {
        let directory = Path::new(name).parent().unwrap();
        for link in prose(text).flat_map(|line| line.split("](").skip(1)) {
            let target = link.split(')').next().unwrap();
            if target.contains("://") {
                continue;
            }
            checked += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { name.clone() } else { directory.join(path).to_str().unwrap().to_owned() };
            let is_there = match documents.iter().find(|(other, _)| *other == path) {
                Some((_, text)) if !heading.is_empty() => {
                    prose(text).any(|line| line.starts_with('#') && anchor(line) == heading)
                }
                _ => top().join(&path).exists(),
            };
            if !is_there {
                wrong.push(format!("{name}: {target}"));
            }
        }
    }
    assert!(checked > 50, "{checked}");
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn paths_from_the_top_exist() {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (name, text) in documents() {
        for word in text.split(|c| !is_of_path(c)).filter(|word| TOP.iter().any(|top| word.starts_with(top))) {
            checked += 1;
            if !top().join(word.trim_end_matches(['.', '-'])).exists() {
                wrong.push(format!("{name}: {word}"));
            }
        }
    }
    assert!(checked > 50, "{checked}");
    assert_eq!(wrong, [""; 0]);
}

/// All files and directories beneath `directory`, as paths.
fn beneath(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            beneath(&path, found);
        }
        found.push(path);
    }
}

/// These documents name a file by its path from the top or from crates/. After a section has named a crate (or agent/), it leaves
/// out the beginning of the paths there.
#[test]
fn paths_of_the_architecture_exist() {
    let read = |name| fs::read_to_string(top().join("docs").join(name)).unwrap();
    let text = ["ARCHITECTURE.md", "flows.md", "foreign-bytes.md"].map(read).concat();
    let crates = top().join("crates");
    let mut named = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for line in prose(&text) {
        if line.starts_with('#') {
            named.clear();
        }
        for word in code_words(line) {
            let is_source = [".rs", ".c", ".h", "/"].iter().any(|end| word.ends_with(end));
            let is_path = is_source || word.starts_with("crates/") || word.contains("/src");
            if !is_path || word.starts_with('/') || !word.chars().all(is_of_path) {
                continue;
            }
            checked += 1;
            let first = word.strip_prefix("crates/").unwrap_or(word).split('/').next().unwrap();
            named.extend(
                [crates.join(first), top().join("agent")]
                    .into_iter()
                    .filter(|part| part.ends_with(first) && part.is_dir()),
            );
            let is_suffix = |part: &PathBuf| {
                let mut found = Vec::new();
                beneath(part, &mut found);
                found.iter().any(|path| path.ends_with(word))
            };
            if !top().join(word).exists() && !crates.join(word).exists() && !named.iter().any(is_suffix) {
                wrong.push(word.to_owned());
            }
        }
    }
    assert!(checked > 100, "{checked}");
    assert_eq!(wrong, [""; 0]);
}

/// The last column of its tables has tests: crate, module and function; a name without a module is of the crate before it.
#[test]
fn tests_of_known_attacks_exist() {
    let text = fs::read_to_string(top().join("docs/known-attacks.md")).unwrap();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for row in text.lines().filter(|line| line.starts_with('|')) {
        let tests = row.trim_end_matches('|').rsplit('|').next().unwrap();
        let mut sources = String::new();
        for word in code_words(tests).filter(|word| !word.contains(['.', '/'])) {
            let (module, test) = word.rsplit_once("::").unwrap_or(("", word));
            if !module.is_empty() {
                let name = module.split("::").next().unwrap();
                let mut found = Vec::new();
                beneath(&top().join("crates").join(name), &mut found);
                found.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
                sources = found.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
            }
            checked += 1;
            if !sources.contains(&format!("#[test]\nfn {test}()"))
                && !sources.contains(&format!("#[test]\n    fn {test}()"))
            {
                wrong.push(word.to_owned());
            }
        }
    }
    assert!(checked > 30, "{checked}");
    assert_eq!(wrong, [""; 0]);
}
