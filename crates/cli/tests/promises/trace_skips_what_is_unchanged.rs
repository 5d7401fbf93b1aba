//! Promise: `inarch trace --skip-if-unchanged` runs a command again if anything changed that it depended on, and otherwise does
//! without it what it did: its output, its files. What is not whole is not believed.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{
    INARCH, LONG, assert_one_line, assert_status, host, programs, scratch, script_program, stderr, stdout, within,
};

/// A directory with a command, which counts its runs where nothing is recorded.
struct Scene {
    dir: tempfile::TempDir,
    command: Vec<String>,
}

impl Scene {
    /// Files that the shell script `setup` makes, and a command that is a script.
    fn new(setup: &str, script: &str) -> Scene {
        let dir = scratch();
        host("sh", &["-ec", &format!("mkdir count\n{setup}")], dir.path());
        let command = ["sh", "-c", &format!("echo run >> count/runs\n{script}")].map(str::to_owned).to_vec();
        Scene { dir, command }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    /// `inarch trace OPTIONS --skip-if-unchanged state COMMAND`.
    fn inarch(&self, options: &[&str]) -> Command {
        let mut command = Command::new(INARCH);
        command.args(["trace", "--outside", "count"]).args(options).args(["--skip-if-unchanged", "state", "--"]);
        command.args(&self.command).current_dir(self.dir.path()).env("PATH", programs()).stdin(Stdio::null());
        command
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.at("count/runs")).map_or(0, |text| text.lines().count())
    }

    /// What a run says, and whether the command ran.
    #[track_caller]
    fn ran(&self, mut command: Command) -> (Output, bool) {
        let before = self.runs();
        let output = command.output().unwrap();
        (output, self.runs() > before)
    }

    /// The command runs, for a reason.
    #[track_caller]
    fn runs_for(&self, command: Command, reason: &str) {
        let (output, has_run) = self.ran(command);
        assert_status(&output, 0);
        assert!(has_run, "not run: {reason}");
        let line = stderr(&output).lines().next().unwrap_or_default().to_owned();
        assert!(line.starts_with("inarch: changed: ") && line.contains(reason), "not {reason}: {}", stderr(&output));
        assert!(!stderr(&output).contains("nothing is remembered"), "{}", stderr(&output));
    }

    /// It does not run.
    #[track_caller]
    fn is_skipped(&self, command: Command) -> Output {
        let (output, has_run) = self.ran(command);
        assert_status(&output, 0);
        assert!(!has_run, "it ran: {}", stderr(&output));
        output
    }

    fn does(&self, script: &str) {
        host("sh", &["-ec", script], self.dir.path());
    }
}

#[test]
fn a_skipped_command_has_the_same_effect() {
    let script = "echo one; echo two >&2; printf three; mkdir -p made/deep; echo text > made/deep/file; chmod 751 made/deep/file; \
                  ln -s deep/file made/link; chmod 550 made/deep; cat in > copy; rm -f old";
    let scene = Scene::new("echo in > in; echo old > old", script);
    let options = &["-o", "out.d", "--json", "out.json"];
    let first = scene.inarch(options).output().unwrap();
    assert_status(&first, 0);
    assert_eq!((stdout(&first).as_str(), scene.runs()), ("one\nthree", 1));
    assert_eq!(stderr(&first), "inarch: changed: no earlier run is remembered\ntwo\n");
    let whole = ["out.d", "out.json", "made/deep/file", "copy"].map(|name| scene.read(name));
    for removal in
        ["true", "rm -r made", "rm made/link copy", "rm out.d out.json", "chmod 700 made/deep; rm -r made/deep"]
    {
        scene.does(removal);
        let again = scene.is_skipped(scene.inarch(options));
        assert_eq!(stdout(&again), "one\nthree", "{removal}");
        assert!(stderr(&again).contains(": skipped") && stderr(&again).ends_with("two\n"), "{}", stderr(&again));
        assert_eq!(["out.d", "out.json", "made/deep/file", "copy"].map(|name| scene.read(name)), whole, "{removal}");
        let mode = |name: &str| fs::metadata(scene.at(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("made/deep/file"), mode("made/deep")), (0o751, 0o550), "{removal}");
        assert_eq!(fs::read_link(scene.at("made/link")).unwrap(), Path::new("deep/file"));
    }
    let quiet = scene.is_skipped(scene.inarch(&[options, &["-q"][..]].concat()));
    assert_eq!(stderr(&quiet), "two\n");
    // What it removed must stay removed.
    scene.does("echo old > old");
    scene.runs_for(scene.inarch(options), "old (new)");
}

