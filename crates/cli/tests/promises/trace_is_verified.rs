//! Promise: `inarch trace --verify` says whether the recorded files are all that the command needs. It runs the command again with
//! these alone, changes nothing by that, and claims nothing that it could not check.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::mounted::unmount;
use crate::support::{
    INARCH, LONG, assert_one_line, assert_status, copy_command, host, programs, scratch, stderr, stdout, within,
};

/// `PROGRAM trace --verify ARGUMENTS` in `dir`, with temporary files in its directory `tmp`.
fn verify_by(mut program: Command, dir: &Path, arguments: &[&str]) -> Command {
    fs::create_dir_all(dir.join("tmp")).unwrap();
    fs::set_permissions(dir.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    program.args(["trace", "--verify"]).args(arguments).current_dir(dir).env("PATH", programs());
    program.env("TMPDIR", dir.join("tmp")).stdin(Stdio::null());
    program
}

/// The result, when nothing temporary is left.
fn verify(dir: &Path, arguments: &[&str]) -> Output {
    let output = verify_by(Command::new(INARCH), dir, arguments).output().unwrap();
    assert_eq!(fs::read_dir(dir.join("tmp")).unwrap().count(), 0, "{}", stderr(&output));
    output
}

fn verify_script(dir: &Path, options: &[&str], script: &str) -> Output {
    verify(dir, &[options, &["--", "sh", "-c", script]].concat())
}

/// The lines on standard error, without `inarch: ` and the directory.
fn said(output: &Output, dir: &Path) -> Vec<String> {
    let prefix = format!("{}/", dir.canonicalize().unwrap().display());
    stderr(output).lines().map(|line| line.trim_start_matches("inarch: ").replace(&prefix, "")).collect()
}

const ONE: &str = "verified: the same output from the recorded files alone";
const INCOMPLETE: &str = "not verified: the command needs files that the trace does not have";
const CHANGEABLE: &str = "not verified: the command is not reproducible: it makes something else with all files, too; leave out \
                          with --ignore what does not matter";

#[test]
fn a_compiler_needs_no_more_than_was_recorded() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("include")).unwrap();
    fs::write(at("main.c"), "#include <stdio.h>\n#include \"a.h\"\nint main(void) { puts(A); }\n").unwrap();
    fs::write(at("include/a.h"), "#define A \"a\"\n").unwrap();
    let compile = ["--", "cc", "-Iinclude", "-o", "hello", "main.c"];
    let output = verify(dir.path(), &[&["--json", "t.json", "-o", "t.d"], &compile[..]].concat());
    assert_status(&output, 0);
    assert_eq!(said(&output, dir.path()), [ONE]);
    assert!(at("t.json").exists() && at("t.d").exists());
    assert_eq!(host("./hello", &[], dir.path()), "a\n");
    // It is there already now, and another one cannot be made in its place with nothing there.
    let again = verify(dir.path(), &compile);
    assert_status(&again, 1);
    let lines = said(&again, dir.path());
    assert_eq!(lines[0], "changed what was there before: hello");
    assert!(lines[1].contains("start from a clean state") && lines.len() == 2, "{lines:?}");
    fs::remove_file(at("hello")).unwrap();
    let quiet = verify(dir.path(), &[&["-q"], &compile[..]].concat());
    assert_status(&quiet, 0);
    assert_eq!(said(&quiet, dir.path()), [""; 0]);
}

#[test]
fn a_project_is_verified_with_its_intermediate_files() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("all.h"), "int one(void); int two(void);\n").unwrap();
    for (name, text) in [("one.c", "int one(void) { return 1; }"), ("two.c", "int two(void) { return 2; }")] {
        fs::write(at(name), format!("#include \"all.h\"\n{text}\n")).unwrap();
    }
    fs::write(at("main.c"), "#include \"all.h\"\nint main(void) { return one() + two() - 3; }\n").unwrap();
    let rules = "OBJECTS = $(addprefix build/,$(addsuffix .o,$(basename $(wildcard *.c))))\n\
                 prog: build/lib.a ; cc -o $@ build/lib.a\n\
                 build/lib.a: $(OBJECTS) ; cp build/one.o build/scratch; rm build/scratch; ar rcsD $@.new $^ && mv $@.new $@\n\
                 build/%.o: %.c all.h | build ; cc -c -o $@ $<\n\
                 build: ; mkdir build.new && mv build.new $@\n";
    fs::write(at("Makefile"), rules).unwrap();
    let output = verify(dir.path(), &["--", "make", "-s", "-j2"]);
    assert_status(&output, 0);
    // The program, the directory, an archive, and three objects.
    assert_eq!(said(&output, dir.path()), ["verified: the same 6 outputs from the recorded files alone"]);
    assert_eq!(host("make", &["-q"], dir.path()), "");
}

