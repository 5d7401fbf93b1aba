//! Each module of this crate uses only those before it in a list, read from their source, the crates below know no wire, and no modules
//! beside each other in these crates need each other.

use std::collections::{BTreeMap, BTreeSet};
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

/// The names of a module, from its crate's root on. Of `src/lib.rs` there are none.
type Module = Vec<String>;

fn module(below_src: &Path) -> Module {
    let mut names: Module = below_src.with_extension("").iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    names.pop_if(|name| matches!(name.as_str(), "lib" | "main" | "mod"));
    names
}

/// The code of each module below a `src`, without what is compiled for tests alone.
fn modules(src: &Path) -> BTreeMap<Module, Vec<String>> {
    let (mut all, mut modules, mut for_tests) = (Vec::new(), BTreeMap::new(), Vec::new());
    files(src, &mut all);
    for file in all {
        let name = module(file.strip_prefix(src).unwrap());
        let mut lines = code(&file);
        for at in 1..lines.len() {
            let declared = lines[at].strip_prefix("mod ").filter(|_| lines[at - 1] == "#[cfg(test)]");
            if let Some(declared) = declared.and_then(|rest| rest.strip_suffix(';')) {
                for_tests.push([&name[..], &[declared.to_owned()]].concat());
            } else if declared.is_some() {
                lines.truncate(at);
                break;
            }
        }
        modules.insert(name, lines);
    }
    modules.retain(|name, _| !for_tests.iter().any(|tests| name.starts_with(tests)));
    modules
}

/// The module that a path of another module's code leads to: the longest part of it that is one.
fn leads_to(from: &Module, path: &str, modules: &BTreeMap<Module, Vec<String>>) -> Module {
    let mut at = from.clone();
    for name in path.split("::") {
        match name {
            "crate" => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            name => {
                at.push(name.to_owned());
                if !modules.contains_key(&at) {
                    at.pop();
                    break;
                }
            }
        }
    }
    at
}

/// The paths in a line that begin at the crate, a module above, or the module itself.
fn paths(line: &str) -> Vec<String> {
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    for path in line.split(|c| !is_of_path(c)).filter(|path| !path.is_empty()) {
        if ["crate::", "super::", "self::"].iter().any(|start| path.starts_with(start)) {
            found.push(path.trim_end_matches(':').to_owned());
        }
    }
    // What is in braces is of the path before them.
    if let Some((before, inside)) = line.split_once("::{") {
        let before = before.rsplit(|c| !is_of_path(c)).next().unwrap_or_default();
        if ["crate", "super", "self"].iter().any(|start| before.split("::").next() == Some(start)) {
            found.extend(inside.split(|c| !is_of_path(c)).map(|name| format!("{before}::{name}")));
        }
    }
    found
}

/// A cycle of sibling modules: each uses the next one, and the last uses the first.
fn circle(modules: &BTreeMap<Module, Vec<String>>) -> Option<Vec<Module>> {
    let mut needs: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (name, lines) in modules {
        for to in lines.iter().flat_map(|line| paths(line)).map(|path| leads_to(name, &path, modules)) {
            let common = name.iter().zip(&to).take_while(|(one, other)| one == other).count();
            if common < name.len() && common < to.len() {
                needs.entry(name[..=common].to_vec()).or_default().insert(to[..=common].to_vec());
            }
        }
    }
    // What needs nothing is in no circle; nor is what needs only such.
    while let Some(free) =
        needs.iter().find(|(_, all)| all.iter().all(|other| !needs.contains_key(other))).map(|(free, _)| free.clone())
    {
        needs.remove(&free);
    }
    let mut way = vec![needs.keys().next()?.clone()];
    loop {
        let next = needs[way.last()?].iter().find(|other| needs.contains_key(*other))?.clone();
        if let Some(start) = way.iter().position(|one| *one == next) {
            return Some(way.split_off(start));
        }
        way.push(next);
    }
}

#[test]
fn no_modules_beside_each_other_need_each_other() {
    for name in ["jobs", "kept", "lifecycle", "source"] {
        let modules = modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"));
        assert!(modules.len() > 10, "{name}: are these its modules?");
        assert_eq!(circle(&modules), None, "{name}");
    }
}

#[test]
fn circles_are_seen() {
    let modules = |texts: &[(&str, &str)]| -> BTreeMap<Module, Vec<String>> {
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        texts.iter().map(|(name, text)| (module(Path::new(name)), lines(text))).collect()
    };
    let found = |texts: &[(&str, &str)]| {
        let circle = circle(&modules(texts)).unwrap_or_default();
        circle.iter().map(|module| module.join("/")).collect::<Vec<_>>()
    };
    let a = ("a.rs", "use super::b::{One, two};");
    assert_eq!(found(&[a, ("b.rs", "    let x = crate::a::f();")]), ["a", "b"]);
    assert_eq!(
        found(&[a, ("b.rs", "use super::c;"), ("c/mod.rs", ""), ("c/d.rs", "use super::super::a::X;")]),
        ["a", "b", "c"]
    );
    assert_eq!(found(&[("a/mod.rs", "use super::{Other, b};"), ("b.rs", "use crate::a;")]), ["a", "b"]);
    assert_eq!(found(&[("c/a.rs", "use super::b::X;"), ("c/b.rs", "use super::a::X;")]), ["c/a", "c/b"]);
    // One that has others in it and they may know each other, and a name that is no module's is of the module above.
    assert!(found(&[("a/mod.rs", "use b::X;"), ("a/b.rs", "use super::X;"), ("c.rs", "use super::a::X;")]).is_empty());
    assert!(found(&[a, ("b.rs", "use super::{a_b, One};"), ("lib.rs", "use crate::a;")]).is_empty());
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
