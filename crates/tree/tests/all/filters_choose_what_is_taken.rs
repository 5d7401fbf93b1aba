//! Globs and ignore files exclude what they should, and nothing else.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use crate::support::names;
use inarch_tree::scan::{Filter, FilterBuilder, Scan, ScanOptions, scan};

fn tree(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match file.strip_suffix('/') {
            Some(_) => fs::create_dir_all(&path).unwrap(),
            None => fs::write(&path, "").unwrap(),
        }
    }
    root
}

fn scan_with(root: &Path, filter: FilterBuilder) -> Scan {
    let options = ScanOptions { filter: filter.build().unwrap(), ..ScanOptions::default() };
    scan(root, &options).unwrap()
}

fn left(root: &Path, filter: FilterBuilder) -> Vec<String> {
    names(&scan_with(root, filter).tree)
}

#[test]
fn a_name_matches_at_any_depth_and_a_path_from_the_root() {
    let root = tree(&["a.o", "b.c", "src/a.o", "src/b.c", "src/src/a.o", "build", "src/build/"]);
    let path = root.path();
    assert_eq!(
        left(path, Filter::builder().exclude("*.o")),
        ["b.c", "build", "src", "src/b.c", "src/build", "src/src"]
    );
    let anchored = ["b.c", "build", "src", "src/a.o", "src/b.c", "src/build", "src/src", "src/src/a.o"];
    assert_eq!(left(path, Filter::builder().exclude("/*.o")), anchored);
    let within = ["a.o", "b.c", "build", "src", "src/b.c", "src/build", "src/src", "src/src/a.o"];
    assert_eq!(left(path, Filter::builder().exclude("src/*.o")), within);
    let anywhere = ["a.o", "b.c", "build", "src", "src/a.o", "src/b.c", "src/build", "src/src"];
    assert_eq!(left(path, Filter::builder().exclude("**/src/src/*")), anywhere);
    let only_directories = ["a.o", "b.c", "build", "src", "src/a.o", "src/b.c", "src/src", "src/src/a.o"];
    assert_eq!(left(path, Filter::builder().exclude("build/")), only_directories);
}

#[test]
fn the_first_rule_that_matches_decides() {
    let root = tree(&["keep.o", "drop.o", "x.c"]);
    let path = root.path();
    assert_eq!(left(path, Filter::builder().include("keep.*").exclude("*.o")), ["keep.o", "x.c"]);
    assert_eq!(left(path, Filter::builder().exclude("*.o").include("keep.*")), ["x.c"]);
    assert_eq!(left(path, Filter::builder().include("/x.c").exclude("*")), ["x.c"]);
}

#[test]
fn an_excluded_directory_is_not_descended_and_counts_once() {
    let root = tree(&["node_modules/a/b/c", "node_modules/keep", "src/node_modules/x", "src/y"]);
    let scan = scan_with(root.path(), Filter::builder().include("/node_modules/keep").exclude("node_modules"));
    assert_eq!(names(&scan.tree), ["src", "src/y"]);
    assert_eq!((scan.report.filtered, scan.report.total()), (2, 0));
}

#[test]
fn names_that_are_not_utf_8_match_too() {
    use std::os::unix::ffi::OsStrExt;
    let root = tree(&["x"]);
    fs::write(root.path().join(OsStr::from_bytes(b"\xff.o")), "").unwrap();
    assert_eq!(left(root.path(), Filter::builder().exclude("*.o")), ["x"]);
}

#[test]
fn a_pattern_that_is_no_glob_is_an_error_that_names_it() {
    let error = Filter::builder().exclude("a[").build().unwrap_err().to_string();
    assert!(error.starts_with("the pattern \"a[\" is not a glob: "), "{error}");
}

/// Compares with git, if it is installed.
#[test]
fn ignore_files_are_honoured_in_every_directory() {
    let root =
        tree(&["a.o", "keep.o", "t/x", "d/a.o", "d/b.o", "d/t/y", "d/e/keep.o", "d/e/sub/z.tmp", "out/1", "d/out/2"]);
    let path = root.path();
    fs::write(path.join(".gitignore"), "# comment\n*.o\n!keep.o\r\nt/\n/out\n").unwrap();
    fs::write(path.join("d/.gitignore"), "!b.o\nsub/*.tmp\ne/sub/z.*\n").unwrap();
    fs::write(path.join("d/e/.gitignore"), "keep.o\n[\n").unwrap();
    let scan = scan_with(path, Filter::builder().ignore_file(OsStr::new(".gitignore")));
    let kept =
        [".gitignore", "d", "d/.gitignore", "d/b.o", "d/e", "d/e/.gitignore", "d/e/sub", "d/out", "d/out/2", "keep.o"];
    assert_eq!(names(&scan.tree), kept);
    let files: Vec<&str> = kept.into_iter().filter(|name| !path.join(name).is_dir()).collect();
    if let Some(by_git) = files_of_git(path) {
        assert_eq!(files, by_git);
    } else {
        eprintln!("skipped: ignore_files_are_honoured_in_every_directory: comparing with git: it is not installed");
    }
}

fn files_of_git(path: &Path) -> Option<Vec<String>> {
    let git = |arguments: &[&str]| std::process::Command::new("git").arg("-C").arg(path).args(arguments).output().ok();
    git(&["init", "-q"]).filter(|output| output.status.success())?;
    let output = git(&["ls-files", "--others", "--exclude-standard"])?;
    let mut files: Vec<String> = String::from_utf8(output.stdout).ok()?.lines().map(str::to_owned).collect();
    files.sort();
    Some(files)
}

#[test]
fn rules_go_before_ignore_files_and_a_first_file_before_a_second() {
    let root = tree(&["a", "b", "c"]);
    let path = root.path();
    fs::write(path.join(".one"), "a\n!b\n").unwrap();
    fs::write(path.join(".two"), "b\nc\n").unwrap();
    let two = || Filter::builder().ignore_file(OsStr::new(".one")).ignore_file(OsStr::new(".two"));
    assert_eq!(left(path, two()), [".one", ".two", "b"]);
    assert_eq!(left(path, two().include("a").exclude(".*")), ["a", "b"]);
}

#[test]
fn an_ignore_file_that_is_no_regular_file_says_nothing() {
    let root = tree(&["a", "rules", "d/.gitignore/", "d/a"]);
    fs::write(root.path().join("rules"), "a\n").unwrap();
    std::os::unix::fs::symlink("rules", root.path().join(".gitignore")).unwrap();
    let filter = Filter::builder().ignore_file(OsStr::new(".gitignore"));
    assert_eq!(left(root.path(), filter), [".gitignore", "a", "d", "d/.gitignore", "d/a", "rules"]);
}
