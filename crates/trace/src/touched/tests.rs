//! Tests which inputs and outputs follow from sequences of accesses.

use std::collections::BTreeMap;

use inarch_tree::Timestamp;
use proptest::prelude::*;

use super::*;

const MTIME: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

fn identity(mode: u32, size: u64) -> Option<Identity> {
    Some(Identity { inode: 1, mode, size, mtime: MTIME })
}

fn access(kind: AccessKind, path: &str) -> Access<'_> {
    let identity = match kind {
        AccessKind::Absent | AccessKind::Remove | AccessKind::Rename | AccessKind::Exchange => None,
        _ => identity(libc::S_IFREG | 0o644, 5),
    };
    Access {
        kind,
        path: path.as_bytes(),
        nameless: false,
        to: None,
        detail: None,
        identity,
        error: None,
        process: None,
    }
}

/// A word for each kind, then its paths: `+` made, `-` removed, `>` renamed, `%` exchanged, `=` linked, and so on.
fn told(steps: &str) -> String {
    text(&touched_by(steps))
}

fn touched_by(steps: &str) -> Touched {
    let mut touched = Touched::default();
    for step in steps.split(';').map(str::trim).filter(|step| !step.is_empty()) {
        let words: Vec<&str> = step.split(' ').collect();
        let (kind, directory) = match words[0] {
            "absent" => (AccessKind::Absent, false),
            "found" => (AccessKind::Found, false),
            "open" => (AccessKind::OpenRead, false),
            "exec" => (AccessKind::Execute, false),
            "write" => (AccessKind::OpenWrite, false),
            "trunc" => (AccessKind::Truncate, false),
            "alloc" => (AccessKind::Allocate, false),
            "chmod" => (AccessKind::SetAttributes, false),
            "chmod-dir" => (AccessKind::SetAttributes, true),
            "link-read" => (AccessKind::ReadLink, false),
            "xattr" => (AccessKind::GetXattr, false),
            "statfs" => (AccessKind::Statistics, false),
            "list" => (AccessKind::List, true),
            "names" => {
                let names: String = words[2..].iter().map(|name| format!("{name}/")).collect();
                touched.list(&Listed::new(words[1].as_bytes(), false, names.as_bytes())).unwrap();
                continue;
            }
            "+" => (AccessKind::Create, false),
            "mkdir" => (AccessKind::Create, true),
            "-" => (AccessKind::Remove, false),
            ">" => (AccessKind::Rename, false),
            "%" => (AccessKind::Exchange, false),
            "=" => (AccessKind::Link, false),
            "copy" => (AccessKind::Copy, false),
            other => panic!("{other}"),
        };
        let mut access = access(kind, words[1].trim_start_matches('/'));
        match words.get(2) {
            Some(&"0") => access.identity = identity(libc::S_IFREG, 0),
            Some(&"nameless") => access.nameless = true,
            Some(&"EACCES") => access.error = Some(Errno::ACCESS),
            Some(&"ENODATA") => access.error = Some(Errno::NODATA),
            Some(to) if kind == AccessKind::ReadLink => access.detail = Some(to.as_bytes()),
            to => access.to = to.map(|to| to.as_bytes()),
        }
        if directory {
            access.identity = identity(libc::S_IFDIR | 0o755, 0);
        }
        touched.record(&access).unwrap();
    }
    touched
}

/// Lists a directory of the tree with exactly these paths. Files have digits as names.
fn lister<'t>(tree: impl Iterator<Item = &'t str> + Clone) -> impl FnMut(&Path) -> Vec<(Name, Identity)> {
    move |directory| {
        let beneath = format!("{}/", directory.to_str().unwrap().trim_start_matches('/'));
        let names = tree.clone().filter_map(|path| Some((path, path.strip_prefix(&beneath)?)));
        let names = names.filter(|(_, name)| !name.contains('/'));
        let kind = |path| if is_directory(path) { libc::S_IFDIR } else { libc::S_IFREG };
        names.map(|(path, name)| (name.as_bytes().into(), identity(kind(path), 7).unwrap())).collect()
    }
}

/// Each with what is there at the end.
#[track_caller]
fn check_at_end(cases: &[(&str, &str, &str)]) {
    for (steps, end, expected) in cases {
        let mut touched = touched_by(steps);
        touched.find_renamed(&mut lister(end.split(' ')));
        assert_eq!(text(&touched), *expected, "{steps}");
    }
}