#[test]
fn holes_of_outputs_take_no_room() {
    let scene = Scene::new("true", "printf begin > big; truncate -s 60M big; printf end >> big; truncate -s 20M empty");
    scene.runs_for(scene.inarch(&[]), "no earlier run");
    let sums = || host("sha256sum", &["big", "empty"], scene.dir.path());
    let whole = sums();
    scene.does("rm big empty");
    scene.is_skipped(scene.inarch(&[]));
    assert_eq!(sums(), whole);
    let used = host("du", &["-scm", "state", "big", "empty"], scene.dir.path());
    let megabytes: u64 = used.lines().last().and_then(|line| line.split('\t').next()?.parse().ok()).unwrap();
    assert!(megabytes < 10, "{used}");
}

#[test]
fn each_change_runs_it_again() {
    let setup = "echo abc > main; echo looked > looked; mkdir i1 i2 bin bin2 listed; echo h > i2/h; echo a > listed/a; \
                 echo f > target; cp target other; ln -s target link; echo s > sum; printf '#!/bin/sh\ncat \"$@\"\n' > bin/tool; chmod +x bin/tool";
    let script = "PATH=$PWD/bin2:$PWD/bin:$PATH; tool main > out; ls listed >> out; cat link >> out; test -e looked; \
                  cat i1/h 2> /dev/null || cat i2/h >> out; if test -x sum; then echo x; fi >> out";
    let scene = Scene::new(setup, script);
    let run = || scene.inarch(&[]);
    scene.runs_for(run(), "no earlier run");
    for (change, reason) in [
        ("cp -p main kept; printf 'xyz\\n' > main; touch -r kept main", "main (content)"),
        ("cp -p main kept; printf 'uvw\\n' > new; touch -r kept new; mv new main", "main (content)"),
        ("touch -d 2001-01-01 looked", "looked (size or time)"),
        ("echo > i1/h", "i1/h (new)"),
        ("rm i1/h", "i1/h (missing)"),
        ("touch listed/b", "listed (names)"),
        ("rm listed/b; mkdir listed/b", "listed (names)"),
        ("ln -sfn other link", "link (target)"),
        ("chmod +x sum", "sum (mode)"),
        ("chmod 700 listed", "listed (mode)"),
        ("echo '# other' >> bin/tool", "bin/tool (content)"),
        ("cp bin/tool bin2/tool", "bin2/tool (new)"),
        ("mkdir other-bin; mv bin2/tool other-bin; ln -s ../other-bin/tool bin2/tool", "bin2/tool (type)"),
        ("echo more >> out", "out (content)"),
        ("chmod 600 out", "out (mode)"),
        (
            "rm out; mkdir out; rmdir out; ln -s main out; rm out; mkfifo out; rm out; ln main out; rm out; cp main out",
            "out",
        ),
        ("chown 1 main; echo abc > main", "main (owner)"),
    ] {
        scene.does(change);
        scene.runs_for(run(), reason);
        scene.is_skipped(run());
    }
    // A name that hides nothing, and times of what was read.
    for nothing in
        ["touch main", "cp -p main new; mv new main", "touch listed i1", "echo > beside", "cat main looked > /dev/null"]
    {
        scene.does(nothing);
        scene.is_skipped(run());
    }
}