/// Does `first` in the first run, and `others` in all others. Which one it is, it learns past the recorder. All runs need the same
/// programs.
fn in_turns(first: &str, others: &str) -> String {
    format!(
        "for one in cat ls mkdir touch sleep; do $one --version > /dev/null; done; if test -e past/again; then {others}; else touch past/again; {first}; fi"
    )
}

#[test]
fn a_file_that_the_trace_does_not_have_is_named() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("past")).unwrap();
    fs::create_dir(at("secret")).unwrap();
    fs::write(at("secret/in"), "text\n").unwrap();
    let check = |first: &str, others: &str, status: i32, expected: &[&str]| {
        let output = verify_script(dir.path(), &["--outside", "past"], &in_turns(first, others));
        assert_status(&output, status);
        assert_eq!(said(&output, dir.path()), expected, "{first} | {others}");
        host("sh", &["-c", "rm -f out more past/again; test \"$(cat secret/in)\" = text"], dir.path());
    };
    let missed = "looked for, but not in the trace: secret";
    let again = "with the recorded files alone, ";
    let ended = format!("{again}the command ended otherwise: exit status: 1");
    let complaint = "| cat: secret/in: No such file or directory";
    let not_made = format!("{again}not made the second time: out");
    let cat = "text=$(cat secret/in) && echo $text > out";
    check("echo text > out", cat, 1, &[&ended, complaint, &not_made, missed, INCOMPLETE]);
    let differs = format!("{again}differs: out (content)");
    check("echo text > out", "cat secret/in > out 2> /dev/null; :", 1, &[&differs, missed, INCOMPLETE]);
    // The command's own failure comes first.
    check("echo text > out; exit 7", "cat secret/in > out 2> /dev/null; exit 7", 7, &[&differs, missed, INCOMPLETE]);
    // A listing shows what it showed, and a name that was only listed leads nowhere.
    check("ls -U secret > out", "ls secret > out", 0, &[ONE]);
    let missed = "looked for, but not in the trace: secret/in";
    check(
        "ls secret > out; echo text >> out",
        "ls secret > out; cat secret/in >> out 2> /dev/null; :",
        1,
        &[&differs, missed, INCOMPLETE],
    );
}

#[test]
fn a_command_that_is_not_reproducible_is_told_from_an_incomplete_trace() {
    let dir = scratch();
    fs::create_dir(dir.path().join("past")).unwrap();
    let check = |options: &[&str], script: &str, expected: &[&str]| {
        let output = verify_script(dir.path(), options, script);
        assert_status(&output, 1);
        let mut lines = said(&output, dir.path());
        assert_eq!(lines.pop().as_deref(), Some(CHANGEABLE), "{}", stderr(&output));
        let expected: Vec<String> = expected.iter().map(|line| format!("either way, {line}")).collect();
        assert_eq!(lines, expected);
        host("sh", &["-c", "rm -rf out* other past/again"], dir.path());
    };
    check(&[], "cat /proc/sys/kernel/random/uuid > out", &["differs: out (content)"]);
    check(
        &[],
        "echo x > out-$(cat /proc/sys/kernel/random/boot_id | cut -c 1); mkdir out; ln -s $$ out/l",
        &["differs: out/l (target)"],
    );
    let outside = &["--outside", "past"][..];
    fs::write(dir.path().join("there"), "x").unwrap();
    let turns = in_turns("mkdir out; echo 1 > out1; touch out2", "touch out other; (umask 77; echo 1 > out1)");
    check(
        outside,
        &turns,
        &[
            "made only the second time: other",
            "differs: out (type)",
            "differs: out1 (permissions)",
            "not made the second time: out2",
        ],
    );
    let turns = in_turns("cat there; touch out", "cat there > out3; echo y > there");
    check(
        outside,
        &turns,
        &["not made the second time: out", "made only the second time: out3", "changed only the second time: there"],
    );
    assert_eq!(fs::read_to_string(dir.path().join("there")).unwrap(), "x");
}

