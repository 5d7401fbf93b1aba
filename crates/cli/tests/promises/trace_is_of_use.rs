//! Promise: what `inarch trace` writes is of use. make and ninja read the dependencies, whatever the names; a list of expected
//! files is checked; traces are compared; and the files of a program are all that it needs elsewhere.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::{INARCH, assert_one_line, assert_status, host, programs, scratch, stderr, stdout, trace_lines};

/// Runs a program in `dir`.
fn output(program: &str, arguments: &[&str], dir: &Path) -> Output {
    let mut command = Command::new(program);
    let command = command.args(arguments).current_dir(dir).env("PATH", programs()).stdin(Stdio::null());
    command.output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

fn trace(arguments: &[&str], dir: &Path) -> Output {
    output(INARCH, &[&["trace"], arguments].concat(), dir)
}

/// Sets the time of last write: seconds since 1970.
fn set_time(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

const OLD: u64 = 1_000_000_000;
const FUTURE: u64 = 4_000_000_000;

/// Names that both programs can read: how they are written in the trace's dependency file is ours to know.
const READ_BY_BOTH: [&str; 16] = [
    "plain",
    "with space",
    " two  spaces",
    "ha#sh",
    "#first",
    "do$lar",
    "$(shell false) x",
    "50%",
    "co:lon",
    "back\\slash",
    "back\\ slash and space",
    "b\\%",
    "key=value",
    "=",
    "ünï-日本",
    "br[a]ck{e,t}!@,+",
];

/// Names that ninja cannot read. It does the work again, each time.
const READ_BY_MAKE: [&str; 15] = [
    "~root",
    "semi;touch injected",
    "pipe|order",
    "tab\tab",
    "line\nbreak",
    "carriage\rreturn",
    "end\\",
    "end ",
    "st*r",
    "wh?t",
    "am&p",
    "a&",
    "'quotes\"",
    "b\\#h",
    "b\\:c",
];

/// make stops when such a file is removed.
fn is_missed(name: &str) -> bool {
    name.contains(['%', '=']) || name.ends_with('&')
}

/// A directory with files of these names, and `build` for what is made.
fn project(names: &[&str]) -> tempfile::TempDir {
    let dir = scratch();
    for name in names {
        fs::write(dir.path().join(name), "x").unwrap();
        set_time(&dir.path().join(name), OLD);
    }
    fs::create_dir(dir.path().join("build")).unwrap();
    // A directory cannot be read.
    let script = format!(
        "{INARCH} trace -q -o build/out.d --target build/out -- sh -c 'cat -- * > build/out 2> build/said; :'\n"
    );
    fs::write(dir.path().join("build/make-out"), script).unwrap();
    dir
}

#[test]
fn make_reads_the_dependencies() {
    let names: Vec<&str> = READ_BY_BOTH.iter().chain(&READ_BY_MAKE).copied().collect();
    let dir = project(&names);
    let at = |name: &str| dir.path().join(name);
    fs::write(at("build/Makefile"), "build/out: ; sh build/make-out\n-include build/out.d\n").unwrap();
    let make = |options: &str| output("make", &["-f", "build/Makefile", options, "build/out"], dir.path());
    assert_status(&make("-s"), 0);
    assert_eq!(fs::read_to_string(at("build/out")).unwrap().len(), names.len());
    let is_new = || make("-q").status.code() == Some(0);
    assert!(is_new(), "{}", stderr(&make("-q")));
    for name in &names {
        set_time(&at(name), FUTURE);
        assert!(!is_new(), "{name:?} is no dependency:\n{}", fs::read_to_string(at("build/out.d")).unwrap());
        set_time(&at(name), OLD);
        assert!(is_new(), "{name:?}");
        if !is_missed(name) {
            fs::rename(at(name), at("build/gone")).unwrap();
            let said = make("-n");
            assert!(said.status.success(), "{name:?} is missed: {}", stderr(&said));
            fs::rename(at("build/gone"), at(name)).unwrap();
        }
    }
    assert!(!at("injected").exists());
}

#[test]
fn ninja_reads_the_dependencies() {
    for deps in ["", "  deps = gcc\n"] {
        let dir = project(&READ_BY_BOTH);
        let at = |name: &str| dir.path().join(name);
        let rule = format!("rule traced\n  command = sh build/make-out\n  depfile = build/out.d\n{deps}");
        fs::write(at("build/build.ninja"), format!("builddir = build\n{rule}build build/out: traced\n")).unwrap();
        let ninja = |arguments: &[&str]| {
            let said = output("ninja", &[&["-f", "build/build.ninja"], arguments].concat(), dir.path());
            assert_status(&said, 0);
            stdout(&said).contains("no work to do")
        };
        assert!(!ninja(&[]) && ninja(&["-n"]), "{deps}");
        for name in READ_BY_BOTH {
            set_time(&at(name), FUTURE);
            assert!(!ninja(&["-n"]), "{name:?} is no dependency: {deps}");
            set_time(&at(name), OLD);
            assert!(ninja(&["-n"]), "{name:?}: {deps}");
        }
        // What it cannot read never stops it, and never looks like a file that is there.
        for name in READ_BY_MAKE {
            fs::write(at(name), "x").unwrap();
            fs::remove_file(at("build/out")).unwrap();
            assert!(!ninja(&[]) && !ninja(&["-n"]), "{name:?}: {deps}");
            fs::remove_file(at(name)).unwrap();
        }
    }
}

#[test]
fn files_that_the_command_inherits_are_listed() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("in put"), "read unseen").unwrap();
    let mut command = Command::new(INARCH);
    command.args(["trace", "--json", "trace.json", "--", "cat"]).current_dir(dir.path());
    command.stdin(File::open(at("in put")).unwrap()).stdout(File::create(at("out")).unwrap()).stderr(Stdio::piped());
    assert_status(&command.output().unwrap(), 0);
    assert_eq!(fs::read_to_string(at("out")).unwrap(), "read unseen");
    let outside = trace_lines(&at("trace.json"), "descriptor");
    let expected = [("in put", 0), ("out", 1)].map(|(name, number)| json!({"outside": at(name), "descriptor": number}));
    assert_eq!(outside, expected);
}