/// What lies in a directory that the command made was not there before it, and yet it counts the next time.
#[test]
fn what_appears_in_a_directory_that_it_made_runs_it_again() {
    let script = "mkdir -p gen obj; cat gen/h 2> /dev/null > out || cat inc/h > out; echo o > obj/a; cat obj/* >> out; \
                  rm -rf tmp; mkdir tmp; cat tmp/none tmp/* 2> /dev/null; rm -r tmp";
    let scene = Scene::new("mkdir inc; echo h > inc/h", script);
    let run = || scene.inarch(&[]);
    scene.runs_for(run(), "no earlier run");
    for (change, reason, out) in [
        ("echo new > gen/h", "gen/h (new)", "new\no\n"),
        ("rm -r gen obj", "gen (missing)", "h\no\n"),
        ("echo b > obj/b", "obj (names)", "h\no\nb\n"),
    ] {
        scene.is_skipped(run());
        scene.does(change);
        scene.runs_for(run(), reason);
        assert_eq!(scene.read("out"), out, "{change}");
    }
    scene.is_skipped(run());
    // What it made and is gone is made again.
    scene.does("rm -r gen obj");
    scene.runs_for(run(), "(missing)");
    scene.does("rm -r gen obj");
    scene.is_skipped(run());
    assert_eq!(scene.read("obj/a"), "o\n");
}

#[test]
fn the_surroundings_count() {
    let scene = Scene::new("mkdir d; mkdir d/count", "echo $VARIABLE");
    let with = |variable: &str, value: &str| {
        let mut command = scene.inarch(&[]);
        command.env(variable, value);
        command
    };
    scene.runs_for(with("VARIABLE", "1"), "no earlier run");
    assert_eq!(stdout(&scene.is_skipped(with("VARIABLE", "1"))), "1\n");
    scene.runs_for(with("VARIABLE", "2"), "the variable VARIABLE");
    scene.runs_for(with("OTHER", "1"), "and 1 more");
    // Values may be secret.
    scene.runs_for(with("SECRET", "hunter2"), "and 1 more");
    assert!(!scene.read("state/state.json").contains("hunter2"));
    scene.runs_for(scene.inarch(&[]), "the variable SECRET");
    let mut session = scene.inarch(&[]);
    session.env("SHLVL", "7").env("OLDPWD", "/").env("SSH_TTY", "/dev/pts/9");
    scene.is_skipped(session);
    scene.runs_for(scene.inarch(&["--ignore", "*.log"]), "the options of the trace");
    let mut words = scene.inarch(&["--ignore", "*.log"]);
    words.arg("more");
    scene.runs_for(words, "the command");
    scene.runs_for(scene.inarch(&[]), "and 1 more");
    let plain = scene.inarch(&[]);
    let mut masked = Command::new("sh");
    masked.args(["-c", "umask 077; exec \"$@\"", "sh", INARCH]).args(plain.get_args());
    masked.current_dir(scene.dir.path()).env("PATH", programs()).stdin(Stdio::null());
    scene.runs_for(masked, "the umask");
    scene.runs_for(scene.inarch(&[]), "the umask");
    let mut elsewhere = Command::new(INARCH);
    elsewhere.args(["trace", "--outside", "count", "--skip-if-unchanged", "../state", "--"]).args(&scene.command);
    elsewhere.current_dir(scene.at("d")).env("PATH", programs()).stdin(Stdio::null());
    let output = elsewhere.output().unwrap();
    assert_status(&output, 0);
    assert!(stderr(&output).contains("the working directory"), "{}", stderr(&output));
}

#[test]
fn expectations_are_kept() {
    let scene = Scene::new("echo a > a; echo b > b; printf '/usr/\n/lib/\n/etc/\n/bin/\na\nb\n' > list", "cat a b");
    let run = || scene.inarch(&["--expect", "list"]);
    scene.runs_for(run(), "no earlier run");
    scene.is_skipped(run());
    scene.does("sed -i /b$/d list");
    for _ in 0..2 {
        let (output, has_run) = scene.ran(run());
        assert_status(&output, 1);
        assert!(has_run && stderr(&output).contains("undeclared: "), "{}", stderr(&output));
    }
}

