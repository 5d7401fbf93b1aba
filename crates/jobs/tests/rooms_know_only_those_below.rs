//! Each module of this crate uses only those before it in a list, read from their source, the crates below know no wire, and no modules
//! beside each other in these crates need each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the crate, from the lowest to the highest: each may use those before it.
const ROOMS: [&str; 17] = [
    "error",
    "notes",
    "device",
    "share",
    "caches",
    "plan",
    "image",
    "push",
    "mount",
    "serve",
    "run",
    "compare",
    "debian",
    "doctor",
    "make_disk",
    "appliance",
    "shell",
];

/// The crates that speak with clients, and those below the jobs, which know none of them.
const WIRES: [&str; 4] = ["inarch-fuse", "inarch-nbd", "inarch-ninep", "inarch-vhost"];
const WITHOUT_WIRES: [&str; 6] = ["lifecycle", "cache", "source", "kept", "upper", "guest"];

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

/// What a `use` names, as it is written; `None` for any other line.
fn used(line: &str) -> Option<&str> {
    let (before, tree) = line.trim_start().split_once("use ")?;
    let is_visibility = before == "pub " || before.starts_with("pub(") && before.ends_with(") ");
    (before.is_empty() || is_visibility).then_some(tree)
}

/// The lines of code of a text; a `use` of several lines is one.
fn code_of(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        match lines.last_mut().filter(|last| used(last).is_some_and(|tree| !tree.contains(';'))) {
            Some(open) => open.push_str(line.trim()),
            None => lines.push(line.to_owned()),
        }
    }
    lines
}

fn code(file: &Path) -> Vec<String> {
    code_of(&fs::read_to_string(file).unwrap())
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
        assert!(text.contains(&format!("name = \"inarch-{name}\"")), "{name}: is this its manifest?");
        for wire in WIRES {
            assert!(!text.contains(wire), "{name} may not use {wire}");
        }
    }
}

/// The names of a module, from its crate's root on. Of `src/lib.rs` there are none.
type Module = Vec<String>;

/// The code of each module.
type Modules = BTreeMap<Module, Vec<String>>;

/// The paths of the names that each module has from elsewhere.
type Origins = BTreeMap<(Module, String), String>;

fn module(below_src: &Path) -> Module {
    let mut names: Module = below_src.with_extension("").iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    names.pop_if(|name| matches!(name.as_str(), "lib" | "main" | "mod"));
    names
}