#[test]
fn changes_by_others_are_told_as_such() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("past")).unwrap();
    fs::write(at("there"), "x").unwrap();
    let wait = "cat there > out; while test ! -e past/changed; do sleep 0.05; done";
    let script = in_turns(wait, "cat there > out");
    let mut command = verify_by(Command::new(INARCH), dir.path(), &["--outside", "past", "--", "sh", "-c", &script]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(within(LONG, || fs::read(at("out")).is_ok_and(|text| text == b"x")));
    fs::write(at("there"), "longer").unwrap();
    fs::write(at("past/changed"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_status(&output, 1);
    let lines = said(&output, dir.path());
    assert_eq!(lines[lines.len() - 2], "changed since the first run: there");
    assert!(lines[lines.len() - 1].starts_with("not verified: another program changed files"), "{lines:?}");
}

#[test]
fn what_was_there_before_the_command_must_not_change() {
    let dir = scratch();
    let reset = "rm -rf old* new* d; mkdir d; echo x > d/x; echo old > old; ln old old2; echo log >> app.log";
    for (script, changed) in [
        ("echo new > old", &["old"][..]),
        ("echo more >> old", &["old"]),
        ("cat old; rm old", &["old"]),
        ("mv old new", &["old"]),
        ("echo 1 > new; mv new old2", &["old2"]),
        ("mv d new", &["d", "d/x"]),
        ("chmod 700 old", &["old"]),
        ("echo y > d/x; rm old; touch new", &["d/x", "old"]),
    ] {
        host("sh", &["-c", reset], dir.path());
        let output = verify_script(dir.path(), &[], script);
        assert_status(&output, 1);
        let mut lines = said(&output, dir.path());
        let reason = lines.pop().unwrap();
        assert!(reason.starts_with("not verified: the command changed files"), "{reason}");
        let expected: Vec<String> =
            changed.iter().map(|name| format!("changed what was there before: {name}")).collect();
        assert_eq!(lines, expected, "{script}");
    }
    // What is ignored may change, and is there the second time.
    host("sh", &["-c", reset], dir.path());
    let script = "cat old > out; echo more >> app.log; test $(wc -l < app.log) -gt 1";
    let output = verify_script(dir.path(), &["--ignore", "*.log"], script);
    assert_status(&output, 0);
    assert_eq!(said(&output, dir.path()), [ONE]);
}

/// What changes a directory that was there, and sees it before and after. The directory's time of change is the first run's only
/// before the first change.
const SEES_ITSELF: &str = "before=$(stat -c '%Y %s %i' . sub); ls > out1; { echo $before; stat -c '%s %i' . sub; } > out2; \
    mkdir made; ls . sub made > made/list; touch sub/new; \
    ls -R > out3; find . -name '*.c' | sort > out4; test ! -e never; cat a.c sub/b.c > sub/out5; rm sub/new; ulimit -n >> out1; \
    echo once >> made/once; umask >> out1; pwd >> out1; id >> out1; echo $0 $PWD >> out1; ls -l a.c sub/b.c >> out1";

#[test]
fn a_run_sees_what_the_first_one_saw() {
    let dir = scratch();
    let script =
        format!("mkdir sub; echo a > a.c; echo b > sub/b.c; ln -s a.c sub/link; {}", "touch unread sub/unread");
    host("sh", &["-c", &script], dir.path());
    fs::create_dir(dir.path().join("tmp")).unwrap();
    let output = verify_script(dir.path(), &[], SEES_ITSELF);
    assert_status(&output, 0);
    let lines = said(&output, dir.path());
    assert_eq!(lines, ["verified: the same 8 outputs from the recorded files alone"]);
    assert_eq!(fs::read_to_string(dir.path().join("made/once")).unwrap(), "once\n");
    // The first run's are here, and the second one's are gone.
    assert_eq!(fs::read_to_string(dir.path().join("sub/out5")).unwrap(), "a\nb\n");
    assert_eq!(host("ls", &["sub"], dir.path()), "b.c\nlink\nout5\nunread\n");
    // A failing command is verified, too.
    let output = verify_script(dir.path(), &[], "echo x > failed; exit 3");
    assert_status(&output, 3);
    assert_eq!(said(&output, dir.path()), [ONE]);
    // It reads the same file from the same place.
    let script = format!(
        "{{ read first; {INARCH} trace --verify -- sh -c 'read second; cat > copy; echo $second >> copy'; }} < input"
    );
    host("sh", &["-c", "printf '1\\n2\\n3\\n4\\n' > input"], dir.path());
    let output = Command::new("bash").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
    assert_eq!(
        (said(&output, dir.path()), fs::read_to_string(dir.path().join("copy")).unwrap()),
        (vec![ONE.to_owned()], "3\n4\n2\n".to_owned())
    );
    // What came by a pipe is gone.
    let script = format!("echo x | {INARCH} trace --verify -- sh -c 'cat > piped'");
    let output = Command::new("sh").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
    assert_status(&output, 1);
    let lines = said(&output, dir.path());
    assert!(lines.len() == 2 && lines[1].contains("its standard input is a pipe"), "{lines:?}");
    assert_eq!(fs::read_to_string(dir.path().join("piped")).unwrap(), "x\n");
    let output = verify_script(dir.path(), &[], "cat a.c > /dev/null");
    assert_eq!(said(&output, dir.path()), ["verified: the same end without outputs from the recorded files alone"]);
    assert_eq!(stdout(&output), "");
}

#[test]
fn files_that_are_not_needed_are_told() {
    let dir = scratch();
    host(
        "sh",
        &["-c", "mkdir d e; for name in a b c d/1 d/2 e/1; do echo $name > $name; done; ln -s a link"],
        dir.path(),
    );
    let script = "cat a b link > /dev/null; cat c > out; cat d/1 d/2 > /dev/null; ls e > out2; test -e e/1; exit 0";
    let minimise = |option| {
        let output = verify_script(dir.path(), &[option], script);
        assert_status(&output, 0);
        let lines = said(&output, dir.path());
        assert_eq!(lines[0], "verified: the same 2 outputs from the recorded files alone");
        host("sh", &["-c", "cat a b c d/1 e/1 > /dev/null; rm out out2"], dir.path());
        lines
    };
    let lines = minimise("--minimise");
    let ours: Vec<&str> = lines.iter().filter_map(|line| line.strip_prefix("surplus: ")).collect();
    let ours: Vec<&str> = ours.into_iter().filter(|path| !path.starts_with('/')).collect();
    assert_eq!(ours, ["a", "b", "d/1", "d/2", "link"]);
    let end = lines.last().unwrap();
    assert!(end.contains(" files are surplus, by ") && end.ends_with(" runs"), "{end}");
    let lines = minimise("--minimise=3");
    assert!(lines.last().unwrap().ends_with(" by 3 runs; not all others were tried"), "{lines:?}");
    let alone = Command::new(INARCH).args(["trace", "--minimise", "true"]).output().unwrap();
    assert!(!alone.status.success() && stderr(&alone).contains("--verify"), "{}", stderr(&alone));
}

#[test]
fn a_full_disk_is_told_as_such() {
    let dir = scratch();
    // Where there is no room at all, that is found before the command runs.
    let mut nowhere = verify_by(Command::new(INARCH), dir.path(), &["touch", "made"]);
    let output = nowhere.env("TMPDIR", dir.path().join("none")).output().unwrap();
    assert_status(&output, 125);
    assert_one_line(&output, &["none", "No such file"]);
    assert!(!dir.path().join("made").exists());
    fs::remove_dir(dir.path().join("tmp")).unwrap();
    host("sh", &["-ec", "mkdir tmp; mount -t tmpfs -o size=1m none tmp"], dir.path());
    let arguments = ["--", "sh", "-c", "head -c 5000000 /dev/zero > big"];
    let output = verify_by(Command::new(INARCH), dir.path(), &arguments).output().unwrap();
    unmount(&dir.path().join("tmp"));
    assert_status(&output, 1);
    let [line] = &said(&output, dir.path())[..] else { panic!("{}", stderr(&output)) };
    assert!(line.starts_with("not verified: no room is left in ") && line.contains("TMPDIR"), "{line}");
}

#[test]
fn users_verify_as_well() {
    let dir = scratch();
    chown(dir.path(), Some(1), Some(1)).unwrap();
    copy_command(&dir.path().join("inarch"));
    fs::write(dir.path().join("main.c"), "#include <stdio.h>\nint main(void) { puts(\"a\"); }\n").unwrap();
    let mut user = Command::new("setpriv");
    user.args(["--reuid", "1", "--regid", "1", "--clear-groups"]).arg(dir.path().join("inarch"));
    let script = "cc -o hello main.c && mkdir d && ./hello > d/out && ls > d/list && chmod 500 d";
    let output = verify_by(user, dir.path(), &["--", "sh", "-c", script]).output().unwrap();
    assert_status(&output, 0);
    assert_eq!(said(&output, dir.path()), ["verified: the same 4 outputs from the recorded files alone"]);
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_stopped_verification_claims_nothing() {
    let dir = scratch();
    fs::create_dir(dir.path().join("past")).unwrap();
    let script = in_turns("echo first", "touch past/second; sleep 100 & trap 'kill $!' TERM; wait");
    let arguments = ["--outside", "past", "--", "sh", "-c", &script];
    let mut command = verify_by(Command::new(INARCH), dir.path(), &arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(within(LONG, || dir.path().join("past/second").exists()));
    host("kill", &["-TERM", &child.id().to_string()], dir.path());
    out.read_to_string(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_status(&output, 1);
    assert_eq!(
        (line.as_str(), said(&output, dir.path())),
        ("first\n", vec!["not verified: the trace was stopped".to_owned()])
    );
    assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 0);
}

/// Ctrl-C ends it: the command is not started once more.
#[test]
fn an_interrupted_command_is_not_run_again() {
    for end in ["kill -INT $$", "exit 130"] {
        let dir = scratch();
        fs::create_dir(dir.path().join("past")).unwrap();
        let script = format!("echo run >> past/runs; echo x > part; {end}");
        let output = verify_script(dir.path(), &["--outside", "past"], &script);
        assert_eq!(said(&output, dir.path()), ["not verified: the trace was stopped"]);
        assert_eq!(fs::read_to_string(dir.path().join("past/runs")).unwrap(), "run\n", "{end}");
    }
}