#[test]
fn what_is_damaged_is_not_believed() {
    let scene = Scene::new("echo in > in", "cat in; cat in in > out");
    let run = || scene.inarch(&[]);
    scene.runs_for(run(), "no earlier run");
    let state = scene.read("state/state.json");
    for (damage, reason) in [
        ("truncate -s -1 state/state.json", "not complete"),
        ("truncate -s 0 state/state.json", "not complete"),
        ("sed -i '$d' state/state.json", "not complete"),
        ("sed -i 2d state/state.json", "damaged"),
        ("rm state/state.json", "no earlier run"),
        ("rm out state/objects/*", "No such file"),
        ("for f in state/objects/*; do echo x >> $f; done; rm out", "damaged"),
        ("for f in state/objects/*; do rm $f; ln -s ../../in $f; done; rm out", "symbolic link"),
        ("rm state/state.json; ln -s ../in state/state.json", "symbolic link"),
    ] {
        scene.does(damage);
        scene.runs_for(run(), reason);
        assert_eq!(scene.read("out"), "in\nin\n");
        scene.is_skipped(run());
    }
    assert_eq!(scene.read("state/state.json").lines().count(), state.lines().count());
    // Nothing is kept that no state refers to.
    scene.does("echo other > in; touch state/objects/leftover");
    scene.runs_for(run(), "in (content)");
    assert_eq!(fs::read_dir(scene.at("state/objects")).unwrap().count(), 2);
}

/// A command that says that it has begun, and goes on when it is told so.
const WAITS: &str = "touch count/begun; while ! test -e count/go; do sleep 0.05; done; cat in > out";

fn begun(scene: &Scene, mut command: Command) -> Child {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(within(LONG, || scene.at("count/begun").exists()));
    child
}

#[test]
fn a_killed_run_leaves_no_state() {
    let scene = Scene::new("echo in > in; touch count/go", WAITS);
    scene.runs_for(scene.inarch(&[]), "no earlier run");
    scene.does("rm count/*; echo other > in");
    let mut child = begun(&scene, scene.inarch(&[]));
    child.kill().unwrap();
    child.wait().unwrap();
    scene.does("touch count/go; echo in > in; printf 'in\n' > out");
    scene.runs_for(scene.inarch(&[]), "no earlier run");
}

#[test]
fn a_state_that_was_hardly_begun_is_one() {
    for file in ["inarch-trace.lock", "objects"] {
        let scene = Scene::new("echo in > in", "cat in");
        let plain = scene.inarch(&[]);
        let mut killed = Command::new("strace");
        // Killed at the first call that has to do with this file.
        killed
            .args(["-f", "-o", "/dev/null", "-P"])
            .arg(scene.at("state").join(file))
            .args(["-e", "inject=all:signal=KILL:when=1"]);
        killed.arg(INARCH).args(plain.get_args()).current_dir(scene.dir.path()).env("PATH", programs());
        let (output, has_run) = scene.ran(killed);
        assert!(!output.status.success() && !has_run, "{file}: {}", stderr(&output));
        scene.runs_for(scene.inarch(&[]), "no earlier run");
        scene.is_skipped(scene.inarch(&[]));
    }
}

#[test]
fn what_changes_meanwhile_is_not_remembered() {
    let scene = Scene::new("echo in > in; echo read > read", &format!("cat read; {WAITS}"));
    for change in ["echo more >> read", "cp -p read new; mv new read", "rm read; echo read > read"] {
        scene.does("rm -f count/*");
        let child = begun(&scene, scene.inarch(&[]));
        scene.does(&format!("{change}; touch count/go"));
        let output = child.wait_with_output().unwrap();
        assert_status(&output, 0);
        let text = stderr(&output);
        assert!(text.contains("nothing is remembered: ") && text.contains("read: changed while"), "{change}: {text}");
        assert!(!scene.at("state/state.json").exists());
        assert_eq!(fs::read_dir(scene.at("state/objects")).unwrap().count(), 0);
    }
    scene.runs_for(scene.inarch(&[]), "no earlier run");
    scene.is_skipped(scene.inarch(&[]));
}