/// The standard error of a trace, by lines without `inarch: `.
fn said(output: &Output) -> Vec<String> {
    stderr(output).lines().map(|line| line.trim_start_matches("inarch: ").to_owned()).collect()
}

#[test]
fn what_is_not_expected_is_told() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("include/deep")).unwrap();
    let source = "#include <stdio.h>\n#include \"a.h\"\n#include \"deep/b.h\"\n#include \"x1.h\"\nint main(void) { puts(A B); return 0; }\n";
    for (name, text) in [
        ("main.c", source),
        ("a.h", "#define A \"a\"\n"),
        ("include/deep/b.h", "#define B \"b\"\n"),
        ("include/x1.h", ""),
        ("spare.h", ""),
        ("real.h", "\n"),
    ] {
        fs::write(at(name), text).unwrap();
    }
    let system = "# what every compiler needs\n/usr/\n/lib/\n/etc/\n\n";
    let expect = |list: &str, options: &[&str]| {
        fs::write(at("list"), format!("{system}{list}")).unwrap();
        let compile = ["--expect", "list", "--", "cc", "-Iinclude", "-c", "main.c"];
        trace(&[options, &compile].concat(), dir.path())
    };
    let all = "./main.c\na.h\ninclude/deep/\ninclude/x[0-9].h\n";
    let whole = expect(all, &["-q"]);
    assert_status(&whole, 0);
    assert_eq!(said(&whole), [""; 0]);
    assert!(at("main.o").exists());
    // A glob matches within one directory.
    let missing = expect("main.c\n*.h\n", &["-q"]);
    assert_status(&missing, 1);
    let undeclared = |name: &str| format!("undeclared: {}", at(name).canonicalize().unwrap().display());
    assert_eq!(said(&missing), [undeclared("include/deep/b.h"), undeclared("include/x1.h")]);
    // A directory without its slash is not what the user meant.
    let slash = expect("main.c\na.h\ninclude/deep\ninclude/x1.h\n", &["-q"]);
    assert_status(&slash, 1);
    let lines = said(&slash);
    let place = at("include/deep").display().to_string();
    assert!(
        lines.len() == 2
            && lines[0] == undeclared("include/deep/b.h")
            && lines[1].contains(&format!("{place}/ stands")),
        "{lines:?}"
    );
    // What is listed and not used is told, and fails if that is asked for.
    let unused = format!("{all}spare.h\nnone.h\n");
    let line = |name: &str| format!("unused: {}", at(name).display());
    for (options, status, expected) in [
        (&["-q"][..], 0, vec![]),
        (&[], 0, vec![line("spare.h"), line("none.h")]),
        (&["--strict", "-q"], 1, vec![line("spare.h"), line("none.h")]),
    ] {
        let output = expect(&unused, options);
        assert_status(&output, status);
        assert_eq!(said(&output), expected);
    }
    // The command's own failure comes first.
    fs::write(at("list"), "").unwrap();
    assert_status(&trace(&["--expect", "list", "--", "sh", "-c", "exit 7"], dir.path()), 7);
    fs::write(at("list"), "a\n[b\n").unwrap();
    let wrong = trace(&["--expect", "list", "--", "touch", "made"], dir.path());
    assert_one_line(&wrong, &["list: line 2", "[b"]);
    assert!(!at("made").exists());
}

