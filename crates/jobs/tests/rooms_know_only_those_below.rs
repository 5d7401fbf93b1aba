//! Each module of this crate uses only those below it, as docs/ARCHITECTURE.md says ("The rooms of jobs"). Read from their source.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What a module may use of those that come before it in [`ROOMS`].
enum Below {
    /// These.
    Only(&'static [&'static str]),
    /// All: a job.
    All,
}

/// The modules of the crate, from the lowest to the highest.
const ROOMS: [(&str, Below); 32] = [
    ("events", Below::Only(&[])),
    ("text", Below::Only(&[])),
    ("path_error", Below::Only(&["text"])),
    ("change", Below::Only(&[])),
    ("lifecycle", Below::Only(&["events", "text", "path_error"])),
    ("cache", Below::Only(&["text", "path_error", "lifecycle"])),
    ("source", Below::Only(&["text", "path_error", "lifecycle", "cache"])),
    ("disk", Below::Only(&["text", "path_error"])),
    ("kept", Below::Only(&["text", "path_error", "change", "lifecycle", "source", "disk"])),
    ("upper", Below::Only(&["text", "path_error", "lifecycle"])),
    ("error", Below::All),
    ("notes", Below::All),
    ("device", Below::All),
    ("share", Below::All),
    ("record", Below::All),
    ("caches", Below::All),
    ("plan", Below::All),
    ("image", Below::All),
    ("push", Below::All),
    ("mount", Below::All),
    ("serve", Below::All),
    ("trace", Below::All),
    ("run", Below::All),
    ("compare", Below::All),
    ("debian", Below::All),
    ("doctor", Below::All),
    ("examine", Below::All),
    ("registry", Below::All),
    ("guest", Below::All),
    ("make_disk", Below::All),
    ("appliance", Below::All),
    ("shell", Below::All),
];

/// The crates that speak with clients, which no room below the jobs knows.
const WIRES: [&str; 4] = ["inarch_fuse", "inarch_nbd", "inarch_ninep", "inarch_vhost"];
const WITHOUT_WIRES: [&str; 7] = ["events", "text", "lifecycle", "cache", "source", "disk", "kept"];

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
    let number = |name: &str| ROOMS.iter().position(|(room, _)| *room == name);
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
        let may = match ROOMS[own].1 {
            Below::Only(rooms) => rooms.contains(&used),
            Below::All => number(used).is_some_and(|used| used < own),
        };
        if !may {
            return Some(format!("{room} may not use {used}"));
        }
    }
    let wire = WIRES.iter().find(|wire| WITHOUT_WIRES.contains(&room) && line.contains(**wire));
    wire.map(|wire| format!("{room} may not use {wire}"))
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
    let listed: BTreeSet<String> = ROOMS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(seen, listed, "the list of rooms is not that of the crate's modules");
}

#[test]
fn offences_are_seen() {
    for (room, line) in [
        ("lifecycle", "use crate::serve::Service;"),
        ("lifecycle", "use crate::JobError;"),
        ("lifecycle", "    session: inarch_fuse::Session,"),
        ("source", "    let kept = crate::kept::runs();"),
        ("kept", "use crate::device::Recipe;"),
        ("mount", "use crate::{run, text};"),
        ("error", "use crate::run::Outcome;"),
        ("another", "use crate::text::shown;"),
    ] {
        assert!(offence(room, line).is_some(), "{room}: {line}");
    }
    for (room, line) in [
        ("kept", "use crate::source::Opened;"),
        ("run", "use crate::JobError;"),
        ("error", "    Run(#[from] crate::run::RunError),"),
        ("image", "pub(crate) use write::StreamParts;"),
        ("lifecycle", "use inarch_mount::Mount;"),
    ] {
        assert_eq!(offence(room, line), None, "{room}: {line}");
    }
}