#[test]
fn what_cannot_be_known_is_not_remembered() {
    for (setup, script, reason) in [
        ("mkfifo pipe", "test -p pipe", "pipe: it is no file"),
        ("mkdir old; echo > old/file", "rm -rf new; mv old new; mkdir old", "old: the command moved this directory"),
        ("true", "cat <&3", "as descriptor 3"),
        ("true", "head -c 70000000 /dev/zero", "more than 64 MiB"),
    ] {
        let scene = Scene::new(&format!("echo open > open\n{setup}"), script);
        for _ in 0..2 {
            let plain = scene.inarch(&[]);
            let mut command = Command::new("sh");
            let open = if script.contains("<&3") { "exec 3< open; exec \"$@\"" } else { "exec \"$@\"" };
            command.args(["-c", open, "sh", INARCH]).args(plain.get_args()).current_dir(scene.dir.path());
            command.env("PATH", programs()).stdin(Stdio::null());
            let (output, has_run) = scene.ran(command);
            assert_status(&output, 0);
            assert!(has_run && stderr(&output).contains(reason), "{script}: {}", stderr(&output));
        }
        assert!(!scene.at("state/state.json").exists());
    }
}

#[test]
fn only_success_is_remembered() {
    let scene = Scene::new("echo 0 > status", "exit $(cat status)");
    scene.runs_for(scene.inarch(&[]), "no earlier run");
    scene.does("echo 3 > status");
    for _ in 0..2 {
        let (output, has_run) = scene.ran(scene.inarch(&[]));
        assert_status(&output, 3);
        assert!(has_run);
    }
    let killed = Scene::new("true", "kill -9 $$");
    for _ in 0..2 {
        assert!(killed.ran(killed.inarch(&[])).1);
    }
    let mut missing = Scene::new("true", "");
    missing.command = vec!["/no/such/program".to_owned()];
    assert_status(&missing.inarch(&[]).output().unwrap(), 127);
    assert!(!missing.at("state/state.json").exists());
}

#[test]
fn two_at_the_same_time_run_it_once() {
    let scene = Scene::new("echo in > in", WAITS);
    let first = begun(&scene, scene.inarch(&[]));
    let second = scene.inarch(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let locks = || fs::read_to_string("/proc/locks").unwrap();
    let waits = format!(" {} ", second.id());
    assert!(within(LONG, || locks().lines().any(|line| line.contains("->") && line.contains(&waits))));
    scene.does("touch count/go");
    assert_status(&first.wait_with_output().unwrap(), 0);
    let second = second.wait_with_output().unwrap();
    assert_status(&second, 0);
    let text = stderr(&second);
    assert!(text.contains("waiting for another run") && text.contains(": skipped"), "{text}");
    assert_eq!(scene.runs(), 1);
}

#[test]
fn one_within_another_with_the_same_state_is_refused() {
    let mut scene = Scene::new("true", "");
    let inner = format!("{INARCH} trace --skip-if-unchanged state -- true");
    scene.command = ["sh", "-c", &inner].map(str::to_owned).to_vec();
    let output = scene.inarch(&[]).output().unwrap();
    assert_status(&output, 125);
    assert!(stderr(&output).contains("in use by the trace that this one runs in"), "{}", stderr(&output));
}

#[test]
fn processes_that_stay_are_not_remembered() {
    let scene = Scene::new("true", "sleep 1000 & echo $! > count/left; touch count/begun");
    let child = begun(&scene, scene.inarch(&[]));
    host("kill", &["-INT", &child.id().to_string()], scene.dir.path());
    let output = child.wait_with_output().unwrap();
    host("sh", &["-c", "kill $(cat count/left) 2> /dev/null || :"], scene.dir.path());
    assert!(!scene.at("state/state.json").exists(), "{}", stderr(&output));
}

#[test]
fn both_streams_in_one_keep_their_order() {
    let scene = Scene::new("true", "for i in 1 2 3 4 5 6 7 8; do echo out $i; echo error $i >&2; done");
    let expected: String = (1..=8).map(|i| format!("out {i}\nerror {i}\n")).collect();
    let both = || {
        let file = File::create(scene.at("count/both")).unwrap();
        let mut command = scene.inarch(&["-q"]);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        command
    };
    for runs in [1, 1] {
        assert!(both().status().unwrap().success());
        assert_eq!((scene.read("count/both"), scene.runs()), (expected.clone(), runs));
    }
    // Apart, it would not be known whose each line is.
    scene.runs_for(scene.inarch(&[]), "standard errors do not go where");
    let apart = scene.is_skipped(scene.inarch(&[]));
    assert_eq!((stdout(&apart).lines().count(), stderr(&apart).lines().count()), (8, 9));
    assert!(both().status().unwrap().success());
    assert_eq!((scene.read("count/both").lines().count(), scene.runs()), (16, 2));
}

#[test]
fn a_state_is_a_directory_of_its_own() {
    let scene =
        Scene::new("mkdir other; echo mine > other/file; mkdir open; chmod 777 open; echo > file; mkdir empty", "true");
    let refused = |state: &str, part: &str| {
        let mut command = Command::new(INARCH);
        command.args(["trace", "--skip-if-unchanged", state, "touch", "made"]).current_dir(scene.dir.path());
        assert_one_line(&command.output().unwrap(), &[part, state]);
        assert!(!scene.at("made").exists());
    };
    refused("other", "not empty");
    refused("open", "other users may write");
    refused("file", "not a directory");
    assert_eq!(scene.read("other/file"), "mine\n");
    let empty = Command::new(INARCH)
        .args(["trace", "--skip-if-unchanged", "empty", "true"])
        .current_dir(scene.dir.path())
        .output();
    assert_status(&empty.unwrap(), 0);
}

#[test]
fn files_of_every_mount_are_known_again() {
    let scene = Scene::new("mkdir mount; mount -t tmpfs none mount; echo in > mount/in", "cat mount/in; ls mount");
    let first = scene.inarch(&["--json", "trace.json", "--hash"]).output().unwrap();
    let (_, has_run) = scene.ran(scene.inarch(&["--json", "trace.json", "--hash"]));
    scene.does("umount mount");
    assert_status(&first, 0);
    assert!(!has_run && !scene.read("trace.json").contains("\"changed\""), "{}", stderr(&first));
}

#[test]
fn a_limit_of_file_sizes_costs_the_memory_only() {
    let scene = Scene::new("echo in > in", "cat in /etc/*.conf > /dev/null; echo said");
    let plain = scene.inarch(&[]);
    for _ in 0..2 {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 1; exec \"$@\"", "sh", INARCH]).args(plain.get_args());
        command.current_dir(scene.dir.path()).env("PATH", programs()).stdin(Stdio::null());
        let (output, has_run) = scene.ran(command);
        assert_status(&output, 0);
        let text = stderr(&output);
        assert!(has_run && text.contains("nothing is remembered: ") && text.contains("File too large"), "{text}");
        assert_eq!(stdout(&output), "said\n");
    }
    scene.runs_for(scene.inarch(&[]), "no earlier run");
    scene.is_skipped(scene.inarch(&[]));
}