#[test]
fn what_is_ignored_is_in_no_output() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("cache/deep")).unwrap();
    for name in ["cache/deep/file", "in.log", "in"] {
        fs::write(at(name), "x").unwrap();
    }
    let script = "cat cache/deep/file in.log in > out; cp out out.log; cp out cache/new";
    let options =
        ["--json", "t.json", "-o", "t.d", "--ignore", "*.log", "--ignore", "./cache", "--", "sh", "-c", script];
    assert_status(&trace(&options, dir.path()), 0);
    let paths = |key: &str| -> Vec<String> {
        let prefix = format!("{}/", dir.path().canonicalize().unwrap().display());
        let lines = trace_lines(&at("t.json"), key);
        lines.iter().filter_map(|line| Some(line[key].as_str()?.strip_prefix(&prefix)?.to_owned())).collect()
    };
    assert_eq!((paths("input"), paths("output")), (vec!["in".to_owned(), "out".to_owned()], vec!["out".to_owned()]));
    let rules = fs::read_to_string(at("t.d")).unwrap();
    assert!(rules.starts_with("out:") && rules.contains("\n  in\n") && !rules.contains(".log"), "{rules}");
    assert_one_line(&trace(&["--ignore", "a{", "true"], dir.path()), &["--ignore", "a{"]);
}

#[test]
fn digests_are_of_what_was_read() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    for name in ["same", "changed", "removed", "looked at"] {
        fs::write(at(name), name).unwrap();
    }
    let script = "cat same changed removed > out; test -e 'looked at'; echo more >> changed; rm removed; mkdir d";
    assert_status(&trace(&["--json", "t.json", "--hash", "--", "sh", "-c", script], dir.path()), 0);
    let line = |key: &str, name: &str| {
        let path = json!(dir.path().canonicalize().unwrap().join(name));
        let found = trace_lines(&at("t.json"), key).into_iter().find(|line| line[key] == path);
        found.unwrap_or_else(|| panic!("no {key} {name}"))
    };
    let sum = |name: &str| host("sha256sum", &[name], dir.path())[..64].to_owned();
    assert_eq!(line("input", "same")["sha256"], json!(sum("same")));
    assert_eq!(line("output", "out")["sha256"], json!(sum("out")));
    assert_eq!(line("output", "changed")["sha256"], json!(sum("changed")));
    for name in ["changed", "removed"] {
        let line = line("input", name);
        assert_eq!((&line["changed"], &line["sha256"]), (&json!(true), &Value::Null), "{line}");
    }
    for line in [line("input", "looked at"), line("output", "d"), line("output", "removed")] {
        assert_eq!((&line["changed"], &line["sha256"]), (&Value::Null, &Value::Null), "{line}");
    }
}

