//! Each module of this crate uses only those before it in a list, read from their source, and the crates below know no wire.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the crate, from the lowest to the highest: each may use those before it.
const ROOMS: [&str; 23] = [
    "upper",
    "error",
    "notes",
    "device",
    "share",
    "record",
    "caches",
    "plan",
    "image",
    "push",
    "mount",
    "serve",
    "trace",
    "run",
    "compare",
    "debian",
    "doctor",
    "examine",
    "registry",
    "guest",
    "make_disk",
    "appliance",
    "shell",
];

/// The crates that speak with clients, and those below the jobs, which know none of them.
const WIRES: [&str; 4] = ["inarch-fuse", "inarch-nbd", "inarch-ninep", "inarch-vhost"];
const WITHOUT_WIRES: [&str; 4] = ["lifecycle", "cache", "source", "kept"];

/// The Rust files at or below `path`.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The module at the crate's root that a file is, or is in.
fn room(below_src: &Path) -> String {
    let first = below_src.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// The words that follow `before` in a line of code.
fn words_after<'a>(line: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(before)
        .filter(move |(at, _)| !line[..*at].ends_with(is_of_word))
        .map(move |(at, _)| &line[at + before.len()..])
        .map(move |rest| &rest[..rest.find(|c| !is_of_word(c)).unwrap_or(rest.len())])
}

/// What a line of code in a module of the crate's root called `room` does against the rules.
fn offence(room: &str, line: &str) -> Option<String> {
    let number = |name: &str| ROOMS.iter().position(|room| *room == name);
    let Some(own) = number(room) else { return Some(format!("{room} is no room of the list")) };
    for used in words_after(line, "crate::") {
        let used = match used {
            "JobError" => "error",
            "" => return Some("names several modules at once, or all".to_owned()),
            other => other,
        };
        // The error of all jobs is made of theirs.
        if used == room || (room == "error" && line.contains("#[from]")) {
            continue;
        }
        if number(used).is_none_or(|used| used > own) {
            return Some(format!("{room} may not use {used}"));
        }
    }
    None
}

fn code(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(str::to_owned).collect()
}

#[test]
fn every_room() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&src, &mut all);
    let (mut seen, mut offences) = (BTreeSet::new(), Vec::new());
    for file in all.iter().filter(|file| !file.ends_with("src/lib.rs")) {
        let name = file.strip_prefix(&src).unwrap();
        let room = room(name);
        // From the root of the crate `super` leads to other rooms.
        let is_root = name.components().count() == 1 || name.ends_with("mod.rs") && name.components().count() == 2;
        for (at, line) in code(file).iter().enumerate() {
            let leads_out = is_root && line.starts_with("use super::");
            let offence = offence(&room, line).or_else(|| leads_out.then(|| "leads out of its room".to_owned()));
            offences.extend(offence.map(|offence| format!("{}: {offence}: {line} ({at})", name.display())));
        }
        seen.insert(room);
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
    let listed: BTreeSet<String> = ROOMS.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(seen, listed, "the list of rooms is not that of the crate's modules");
}

#[test]
fn no_crate_below_knows_a_wire() {
    for name in WITHOUT_WIRES {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap();
        assert!(text.contains("inarch-tree") || name == "lifecycle", "{name}: is this its manifest?");
        for wire in WIRES {
            assert!(!text.contains(wire), "{name} may not use {wire}");
        }
    }
}

#[test]
fn offences_are_seen() {
    for (room, line) in [
        ("device", "use crate::serve::Service;"),
        ("mount", "use crate::{run, plan};"),
        ("error", "use crate::run::Outcome;"),
        ("another", "use crate::plan::plan;"),
    ] {
        assert!(offence(room, line).is_some(), "{room}: {line}");
    }
    for (room, line) in [
        ("run", "use crate::JobError;"),
        ("run", "use crate::device::Recipe;"),
        ("error", "    Run(#[from] crate::run::RunError),"),
        ("image", "pub(crate) use write::StreamParts;"),
        ("mount", "use inarch_source::Opened;"),
    ] {
        assert_eq!(offence(room, line), None, "{room}: {line}");
    }
}