fn text(touched: &Touched) -> String {
    let mut parts: BTreeMap<&Path, String> = BTreeMap::new();
    for input in touched.inputs() {
        let mut words: Vec<String> = input.uses().map(|one| one.name().to_owned()).collect();
        words.extend(
            input
                .names()
                .map(|names| format!("({})", names.map(|name| name.to_str().unwrap()).collect::<Vec<_>>().join(","))),
        );
        words.extend(input.target.map(|target| format!("->{}", target.display())));
        words.extend(input.error.map(|error| crate::record::error_name(error).into_owned()));
        parts.insert(input.path, words.join(" "));
    }
    for output in touched.outputs() {
        let part = parts.entry(output.path).or_default();
        part.push('|');
        part.push_str(output.change.name());
    }
    parts.iter().map(|(path, words)| format!("{} {words}", path.display())).collect::<Vec<_>>().join("; ")
}

#[track_caller]
fn check(cases: &[(&str, &str)]) {
    for (steps, expected) in cases {
        assert_eq!(told(steps), *expected, "{steps}");
    }
}

#[test]
fn what_was_there_is_an_input_by_its_uses() {
    check(&[
        ("", ""),
        ("found a", "/a found"),
        ("absent a; absent a", "/a absent"),
        ("found a; open a", "/a found read"),
        ("open a; exec a", "/a read executed"),
        ("found a; xattr a ENODATA", "/a found xattrs"),
        ("found a; open a EACCES", "/a found failed EACCES"),
        ("found l; link-read l ../t", "/l found followed ->../t"),
        ("statfs /", "/ found"),
        ("open a nameless; write a nameless", ""),
    ]);
}

#[test]
fn what_the_command_made_is_no_input() {
    check(&[
        ("absent a; + a; open a; found a", "/a absent|made"),
        ("+ a", "/a absent|made"),
        ("absent a; + a; - a", "/a absent|temporary"),
        ("absent a; + a; - a; absent a; + a", "/a absent|made"),
        ("found a; - a; absent a", "/a found|removed"),
        ("found a; - a; absent a; + a; open a", "/a found|written"),
        ("absent d; mkdir d; absent d/x; + d/x; found d/x", "/d absent|made; /d/x |made"),
        ("absent b; found a; = a b; open b", "/a found moved; /b absent|made"),
    ]);
}

#[test]
fn content_that_is_kept_was_read() {
    check(&[
        ("write a", "/a read|written"),
        ("write a; trunc a 0; open a", "/a |written"),
        ("trunc a 0; write a; open a; exec a", "/a |written"),
        ("open a; write a; trunc a 0", "/a read|written"),
        ("trunc a", "/a read|written"),
        ("alloc a", "/a read|written"),
        ("found a; copy a b; open b", "/a found read; /b read|written"),
        ("absent b; + b; copy a b", "/a read; /b absent|made"),
        ("chmod a", "/a |attributes"),
        ("chmod a; trunc a 0", "/a |written"),
        ("absent a; + a; chmod a; write a", "/a absent|made"),
    ]);
}

#[test]
fn what_was_moved_keeps_the_path_that_it_had() {
    check(&[
        ("found a; absent b; > a b; open b", "/a found read moved|removed; /b absent|made"),
        ("found a; found b; > a b; open b; absent a", "/a found read moved|removed; /b found|written"),
        ("absent t; + t; found b; > t b; open b", "/b found|written; /t absent|temporary"),
        (
            "found d; absent e; > d e; found e/x; open e/x; absent e/y",
            "/d found moved|removed; /d/x found read|removed; /d/y absent; /e absent|made",
        ),
        ("> d e; > e d; open d/x", "/d moved; /d/x read; /e absent|temporary"),
        ("> d e; write e/x", "/d moved|removed; /d/x read|removed; /e absent|made; /e/x |made"),
        ("write d/x; > d e", "/d moved|removed; /d/x read|removed; /e absent|made; /e/x |made"),
        ("+ d/x; > d e; open e/x; - e/x", "/d moved|removed; /d/x absent|temporary; /e absent|made; /e/x |temporary"),
        ("- d/x; > d e; absent e/x; + e/x", "/d moved|removed; /d/x |removed; /e absent|made; /e/x |made"),
        ("> d e; - e/x; absent e/x", "/d moved|removed; /d/x |removed; /e absent|made"),
        ("> d old; mkdir d; absent d/x; + d/y", "/d moved|written; /d/y |made; /old absent|made"),
        ("- e/x; > d e; open e/x", "/d moved|removed; /d/x read|removed; /e absent|made; /e/x |written"),
        ("% d e; open d/x; open e/y", "/d moved|written; /d/y read|removed; /e moved|written; /e/x read|removed"),
        (
            "+ d/a; % d e; open e/a; absent d/a",
            "/d moved|written; /d/a absent|temporary; /e moved|written; /e/a absent|made",
        ),
        (
            "> a/b c; > c/d a/b; open a/b/x",
            "/a/b moved|written; /a/b/d moved|removed; /a/b/d/x read|removed; /c absent|made",
        ),
    ]);
}