#[test]
fn traces_are_compared_and_explained() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    for name in ["main.c", "a.h", "old.h"] {
        fs::write(at(name), "\n").unwrap();
    }
    let run = |trace_file: &str, script: &str| {
        let options = ["--json", trace_file, "--hash", "--", "sh", "-c", script];
        assert_status(&trace(&options, dir.path()), 0);
    };
    run("1.json", "cat main.c a.h old.h > out; test ! -e new.h");
    // Another inode and another time, but the same content.
    fs::write(at("copy"), "\n").unwrap();
    fs::rename(at("copy"), at("main.c")).unwrap();
    fs::write(at("a.h"), "2\n").unwrap();
    fs::remove_file(at("out")).unwrap();
    fs::write(at("new.h"), "\n").unwrap();
    run("2.json", "cat main.c a.h new.h > out");
    assert_status(&trace(&["--json", "3.json", "-q", "sh", "-c", "exit 3"], dir.path()), 3);
    let path = |name: &str| dir.path().canonicalize().unwrap().join(name).display().to_string();
    let shown = trace(&["diff", "1.json", "2.json"], dir.path());
    assert_status(&shown, 0);
    let expected = [
        format!("~ input  {}  (content)", path("a.h")),
        format!("~ input  {}  (uses absent -> found,read)", path("new.h")),
        format!("- input  {}  (found, read)", path("old.h")),
        format!("~ output  {}  (content)", path("out")),
    ];
    assert_eq!(stdout(&shown).lines().collect::<Vec<_>>(), expected);
    let parsed: Value =
        serde_json::from_str(&stdout(&trace(&["diff", "--json", "1.json", "2.json"], dir.path()))).unwrap();
    assert_eq!(parsed[2], json!({"path": path("old.h"), "what": "input", "only": "a", "details": ["found", "read"]}));
    let same = trace(&["diff", "--exit-code", "1.json", "1.json"], dir.path());
    assert_status(&same, 0);
    assert_eq!(stdout(&same), "");
    let other = trace(&["diff", "--exit-code", "1.json", "3.json"], dir.path());
    assert_status(&other, 1);
    assert!(stdout(&other).starts_with("~ status  0 -> 3\n"), "{}", stdout(&other));

    std::os::unix::fs::symlink("a.h", at("link")).unwrap();
    let why = |name: &str| trace(&["why", name, "1.json"], dir.path());
    for (name, text) in [
        ("a.h", format!("{}: found, read; 1 byte\n", path("a.h"))),
        ("link", format!("{}: found, read; 1 byte\n", path("a.h"))),
        ("./x/../new.h", format!("{}: absent\n", path("new.h"))),
        ("out", format!("{}: absent\n{}: made\n", path("out"), path("out"))),
    ] {
        assert_eq!(stdout(&why(name)), text);
    }
    for (name, text) in [
        ("2.json", format!("{}: not touched", path("2.json"))),
        ("/proc/self", "/proc/self: not recorded, as all of /proc".to_owned()),
        ("new.h/x", format!("{}: not touched; {} was not there", path("new.h/x"), path("new.h"))),
    ] {
        let output = why(name);
        assert_status(&output, 1);
        assert_eq!(said(&output), [text]);
    }
    fs::write(at("bad.json"), "{\"trace\":1,\"status\":0}\n{\"input\":5}\n").unwrap();
    assert_one_line(&trace(&["diff", "1.json", "bad.json"], dir.path()), &["bad.json: line 2"]);
    assert_one_line(&trace(&["files", "none.json"], dir.path()), &["none.json"]);
    // The first word decides.
    let theirs = trace(&["-q", "--", "diff", "-q", "1.json", "2.json"], dir.path());
    assert_status(&theirs, 1);
    assert!(stdout(&theirs).contains("differ"), "{}", stdout(&theirs));
}