#[test]
fn a_full_disk_costs_the_memory_only() {
    let scene = Scene::new(
        "mkdir -m 700 state; mount -t tmpfs -o size=128k,mode=700 none state",
        "yes | head -c 1000000 > out; echo done",
    );
    let output = scene.inarch(&[]).output().unwrap();
    let (again, has_run) = scene.ran(scene.inarch(&[]));
    let left = fs::read_dir(scene.at("state/objects")).unwrap().count();
    scene.does("umount state");
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "done\n");
    assert!(
        stderr(&output).contains("nothing is remembered") && stderr(&output).contains("No space"),
        "{}",
        stderr(&output)
    );
    assert_status(&again, 0);
    assert!(has_run && left == 0 && scene.at("out").metadata().unwrap().len() == 1_000_000);
}

/// As scripts of autoconf do: programs and headers are looked for by compiling, with files that come and go.
const CONFIGURE: &str = r##"#!/bin/sh
exec 5> config.log
echo "started in $(pwd)" >&5
rm -rf conftest* confdefs.h
echo "/* confdefs.h */" > confdefs.h
mkdir conftest.dir && (cd conftest.dir && echo x > file && ln -s file link && ls) >&5 && rm -rf conftest.dir
for program in no-such-compiler cc; do
    if command -v $program > /dev/null; then CC=$program; break; fi