#[test]
fn names_are_those_before_the_command() {
    check(&[
        ("list d", "/d listed ()"),
        ("list d; names d b a", "/d listed (a,b)"),
        ("list d; names d a; names d b", "/d listed (a,b)"),
        ("+ d/n; list d; names d n a", "/d listed (a); /d/n absent|made"),
        ("found d/a; - d/a; list d; names d b", "/d listed (a,b); /d/a found|removed"),
        ("found d/a; - d/a; + d/a; list d; names d a", "/d listed (a); /d/a found|written"),
        ("> d e; list e; names e a", "/d listed moved (a)|removed; /e absent|made"),
        ("> d e; - e/a; list e; names e b", "/d listed moved (a,b)|removed; /d/a |removed; /e absent|made"),
        ("> a d/b; list d; names d b c", "/a moved|removed; /d listed (c); /d/b absent|made"),
        ("mkdir d; + d/x; list d; names d x", "/d absent|made; /d/x |made"),
    ]);
}

#[test]
fn what_came_along_with_a_directory_is_told() {
    let swapped = "d d/1 d/2 e e/1";
    check_at_end(&[
        (
            "> d e",
            "e e/1 e/s e/s/2",
            "/d moved|removed; /d/1 moved|removed; /d/s moved|removed; /d/s/2 moved|removed; /e absent|made; /e/1 |made; /e/s |made; /e/s/2 |made",
        ),
        (
            "- d/1; - d/2; - d; > f d",
            "d d/1",
            "/d |written; /d/1 |written; /d/2 |removed; /f moved|removed; /f/1 moved|removed",
        ),
        (
            "trunc d/1 0; > d e; > f d",
            swapped,
            "/d moved|written; /d/1 |written; /d/2 |made; /e absent|made; /e/1 |made; /f moved|removed; /f/1 moved|removed; /f/2 moved|removed",
        ),
        (
            "> d e; > f d; trunc d/1 0",
            swapped,
            "/d moved|written; /d/1 moved|written; /d/2 |made; /e absent|made; /e/1 |made; /f moved|removed; /f/1 |removed; /f/2 moved|removed",
        ),
        ("> d e; mkdir d; + d/1", "d d/1 e e/1", "/d moved|written; /d/1 moved|written; /e absent|made; /e/1 |made"),
        (
            "> d e; > f d; - d/2",
            "d d/1 e e/1 e/2",
            "/d moved|written; /d/1 moved|written; /d/2 moved|removed; /e absent|made; /e/1 |made; /e/2 |made; /f moved|removed; /f/1 moved|removed; /f/2 |removed",
        ),
        ("trunc a/1 0; % a b", "a a/1 b b/1", "/a moved|written; /a/1 |written; /b moved|written; /b/1 moved|written"),
        ("> d e; > e d", "d d/1", "/d moved; /e absent|temporary"),
        ("> d e; chmod e/1", "e e/1", "/d moved|removed; /d/1 moved|removed; /e absent|made; /e/1 |made"),
        // Another program put something there, or took it away.
        ("absent d/1; > d e", "e e/1", "/d moved|removed; /d/1 absent; /e absent|made"),
        ("> d e", "", "/d moved|removed; /e absent|made"),
    ]);
}

#[test]
fn what_is_told_of_a_directory_is_of_the_thing_that_was_there() {
    let directories = |steps: &str| {
        let touched = touched_by(steps);
        touched.outputs().map(|output| (output.path.to_owned(), output.is_directory)).collect::<Vec<_>>()
    };
    let of = |path: &str, is_directory| (path.into(), is_directory);
    assert_eq!(directories("found b; > b c; mkdir b; - b"), [of("/b", false), of("/c", false)]);
    assert_eq!(directories("found b; > b c; mkdir b"), [of("/b", true), of("/c", false)]);
    assert_eq!(directories("list b; > b c; - c"), [of("/b", true), of("/c", true)]);
    let exchanged = [of("/a", false), of("/a/c", true), of("/b", false), of("/b/c", true)];
    assert_eq!(directories("% a b; chmod-dir a/c"), exchanged);
}

