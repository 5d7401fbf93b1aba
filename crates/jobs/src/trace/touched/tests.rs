//! What sequences of accesses come to.

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
    text(&touched)
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
            "/d found moved|removed; /d/x found read; /d/y absent; /e absent|made",
        ),
        ("> d e; > e d; open d/x", "/d moved; /d/x read; /e absent|temporary"),
        ("> d e; write e/x", "/d moved|removed; /d/x read; /e absent|made; /e/x |made"),
        ("write d/x; > d e", "/d moved|removed; /d/x read|removed; /e absent|made; /e/x |made"),
        ("+ d/x; > d e; open e/x; - e/x", "/d moved|removed; /d/x absent|temporary; /e absent|made; /e/x |temporary"),
        ("- d/x; > d e; absent e/x; + e/x", "/d moved|removed; /d/x |removed; /e absent|made; /e/x |made"),
        ("> d e; - e/x; absent e/x", "/d moved|removed; /e absent|made"),
        ("> d old; mkdir d; absent d/x; + d/y", "/d moved|written; /d/y |made; /old absent|made"),
        ("- e/x; > d e; open e/x", "/d moved|removed; /d/x read; /e absent|made; /e/x |removed"),
        ("% d e; open d/x; open e/y", "/d moved|written; /d/y read; /e moved|written; /e/x read"),
        (
            "+ d/a; % d e; open e/a; absent d/a",
            "/d moved|written; /d/a absent|temporary; /e moved|written; /e/a absent|made",
        ),
        ("> a/b c; > c/d a/b; open a/b/x", "/a/b moved|written; /a/b/d moved; /a/b/d/x read; /c absent|made"),
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
        ("> a d/b; list d; names d b c", "/a moved|removed; /d listed (c); /d/b absent|made"),
        ("mkdir d; + d/x; list d; names d x", "/d absent|made; /d/x |made"),
    ]);
}

/// A tree whose files know where they were before, as an oracle.
#[derive(Clone, Debug, Default)]
struct Model {
    /// What is at each path: its path before, or `None` if it was made.
    files: BTreeMap<String, Option<String>>,
    before: BTreeSet<String>,
    read: BTreeSet<String>,
}

impl Model {
    fn move_all(&mut self, from: &str, to: &str) {
        let beneath = format!("{from}/");
        let all: Vec<String> =
            self.files.keys().filter(|path| *path == from || path.starts_with(&beneath)).cloned().collect();
        let taken: Vec<_> = all
            .into_iter()
            .map(|path| (format!("{to}{}", &path[from.len()..]), self.files.remove(&path).unwrap()))
            .collect();
        self.files.extend(taken);
    }

    fn has_beneath(&self, path: &str) -> bool {
        let beneath = format!("{path}/");
        self.files.keys().any(|path| path.starts_with(&beneath))
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

proptest! {
    /// Random changes of names: what is read is attributed to its path before, and outputs are what the trees differ in.
    #[test]
    fn paths_before_are_found_again(there in proptest::collection::vec(any::<bool>(), 14), steps in proptest::collection::vec((0..4_u8, 0..14_usize, 0..14_usize), 0..40)) {
        let all = places_in_use();
        let mut model = Model::default();
        for (path, is_there) in all.iter().zip(&there) {
            let parent = path.rsplit_once('/').map(|(parent, _)| parent);
            if (*is_there || is_directory(path)) && parent.is_none_or(|parent| model.files.contains_key(parent)) {
                model.files.insert(path.clone(), Some(path.clone()));
            }
        }
        model.before = model.files.keys().cloned().collect();
        let mut touched = Touched::default();
        let record = |touched: &mut Touched, access: Access<'_>| touched.record(&access).unwrap();
        for (action, one, other) in steps {
            let (one, other) = (&all[one], &all[other]);
            let parent_is_there = |model: &Model, path: &str| path.rsplit_once('/').is_none_or(|(parent, _)| model.files.contains_key(parent));
            if !parent_is_there(&model, one) || !parent_is_there(&model, other) {
                continue;
            }
            // The kernel looks names up before it changes them.
            for path in [one, other] {
                let kind = if model.files.contains_key(path) { AccessKind::Found } else { AccessKind::Absent };
                let mut looked = access(kind, path);
                if is_directory(path) && kind == AccessKind::Found {
                    looked.identity = identity(libc::S_IFDIR, 0);
                }
                record(&mut touched, looked);
            }
            let is_there = model.files.contains_key(one);
            let is_inside = one.starts_with(&format!("{other}/")) || other.starts_with(&format!("{one}/"));
            match action {
                0 if is_there && !is_directory(one) => {
                    record(&mut touched, access(AccessKind::OpenRead, one));
                    model.read.extend(model.files[one].clone());
                }
                1 if !is_there => {
                    let mut made = access(AccessKind::Create, one);
                    if is_directory(one) {
                        made.identity = identity(libc::S_IFDIR, 0);
                    }
                    record(&mut touched, made);
                    model.files.insert(one.clone(), None);
                }
                2 if is_there && !model.has_beneath(one) => {
                    record(&mut touched, access(AccessKind::Remove, one));
                    model.files.remove(one);
                }
                3 if is_there && !is_inside && one != other && is_directory(one) == is_directory(other) && !model.has_beneath(other) => {
                    record(&mut touched, Access { to: Some(other.as_bytes()), ..access(AccessKind::Rename, one) });
                    model.files.remove(other);
                    model.move_all(one, other);
                }
                _ => {}
            }
        }
        let name = |path: &Path| path.to_str().unwrap()[1..].to_owned();
        let read: BTreeSet<String> = touched.inputs().filter(|input| input.is(Use::Read)).map(|input| name(input.path)).collect();
        prop_assert_eq!(read, model.read.clone());
        for input in touched.inputs() {
            let is_absent = input.is(Use::Absent);
            prop_assert_eq!(!is_absent, model.before.contains(&name(input.path)), "{:?}", input);
        }
        let moved_over = |output: &Output<'_>| output.is_directory && output.change == Change::Written;
        let overlaid: BTreeSet<String> = touched.outputs().filter(moved_over).map(|output| name(output.path)).collect();
        for output in touched.outputs() {
            let path = name(output.path);
            let (before, now) = (model.before.contains(&path), model.files.contains_key(&path));
            // What lies in a directory that was moved over an emptied one is not looked for.
            let above = path.match_indices('/').map(|(at, _)| &path[..at]);
            let is_covered = above.into_iter().any(|above| overlaid.contains(above));
            if !is_covered {
                prop_assert_eq!(now, matches!(output.change, Change::Made | Change::Written), "{} {:?}", path, output.change);
            }
            if output.change == Change::Removed || output.change == Change::Written {
                prop_assert!(before, "{} {:?}", path, output.change);
            }
        }
        // Whatever is other than before is an output, or in one that is a directory.
        let outputs: BTreeSet<String> = touched.outputs().map(|output| name(output.path)).collect();
        for path in all.iter().filter(|path| model.before.contains(*path) != model.files.contains_key(*path) || model.before.contains(*path) && model.files[*path].as_ref() != Some(path)) {
            let mut above = Some(path.as_str());
            let mut is_told = false;
            while let Some(path) = above {
                is_told |= outputs.contains(path);
                above = path.rsplit_once('/').map(|(parent, _)| parent);
            }
            prop_assert!(is_told, "{} is not told: {}", path, text(&touched));
        }
    }
}

#[test]
fn a_path_that_was_looked_for_takes_little_memory() {
    // With its name, and half of the map's slots unused, less than 200 bytes.
    assert!(size_of::<Known>() <= 32, "{}", size_of::<Known>());
}