done
echo "checking for a compiler... $CC"
printf 'int main(void) { return 0; }\n' > conftest.c
$CC -o conftest conftest.c >&5 2>&5 && ./conftest || { echo "cannot run programs" >&2; exit 77; }
for header in stdio.h sys/none.h extra.h; do
    printf '#include <%s>\n' $header > conftest.c
    name=HAVE_$(echo $header | tr 'a-z./' 'A-Z__')
    if $CC -Iinclude -E conftest.c > conftest.i 2>&5; then
        echo "checking for $header... yes"; echo "#define $name 1" >> confdefs.h
    else
        echo "checking for $header... no"; echo "/* #undef $name */" >> confdefs.h
    fi
    rm -f conftest.*
done
rm -f conftest*
cat > config.status <<END
#!/bin/sh
sed 's/@CC@/$CC/' Makefile.in > Makefile
if cmp -s confdefs.h config.h; then echo 'config.h is unchanged'; else mv confdefs.h config.h; fi
rm -f confdefs.h
END
chmod +x config.status
./config.status
"##;

#[test]
fn a_configure_script_is_skipped() {
    let mut scene = Scene::new("mkdir include; printf 'CC = @CC@\n' > Makefile.in", "");
    let configure = CONFIGURE.replacen("exec 5>", "echo run >> count/runs; exec 5>", 1);
    script_program(&scene.at("configure"), &configure);
    scene.command = vec!["./configure".to_owned()];
    let run = || scene.inarch(&[]);
    scene.runs_for(run(), "no earlier run");
    let made = ["config.h", "Makefile", "config.log", "config.status"].map(|name| scene.read(name));
    assert!(made[0].contains("#define HAVE_STDIO_H 1") && made[0].contains("#undef HAVE_EXTRA_H"), "{}", made[0]);
    let skipped = scene.is_skipped(run());
    assert!(stdout(&skipped).contains("checking for extra.h... no"), "{}", stdout(&skipped));
    scene.does("rm config.h Makefile config.log config.status");
    scene.is_skipped(run());
    assert_eq!(["config.h", "Makefile", "config.log", "config.status"].map(|name| scene.read(name)), made);
    scene.does("echo > include/extra.h");
    scene.runs_for(run(), "include/extra.h (new)");
    assert!(scene.read("config.h").contains("#define HAVE_EXTRA_H 1"));
    scene.is_skipped(run());
    scene.does("echo '# more' >> Makefile.in");
    scene.runs_for(run(), "Makefile.in (content)");
    scene.is_skipped(run());
}

/// The kernel writes to the file by itself, so that the trace does not see the write that fails.
#[test]
fn a_run_that_filled_a_disk_is_not_remembered() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: a_run_that_filled_a_disk_is_not_remembered: only root mounts a small disk");
    }
    let scene = Scene::new("mkdir small", "head -c 1000000 /dev/zero 2>/dev/null > small/large; true");
    let script = format!(
        "mount -t tmpfs -o size=200k none small
        run() {{ {INARCH} trace --outside count --skip-if-unchanged state -- \"$@\"; }}
        run \"$@\"; mount -o remount,size=10m small; run \"$@\"; rm small/large; run \"$@\"; wc -c < small/large"
    );
    let words = ["--mount", "sh", "-ec", &script, "script"];
    let mut command = Command::new("unshare");
    command.args(words).args(&scene.command).current_dir(scene.dir.path()).env("PATH", programs());
    let (output, _) = scene.ran(command);
    assert_status(&output, 0);
    assert_eq!((stdout(&output).trim(), scene.runs()), ("1000000", 2), "{}", stderr(&output));
    assert!(stderr(&output).contains("small/large: there is no room left"), "{}", stderr(&output));
}

#[test]
fn an_input_that_no_run_gets_is_told() {
    let scene = Scene::new("echo input > input", "cat > copy");
    let mut command = scene.inarch(&[]);
    command.stdin(File::open(scene.at("input")).unwrap());
    let (output, has_run) = scene.ran(command);
    assert_status(&output, 0);
    assert!(has_run && stderr(&output).contains("the standard input is not read"), "{}", stderr(&output));
    assert_eq!(scene.read("copy"), "");
    let mut misspelled = Command::new(INARCH);
    misspelled.args(["trace", "--skip-if-unchanged", "no/state", "true"]).current_dir(scene.dir.path());
    assert_one_line(&misspelled.output().unwrap(), &["no/state", "no is no directory"]);
    assert!(!scene.at("no").exists());
}