/// A tree whose files know where they were before, as an oracle.
#[derive(Clone, Debug, Default)]
struct Model {
    /// What is at each path: its path before, or `None` if it was made.
    files: BTreeMap<String, Option<String>>,
    before: BTreeSet<String>,
    read: BTreeSet<String>,
    /// What of this was written, and whether parts of it were kept.
    written: BTreeMap<String, bool>,
    moved: BTreeSet<String>,
    /// Where something was made, or put by name.
    put: BTreeSet<String>,
}

impl Model {
    fn taken(&mut self, from: &str) -> Vec<(String, Option<String>)> {
        let beneath = format!("{from}/");
        let all: Vec<String> =
            self.files.keys().filter(|path| *path == from || path.starts_with(&beneath)).cloned().collect();
        self.moved.extend(self.files[from].clone());
        all.into_iter().map(|path| (path[from.len()..].to_owned(), self.files.remove(&path).unwrap())).collect()
    }

    fn puts(&mut self, to: &str, taken: Vec<(String, Option<String>)>) {
        self.put.insert(to.to_owned());
        self.files.extend(taken.into_iter().map(|(rest, original)| (format!("{to}{rest}"), original)));
    }

    fn has_beneath(&self, path: &str) -> bool {
        let beneath = format!("{path}/");
        self.files.keys().any(|path| path.starts_with(&beneath))
    }

    /// What became of each path, without what came and went.
    fn changes(&self) -> BTreeMap<String, Change> {
        let change = |path: &String| match (self.before.contains(path), self.files.get(path)) {
            (true, Some(Some(original))) if original == path => self.written.get(path).map(|_| Change::Written),
            (true, Some(_)) => Some(Change::Written),
            (true, None) => Some(Change::Removed),
            (false, Some(_)) => Some(Change::Made),
            (false, None) => None,
        };
        let paths = self.before.iter().chain(self.files.keys());
        paths.filter_map(|path| Some((path.clone(), change(path)?))).collect()
    }

    /// What was read, or kept in part.
    fn used(&self) -> BTreeSet<String> {
        let kept = self.written.iter().filter(|(_, kept_parts)| **kept_parts).map(|(path, _)| path);
        self.read.iter().chain(kept).cloned().collect()
    }

    /// What was renamed, or is elsewhere with its content.
    fn moved(&self) -> BTreeSet<String> {
        let elsewhere =
            self.files.iter().filter(|(path, original)| original.as_ref().is_some_and(|from| from != *path));
        let originals = elsewhere.filter_map(|(_, original)| original.clone());
        let along = originals.filter(|original| !self.written.contains_key(original));
        along.chain(self.moved.iter().cloned()).collect()
    }
}

/// Two directories with two directories of two files each: directories have letters, files have digits.
const DIRECTORIES: [&str; 6] = ["p", "q", "p/a", "p/b", "q/a", "q/b"];

fn places_in_use() -> Vec<String> {
    let files = DIRECTORIES[2..].iter().flat_map(|directory| ["1", "2"].map(|name| format!("{directory}/{name}")));
    DIRECTORIES.iter().map(|name| (*name).to_owned()).chain(files).collect()
}

fn is_directory(path: &str) -> bool {
    !path.ends_with(|last: char| last.is_ascii_digit())
}

fn parent_is_there(model: &Model, path: &str) -> bool {
    path.rsplit_once('/').is_none_or(|(parent, _)| model.files.contains_key(parent))
}