#[test]
fn the_files_of_a_program_are_all_that_it_needs() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    // Imports, a dynamic linker, shared libraries, and time zones.
    let program = "import json, sqlite3, datetime, zoneinfo; base = sqlite3.connect(':memory:'); \
                   print(json.dumps(base.execute('select 6 * 7').fetchall()), \
                   datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset())";
    let python = ["/usr/bin/python3", "-I", "-B", "-c", program];
    let traced = trace(&[&["--json", "t.json", "--"], &python[..]].concat(), dir.path());
    assert_status(&traced, 0);
    assert_eq!(stdout(&traced), "[[42]] 2:00:00\n");
    let list = trace(&["files", "-0", "t.json"], dir.path());
    assert_status(&list, 0);
    fs::write(at("list"), &list.stdout).unwrap();
    // Nothing else of this machine is scanned.
    let mut image: Vec<&str> = vec!["image", "/", "-o", "-", "--format", "tar", "-q", "--only", "list"];
    for glob in ["/usr", "/usr/**", "/bin", "/lib*", "/lib*/**", "/etc", "/etc/**"] {
        image.extend(["--include", glob]);
    }
    image.extend(["--exclude", "*"]);
    let archive = output(INARCH, &image, dir.path());
    assert!(archive.status.success(), "{}", stderr(&archive));
    fs::write(at("app.tar"), &archive.stdout).unwrap();
    fs::create_dir(at("root")).unwrap();
    host("tar", &["-xf", "app.tar", "-C", "root"], dir.path());
    let files = host("find", &["root", "-type", "f"], dir.path()).lines().count();
    assert!((20..2000).contains(&files), "{files} files");
    let elsewhere = output("chroot", &[&["root"], &python[..]].concat(), dir.path());
    assert_status(&elsewhere, 0);
    assert_eq!(stdout(&elsewhere), "[[42]] 2:00:00\n");
}

#[test]
fn a_target_that_is_read_again_is_no_prerequisite_of_its_own() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("s.txt"), "1").unwrap();
    let rule = format!(
        "rule t\n  command = {INARCH} trace -q -o $out.d --target $out -- sh -c \"cat s.txt > $out.tmp; cmp -s $out.tmp $out \
         || mv $out.tmp $out\"\n  depfile = $out.d\n  deps = gcc\nbuild r: t\n"
    );
    fs::write(at("build.ninja"), rule).unwrap();
    for text in ["1", "2", "3", "4"] {
        fs::write(at("s.txt"), text).unwrap();
        let built = output("ninja", &[], dir.path());
        assert!(built.status.success(), "{}", stdout(&built));
        assert_eq!(fs::read_to_string(at("r")).unwrap(), text);
        // ninja compares times.
        set_time(&at("r"), OLD);
    }
    // Read and written through one descriptor.
    fs::write(at("both"), "old").unwrap();
    let program =
        "f = open('both', 'r+'); f.read(); f.write('new'); open('other', 'w+').write('x'); open('s.txt').read()";
    let traced = trace(&["-q", "-o", "d", "--", "python3", "-I", "-S", "-c", program], dir.path());
    assert_status(&traced, 0);
    let rule = fs::read_to_string(at("d")).unwrap().replace("\\\n", " ");
    let words: Vec<&str> = rule.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(words[..2], ["both", "other:"]);
    assert!(words.contains(&"s.txt") && words.iter().filter(|word| word.starts_with("both")).count() == 1, "{words:?}");
}