/// The code of each module below a `src`, without what is compiled for tests alone.
fn modules(src: &Path) -> Modules {
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

/// The names that a `use` brings in, each with its path. `above` is the path before what is in braces.
fn names(tree: &str, above: &str) -> Vec<(String, String)> {
    if let Some((path, inside)) = tree.split_once('{') {
        let (above, mut depth) = (format!("{above}{}", path.trim_start()), 0);
        let (inside, _) = inside.rsplit_once('}').unwrap_or((inside, ""));
        let parts = inside.split(|c: char| {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            c == ',' && depth == 0
        });
        return parts.filter(|part| !part.trim().is_empty()).flat_map(|part| names(part, &above)).collect();
    }
    let (path, renamed) = tree.split_once(" as ").unwrap_or((tree, ""));
    let path = format!("{above}{}", path.trim());
    // A module itself, or all that is in it.
    let path = path.trim_end_matches("::self").trim_end_matches("::*");
    let last = path.rsplit("::").next().unwrap_or_default();
    let name = if renamed.is_empty() { last } else { renamed.trim() };
    vec![(name.to_owned(), path.to_owned())]
}

/// The names that a line brings into its module, each with its path.
fn brought(line: &str) -> Vec<(String, String)> {
    let tree = used(line).and_then(|tree| tree.split(';').next());
    tree.map(|tree| names(tree, "")).unwrap_or_default()
}

/// The paths in a line: those of a `use`, or in other code those that begin at the crate, a module above, or the module itself.
fn paths(line: &str) -> Vec<String> {
    if used(line).is_some() {
        return brought(line).into_iter().map(|(_, path)| path).collect();
    }
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let begins_here = |path: &&str| ["crate::", "super::", "self::"].iter().any(|start| path.starts_with(start));
    let found = line.split(|c| !is_of_path(c)).filter(begins_here);
    found.map(|path| path.trim_end_matches(':').to_owned()).collect()
}

/// The modules that a path of another module's code leads to: the longest part of it that is one and, if this has the next name from
/// elsewhere, where that is from.
fn leads_to(from: &Module, path: &str, modules: &Modules, origins: &Origins) -> Vec<Module> {
    /// No name comes through more modules. That of another crate seems to come from itself.
    const MOST: usize = 10;
    let (mut found, mut at, mut path) = (Vec::new(), from.clone(), path.to_owned());
    for _ in 0..MOST {
        let mut rest = path.split("::").peekable();
        while let Some(name) = rest.peek() {
            match *name {
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
            rest.next();
        }
        found.push(at.clone());
        let origin = rest.next().and_then(|name| origins.get(&(at.clone(), name.to_owned())));
        let Some(origin) = origin else { break };
        let whole = [origin.as_str()].into_iter().chain(rest).collect::<Vec<_>>().join("::");
        path = whole;
    }
    found
}

/// A cycle of sibling modules: each uses the next one, and the last uses the first.
fn circle(modules: &Modules) -> Option<Vec<Module>> {
    let mut origins = Origins::new();
    for (name, lines) in modules {
        origins.extend(lines.iter().flat_map(|line| brought(line)).map(|(new, path)| ((name.clone(), new), path)));
    }
    let mut needs: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (name, lines) in modules {
        let all = lines.iter().flat_map(|line| paths(line));
        for to in all.flat_map(|path| leads_to(name, &path, modules, &origins)) {
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
    for name in WITHOUT_WIRES.into_iter().chain(["trace", "jobs"]) {
        let mut modules = modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src"));
        assert!(modules.len() > 1, "{name}: are these its modules?");
        if name == "jobs" {
            // The error of all jobs is made of theirs, and each of them returns it.
            let error = modules.get_mut(&["error".to_owned()][..]).unwrap();
            error.retain(|line| !line.contains("#[from]"));
        }
        assert_eq!(circle(&modules), None, "{name}");
    }
}

#[test]
fn circles_are_seen() {
    let modules = |texts: &[(&str, &str)]| -> Modules {
        texts.iter().map(|(name, text)| (module(Path::new(name)), code_of(text))).collect()
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
    // By several lines, in braces within braces.
    let several = "pub(super) use super::{\n    Other,\n    // A comment.\n    b::{One,\n        two},\n};\nfn f() {}";
    assert_eq!(found(&[("a.rs", several), ("b.rs", "use crate::{c, a::f};")]), ["a", "b"]);
    // By a name that a module above has from another.
    let (b, m_b) = (("b.rs", "use crate::a::f;"), ("m/b.rs", "use super::a::f;"));
    assert_eq!(found(&[("lib.rs", "pub use b::{B, two};"), ("a.rs", "use crate::B;"), b]), ["a", "b"]);
    assert_eq!(found(&[("lib.rs", "pub(crate) use b::B as C;"), ("a.rs", "    super::C::new();"), b]), ["a", "b"]);
    assert_eq!(found(&[("m.rs", "use b::{self, B};"), ("m/a.rs", "use super::{B, C};"), m_b]), ["m/a", "m/b"]);
    assert_eq!(found(&[("m/mod.rs", "use b as c;"), ("m/a.rs", "use crate::m::c::B;"), m_b]), ["m/a", "m/b"]);
    let chain = [("lib.rs", "pub use c::B;"), ("c.rs", "pub use super::b::B;"), ("a.rs", "use crate::B;"), b];
    assert_eq!(found(&chain), ["a", "b"]);
    assert!(found(&[("lib.rs", "use d::D;\npub use b::B;"), ("a.rs", "use crate::{C, D};"), b]).is_empty());
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