/// Does something in the model, if that can be done, and tells it to the trace as the kernel does.
fn act(model: &mut Model, touched: &mut Touched, action: u8, one: &str, other: &str) {
    if !parent_is_there(model, one) || !parent_is_there(model, other) {
        return;
    }
    let mut record = |access: Access<'_>| touched.record(&access).unwrap();
    let typed = |kind, path| {
        let directory = identity(libc::S_IFDIR, 0).filter(|_| is_directory(path));
        let plain = access(kind, path);
        Access { identity: directory.or(plain.identity), ..plain }
    };
    // The kernel looks names up before it changes them.
    for path in [one, other] {
        record(if model.files.contains_key(path) {
            typed(AccessKind::Found, path)
        } else {
            access(AccessKind::Absent, path)
        });
    }
    let (is_there, is_other_there) = (model.files.contains_key(one), model.files.contains_key(other));
    let is_inside = one == other || one.starts_with(&format!("{other}/")) || other.starts_with(&format!("{one}/"));
    let original = model.files.get(one).cloned().flatten();
    match action {
        0 if is_there && !is_directory(one) => {
            record(access(AccessKind::OpenRead, one));
            // What the command wrote is none of what was there.
            model.read.extend(original.filter(|original| model.written.get(original) != Some(&false)));
        }
        1 if !is_there => {
            record(typed(AccessKind::Create, one));
            model.puts(one, vec![(String::new(), None)]);
        }
        2 if is_there && !model.has_beneath(one) => {
            record(access(AccessKind::Remove, one));
            model.files.remove(one);
        }
        3 | 4 if is_there && !is_inside && is_directory(one) == is_directory(other) && !model.has_beneath(other) => {
            record(Access { to: Some(other.as_bytes()), ..access(AccessKind::Rename, one) });
            let taken = model.taken(one);
            model.files.remove(other);
            model.puts(other, taken);
        }
        5 if is_there && is_other_there && !is_inside && is_directory(one) == is_directory(other) => {
            record(Access { to: Some(other.as_bytes()), ..access(AccessKind::Exchange, one) });
            let (taken, too) = (model.taken(one), model.taken(other));
            model.puts(other, taken);
            model.puts(one, too);
        }
        6 if is_there && !is_directory(one) => {
            record(access(AccessKind::OpenWrite, one));
            if let Some(original) = original {
                model.written.entry(original).or_insert(true);
            }
        }
        7 if is_there && !is_directory(one) => {
            record(Access { identity: identity(libc::S_IFREG, 0), ..access(AccessKind::Truncate, one) });
            if let Some(original) = original {
                model.written.insert(original, false);
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Random changes: what is read and moved is told by its path before, and outputs are what the trees differ in.
    #[test]
    fn what_is_told_is_what_the_trees_differ_in(there in proptest::collection::vec(any::<bool>(), 14), steps in proptest::collection::vec((0..8_u8, 0..14_usize, 0..14_usize), 0..60)) {
        let all = places_in_use();
        let mut model = Model::default();
        for (path, is_there) in all.iter().zip(&there) {
            if (*is_there || is_directory(path)) && parent_is_there(&model, path) {
                model.files.insert(path.clone(), Some(path.clone()));
            }
        }
        model.before = model.files.keys().cloned().collect();
        let mut touched = Touched::default();
        for (action, one, other) in steps {
            act(&mut model, &mut touched, action, &all[one], &all[other]);
        }
        touched.find_renamed(&mut lister(model.files.keys().map(String::as_str)));
        let name = |path: &Path| path.to_str().unwrap()[1..].to_owned();
        let used_for = |one| touched.inputs().filter(|input| input.is(one)).map(|input| name(input.path)).collect::<BTreeSet<_>>();
        prop_assert_eq!(used_for(Use::Read), model.used());
        prop_assert_eq!(used_for(Use::Moved), model.moved());
        for input in touched.inputs() {
            prop_assert_eq!(!input.is(Use::Absent), model.before.contains(&name(input.path)), "{:?}", input);
        }
        for output in touched.outputs() {
            prop_assert_eq!(output.is_directory, is_directory(&name(output.path)), "{:?}", output);
        }
        let (temporary, lasting): (Vec<_>, Vec<_>) = touched.outputs().map(|output| (name(output.path), output.change)).partition(|(_, change)| *change == Change::Temporary);
        prop_assert_eq!(lasting.into_iter().collect::<BTreeMap<_, _>>(), model.changes(), "{}", text(&touched));
        let is_gone = |path: &String| !model.before.contains(path) && !model.files.contains_key(path);
        let temporary: BTreeSet<String> = temporary.into_iter().map(|(path, _)| path).collect();
        prop_assert!(temporary.iter().all(is_gone), "{:?}", temporary);
        prop_assert!(model.put.iter().filter(|path| is_gone(path)).all(|path| temporary.contains(path)), "{:?}", temporary);
    }
}

#[test]
fn a_path_that_was_looked_for_takes_little_memory() {
    // With its name, and half of the map's slots unused, less than 200 bytes.
    assert!(size_of::<Known>() <= 32, "{}", size_of::<Known>());
}

/// The bytes of all that is remembered of paths.
fn remembered(touched: &Touched) -> usize {
    let known = touched.known.iter().map(|(path, known)| {
        let more = known.more.as_deref().cloned().unwrap_or_default();
        let names: usize = more.names.iter().flatten().map(|name| name.len()).sum();
        path.len() + names + more.target.map_or(0, |target| target.len()) + 4 * more.pids.len()
    });
    let changed = touched.changed_by.iter().map(|(path, pids)| path.len() + 4 * pids.len());
    let puts = touched.places.paths().map(|path| match touched.places.change(path) {
        Some((Put::Original(from), _)) => path.len() + from.len(),
        _ => path.len(),
    });
    known.chain(changed).chain(puts).sum()
}

#[test]
fn a_guest_has_only_so_much_remembered() {
    const MOST: usize = 100_000;
    let long = format!("{}/", "d".repeat(255)).repeat(20);
    let name = |number: u32| format!("{long}{number}");
    type Step<'s> = &'s dyn Fn(&mut Touched, u32);
    let steps: [(&str, Step<'_>); 8] = [
        ("absent", &|touched, number| touched.record(&access(AccessKind::Absent, &name(number))).unwrap()),
        ("failed", &|touched, number| {
            let path = name(number);
            let failed = Access { error: Some(Errno::ACCESS), ..access(AccessKind::OpenRead, &path) };
            touched.record(&failed).unwrap();
        }),
        ("made", &|touched, number| touched.record(&access(AccessKind::Create, &name(number))).unwrap()),
        ("processes", &|touched, number| {
            for process in 0..100 {
                let process = Some(100 * number + process);
                touched.record(&Access { process, ..access(AccessKind::OpenWrite, "f") }).unwrap();
            }
        }),
        ("renamed", &|touched, number| {
            let (from, to) = (name(number), name(number + 1));
            touched.record(&Access { to: Some(to.as_bytes()), ..access(AccessKind::Rename, &from) }).unwrap();
        }),
        ("linked", &|touched, number| {
            let from = number.to_string();
            let link = Access { detail: Some(long.as_bytes()), ..access(AccessKind::ReadLink, &from) };
            touched.record(&link).unwrap();
        }),
        ("listed", &|touched, number| {
            let names = format!("{}{number}/", "n".repeat(200));
            touched.record(&access(AccessKind::List, "d")).unwrap();
            touched.list(&Listed::new(b"d", false, names.as_bytes())).unwrap();
        }),
        ("moved along", &|touched, number| {
            // Many short names come to a long one.
            touched.record(&access(AccessKind::Create, &format!("a/{number}"))).unwrap();
            if number == 500 {
                let to = long.trim_end_matches('/').as_bytes();
                touched.record(&Access { to: Some(to), ..access(AccessKind::Rename, "a") }).unwrap();
            }
        }),
    ];
    for (what, step) in steps {
        let mut touched = Touched::beneath(Path::new("/root")).within(MOST);
        (0..1000).for_each(|number| step(&mut touched, number));
        assert!(remembered(&touched) <= MOST, "{what}: {}", remembered(&touched));
        assert!(touched.lacks(), "{what}");
        let all = Touched::default().covered_by(touched, Path::new("/root"));
        assert!(all.lacks() && all.inputs().count() + all.outputs().count() > 0, "{what}");
    }
}

#[test]
fn what_is_used_again_takes_no_more_room() {
    let mut touched = Touched::beneath(Path::new("/")).within(2000);
    for number in 0..1000 {
        let of_process = |access| Access { process: Some(1), ..access };
        touched.record(&of_process(access(AccessKind::OpenRead, "read"))).unwrap();
        touched.record(&of_process(access(AccessKind::OpenWrite, "written"))).unwrap();
        touched.record(&of_process(access(AccessKind::Absent, "absent"))).unwrap();
        let target = "t".repeat(number % 100 + 1);
        let link = Access { detail: Some(target.as_bytes()), ..access(AccessKind::ReadLink, "link") };
        touched.record(&link).unwrap();
        touched.list(&Listed::new(b"d", false, b"one/two/")).unwrap();
        touched.record(&Access { to: Some(b"b"), ..access(AccessKind::Rename, "a") }).unwrap();
        touched.record(&Access { to: Some(b"a"), ..access(AccessKind::Rename, "b") }).unwrap();
    }
    assert!(!touched.lacks());
}