#[test]
fn a_limit_of_file_sizes_is_an_error_like_others() {
    let dir = scratch();
    let limited = |arguments: &[&str], script: &str| {
        let words =
            [&["-c", "ulimit -f 1; exec \"$@\"", "sh", INARCH, "trace", "-q"], arguments, &["--", "sh", "-c", script]];
        output("sh", &words.concat(), dir.path())
    };
    let reads = "cat /etc/*.conf > /dev/null";
    for (option, what) in [("--json", "the trace: "), ("-o", "the dependency file: ")] {
        fs::write(dir.path().join("file"), "old").unwrap();
        let options = [option, "file", "--target", "made"];
        let refused = limited(if option == "-o" { &options } else { &options[..2] }, reads);
        assert_status(&refused, 125);
        assert_one_line(&refused, &[what, "File too large"]);
        assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"old");
    }
    // The command is told as it would be untraced.
    let told = limited(&["--json", "/dev/null"], "head -c 100000 /dev/zero > big; echo $?");
    assert_eq!(stdout(&told), "153\n");
}

#[test]
fn a_command_that_fails_leaves_the_dependencies_as_they_were() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a"), "a").unwrap();
    fs::write(at("d"), "old").unwrap();
    let traced = trace(&["-q", "-o", "d", "--json", "t.json", "--", "sh", "-c", "cat a > out; cat b"], dir.path());
    assert_status(&traced, 1);
    assert_eq!(fs::read_to_string(at("d")).unwrap(), "old");
    // The trace tells what it did come to.
    let inputs = trace_lines(&at("t.json"), "input");
    let uses = |name: &str| {
        let path = fs::canonicalize(dir.path()).unwrap().join(name);
        inputs.iter().find(|line| line["input"] == path.to_str().unwrap()).map(|line| line["uses"].clone())
    };
    assert_eq!(uses("b"), Some(json!(["absent"])));
}

/// What a shell opens for a command, its standard input and output, is part of what make has to know.
#[test]
fn what_is_redirected_counts() {
    let dir = scratch();
    let make = format!(
        "given: ; {INARCH} trace -q -o $@.d -- cat < data > $@\nread: ; {INARCH} trace -q -o $@.d -- cat data > $@\n\
         made: ; {INARCH} trace -q -o $@.d -- cp data $@ > log\n-include given.d read.d made.d\n"
    );
    fs::write(dir.path().join("Makefile"), make).unwrap();
    fs::write(dir.path().join("data"), "one").unwrap();
    let targets = ["-s", "given", "read", "made"];
    assert_status(&output("make", &targets, dir.path()), 0);
    for target in &targets[1..] {
        let text = fs::read_to_string(dir.path().join(format!("{target}.d"))).unwrap();
        assert!(text.starts_with(&format!("{target}: ")) && text.contains("\ndata:\n"), "{text}");
    }
    let question = [&["-q"], &targets[1..]].concat();
    assert_status(&output("make", &question, dir.path()), 0);
    fs::write(dir.path().join("data"), "two").unwrap();
    set_time(&dir.path().join("data"), FUTURE);
    assert_status(&output("make", &question, dir.path()), 1);
    assert_status(&output("make", &targets, dir.path()), 0);
    for target in &targets[1..] {
        assert_eq!(fs::read(dir.path().join(target)).unwrap(), b"two", "{target}");
    }
    // Nothing is made, and make would depend on nothing.
    let nothing = trace(&["-q", "-o", "x.d", "--", "true"], dir.path());
    assert_one_line_with_success(&nothing, "x.d: no target");
    for words in [&["-o", "-", "true"][..], &["-o", "x", "--json", "./x", "true"]] {
        assert_status(&trace(words, dir.path()), 125);
    }
}

fn assert_one_line_with_success(output: &Output, part: &str) {
    assert_status(output, 0);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.lines().count() == 1 && told.contains(part), "{told}");
}
