//! Promise: under `inarch trace` a command does what it does without: its streams, status, signals, terminal and files are its own.
//! However the trace ends, it leaves no mount, no process and no half-written file.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{
    INARCH, LONG, assert_status, copy_command, host, programs, scratch, stderr, stdout, trace_lines, within,
};

/// `inarch trace --quiet OPTIONS -- sh -c SCRIPT` in `dir`.
fn trace(dir: &Path, options: &[&str], script: &str) -> Command {
    let mut command = Command::new(INARCH);
    command.args(["trace", "--quiet"]).args(options).args(["--", "sh", "-c", script]);
    command.current_dir(dir).env("PATH", programs()).stdin(Stdio::null());
    command
}

/// The inputs or outputs in `dir` of a trace, by `key`: a line for each name and its uses or change.
fn told(trace: &Path, dir: &Path, key: &str) -> Vec<String> {
    let text = fs::read_to_string(trace).unwrap();
    assert!(text.ends_with("{\"end\":true}\n"), "{text}");
    let lines = text.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let name = Path::new(line.get(key)?.as_str()?).strip_prefix(dir).ok()?.to_str()?.to_owned();
        let uses =
            line["uses"].as_array().into_iter().flatten().filter_map(Value::as_str).filter(|one| *one != "xattrs");
        Some(format!("{name}: {}", uses.chain(line["change"].as_str()).collect::<Vec<_>>().join(" ")))
    });
    lines.filter(|line| !line.starts_with(": ")).collect()
}

/// The mounts of traces that other processes can see.
fn mounts() -> usize {
    fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .filter(|line| line.contains(" - fuse") && line.contains(" trace "))
        .count()
}

#[test]
fn status_and_streams_are_the_commands() {
    let dir = scratch();
    for (script, status) in [("exit 0", 0), ("exit 3", 3), ("exit 125", 125), ("kill -0 1 2> /dev/null; false", 1)] {
        assert_status(&trace(dir.path(), &[], script).output().unwrap(), status);
    }
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGINT] {
        let output = trace(dir.path(), &[], &format!("kill -{signal} $$")).output().unwrap();
        assert_eq!(output.status.signal(), Some(signal), "{}", stderr(&output));
    }
    fs::write(dir.path().join("plain"), "text").unwrap();
    fs::write(dir.path().join("script"), "#! /no/interpreter -x\n").unwrap();
    host("sh", &["-c", "chmod 755 script; mkfifo fifo"], dir.path());
    for (program, status, reason) in [
        ("./none", 127, "./none: command not found"),
        ("no-such-program", 127, "no-such-program: command not found"),
        ("fifo", 127, "fifo: command not found"),
        ("./plain", 126, "./plain: Permission denied"),
        ("./script", 127, "./script: its interpreter /no/interpreter is missing"),
    ] {
        let output =
            Command::new(INARCH).args(["trace", "-q", "--", program]).current_dir(dir.path()).output().unwrap();
        assert_status(&output, status);
        let told = stderr(&output);
        assert!(told.starts_with(&format!("inarch: {reason}")) && told.lines().count() == 1, "{told}");
    }
    let mut child = trace(dir.path(), &[], "cat; printf '\\377\\0'; echo aside >&2")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    for word in [b"one\n", b"two\n"] {
        to.write_all(word).unwrap();
        let mut back = [0; 4];
        from.read_exact(&mut back).unwrap();
        assert_eq!(&back, word);
    }
    drop(to);
    let mut rest = Vec::new();
    from.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((rest.as_slice(), stderr(&output).as_str()), (&b"\xff\0"[..], "aside\n"));
    // Other descriptors are inherited, too.
    let list = "sh -c 'cat <&7 >&8; ls /proc/self/fd'";
    let [own, traced] = [list.to_owned(), format!("{INARCH} trace -q -- {list}")]
        .map(|command| host("sh", &["-c", &format!("exec 7< plain 8> out; {command}")], dir.path()));
    assert_eq!(traced, own);
    assert_eq!(fs::read(dir.path().join("out")).unwrap(), b"text");
}

#[test]
fn signals_are_passed_on() {
    let dir = scratch();
    for signal in ["TERM", "HUP", "USR1", "USR2", "INT", "QUIT"] {
        let script = format!("trap 'echo got {signal}; exit 7' {signal}; echo ready; while :; do sleep 0.05; done");
        let mut child = trace(dir.path(), &[], &script).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        host("kill", &[&format!("-{signal}"), &child.id().to_string()], dir.path());
        out.read_to_string(&mut line).unwrap();
        assert_eq!((child.wait().unwrap().code(), line.as_str()), (Some(7), format!("ready\ngot {signal}\n").as_str()));
    }
}

/// A session with a terminal, in which the traced command is the foreground's.
const TERMINAL: &str = r#"
import os, pty, signal, sys, time
inarch, script = sys.argv[1:3]
session, terminal = pty.fork()
if session == 0:
    # The leader of the session, as a shell is.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0); os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execv(inarch, [inarch, "trace", "-q", "--", "sh", "-c", script])
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        os.tcsetpgrp(0, os.getpgrp())
        if not os.WIFSTOPPED(status):
            print("ended", os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status), flush=True)
            os._exit(0)
        states = {}
        # The last of them may be about to stop.
        while set(states.values()) != {"T"}:
            time.sleep(0.01)
            states = {}
            for process in filter(str.isdigit, os.listdir("/proc")):
                try:
                    fields = open(f"/proc/{process}/stat").read().rsplit(")", 1)[1].split()
                    if int(fields[2]) == job: states[process] = fields[0]
                except OSError: pass
        print("stopped", len(states), "".join(set(states.values())), flush=True)
        input()
        os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)
said = b""
def until(word):
    global said
    while word not in said:
        try: more = os.read(terminal, 4096)
        except OSError: more = b""
        if not more: sys.exit(f"no {word} in {said}")
        said += more
    said = said[said.index(word) + len(word):]
for step in sys.argv[3:]:
    kind, word = step.split(":", 1)
    if kind == "see": until(word.encode())
    else: os.write(terminal, word.encode())
until(b"ended ")
while b"\n" not in said:
    said += os.read(terminal, 99)
print(said.split()[0].decode())
os.waitpid(session, 0)
"#;

#[test]
fn the_terminal_is_the_commands() {
    let dir = scratch();
    fs::write(dir.path().join("terminal.py"), TERMINAL).unwrap();
    let run = |script: &str, steps: &[&str]| {
        let words = [&["timeout", "100", "python3", "terminal.py", INARCH, script], steps].concat();
        host(words[0], &words[1..], dir.path()).trim().to_owned()
    };
    // A key is one signal to the command, though both have the terminal.
    let script = "n=0; trap 'n=$((n + 1)); echo caught $n' INT; trap 'exit $n' TERM; echo ready; while :; do read x; test \"$x\" != end || exit $n; done";
    assert_eq!(
        run(
            script,
            &["see:ready", "send:\x03", "see:caught 1", "send:again\n", "send:\x03", "see:caught 2", "send:end\n"]
        ),
        "2"
    );
    // dash loses a signal that comes between its vfork and its child's exec, so the key comes when cat has answered.
    let steps = ["see:ready", "send:word\n", "see:word\r\nword", "send:\x03"];
    assert_eq!(run("echo ready; cat; echo never", &steps), "-2");
    // It stops with all its processes, and goes on.
    let steps = [
        "send:first\n",
        "see:<first>",
        "send:\x1a",
        "see:stopped 3 T",
        "send:\n",
        "send:word\n",
        "see:<word>",
        "send:\x1a",
        "see:stopped 3 T",
        "send:\n",
        "send:\x04",
    ];
    assert_eq!(run("sed -u 's/.*/<&>/'; exit 9", &steps), "9");
}

#[test]
fn two_traces_at_once_are_told_apart() {
    const FILES: usize = 200;
    let dir = scratch();
    for name in ["a", "b"] {
        for number in 0..FILES {
            fs::write(dir.path().join(format!("{name}{number}")), name).unwrap();
        }
    }
    let children = ["a", "b"].map(|name| {
        let script = format!("cat {name}? {name}?? {name}??? > out-{name}; cp {name}1 copy-{name}; rm {name}2");
        trace(dir.path(), &["--json", &format!("trace-{name}")], &script).spawn().unwrap()
    });
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    for name in ["a", "b"] {
        let inputs = told(&dir.path().join(format!("trace-{name}")), dir.path(), "input");
        let read = inputs.iter().filter(|line| line.contains(" read")).count();
        let others = inputs.iter().any(|line| !line.starts_with(name) && !line.contains(&format!("-{name}: absent")));
        assert!(read == FILES && !others, "{inputs:?}");
        let outputs = told(&dir.path().join(format!("trace-{name}")), dir.path(), "output");
        assert_eq!(outputs, [format!("{name}2: removed"), format!("copy-{name}: made"), format!("out-{name}: made")]);
        assert_eq!(fs::read(dir.path().join(format!("out-{name}"))).unwrap(), name.repeat(FILES).as_bytes());
    }
}

#[test]
fn a_killed_trace_leaves_nothing() {
    let dir = scratch();
    for as_user in [false, true] {
        if as_user {
            chown(dir.path(), Some(1), Some(1)).unwrap();
        }
        let before = mounts();
        fs::write(dir.path().join("old.d"), "as it was").unwrap();
        if as_user {
            chown(dir.path().join("old.d"), Some(1), Some(1)).unwrap();
        }
        // A process in the background sees that its files are gone.
        let script =
            "(while test -e written; do sleep 0.05; done) & echo text > written; echo ready $!; exec sleep 1000";
        let mut command = as_whom(as_user, dir.path());
        command.args(["trace", "--quiet", "-o", "old.d", "--json", "new.json", "--", "sh", "-c", script]);
        let mut child = command.current_dir(dir.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let beside = line.trim().strip_prefix("ready ").unwrap();
        let of_child = format!("/proc/{}/task/{0}/children", child.id());
        let threads = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().flatten();
        let children: String =
            threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default()).collect();
        assert!(!children.is_empty(), "{of_child}");
        child.kill().unwrap();
        child.wait().unwrap();
        // It is at the end of its output when the last process is gone.
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        for process in children.split_whitespace().chain([beside]) {
            assert!(within(LONG, || !Path::new(&format!("/proc/{process}/exe")).exists()), "{process} is still there");
        }
        assert_eq!(mounts(), before);
        assert_eq!(fs::read_to_string(dir.path().join("written")).unwrap(), "text\n");
        assert_eq!(fs::read_to_string(dir.path().join("old.d")).unwrap(), "as it was");
        let mut names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.retain(|name| name != "inarch");
        names.sort();
        assert_eq!(names, ["old.d", "written"]);
        fs::remove_file(dir.path().join("written")).unwrap();
    }
}

#[test]
fn processes_are_told() {
    let dir = scratch();
    for name in ["a", "b"] {
        fs::write(dir.path().join(name), "text").unwrap();
    }
    let script =
        "echo $$; cat a > out & echo $!; cat a b > /dev/null & echo $!; test -e none; wait; exec stat b > /dev/null";
    let output = trace(dir.path(), &["--by-process", "--json", "trace.json"], script).output().unwrap();
    assert_status(&output, 0);
    let numbers: Vec<u64> = stdout(&output).lines().map(|line| line.parse().unwrap()).collect();
    let [shell, one, two] = numbers[..] else { panic!("{numbers:?}") };
    let text = fs::read_to_string(dir.path().join("trace.json")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let by = |key: &str, name: &str| -> BTreeSet<u64> {
        let path = dir.path().join(name);
        let line = lines.iter().find(|line| line.get(key).is_some_and(|told| told == path.to_str().unwrap()));
        line.unwrap()["pids"].as_array().unwrap().iter().filter_map(Value::as_u64).collect()
    };
    assert_eq!(by("input", "a"), BTreeSet::from([one, two]));
    assert_eq!(by("input", "b"), BTreeSet::from([shell, two]));
    assert_eq!(by("input", "none"), BTreeSet::from([shell]));
    assert_eq!(by("output", "out"), BTreeSet::from([one]));
}

/// The program as root or as another user, in a directory of that user's.
fn as_whom(as_user: bool, dir: &Path) -> Command {
    if !as_user {
        return Command::new(INARCH);
    }
    if !dir.join("inarch").exists() {
        copy_command(&dir.join("inarch"));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "1", "--regid", "1", "--clear-groups"]).arg(dir.join("inarch"));
    command
}

#[test]
fn users_trace_as_well() {
    let dir = scratch();
    chown(dir.path(), Some(1), Some(1)).unwrap();
    fs::create_dir_all(dir.path().join("closed/d")).unwrap();
    for name in ["open", "secret", "closed/x"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    host("chmod", &["700", "closed"], dir.path());
    host("chmod", &["600", "secret"], dir.path());
    let before = mounts();
    let script = "cat open secret closed/x 2> /dev/null; echo text > made; test -r secret; ls closed 2> /dev/null; id -u; stat -c %u made";
    let mut command = as_whom(true, dir.path());
    command.args(["trace", "--quiet", "--json", "trace.json", "--", "sh", "-c", script]);
    let output = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "open1\n1\n");
    let trace = dir.path().join("trace.json");
    // The kernel refused the rest before it asked for it.
    assert_eq!(
        told(&trace, dir.path(), "input"),
        ["closed: found", "made: absent", "open: found read", "secret: found"]
    );
    assert_eq!(told(&trace, dir.path(), "output"), ["made: made"]);
    assert_eq!((mounts(), fs::metadata(&trace).unwrap().uid()), (before, 1));
}

/// Files of each kind, as a command leaves them; and then what stat(1) says of them.
const EACH_KIND: &str = "
umask 027; echo text > plain; mkdir -p d/e; ln -s nowhere link; ln plain hard; mkfifo fifo; mknod device c 1 3
echo text > owned; chown 5:6 owned; chmod 6755 owned; touch -d @1.5 old; touch -h -d @2.5 link; truncate -s 99999 sparse
chmod 2770 d; echo text > d/inherits; mkdir d/below; chown 7 d; echo x > program; chmod +x program
echo more >> owned; head -c 300000 /dev/zero > large; echo x >> large; python3 -c 'import os; os.setxattr(\"plain\", \"user.x\", b\"value\")'
cp -a d copied; mv plain moved; touch -r old large; rm fifo
find . ! -name . -printf '%p %y %m %U %G %n %s %l\\n' | sort
stat -c '%n %Y' old link large; getfattr -d moved; cat large | md5sum";

/// A recipe of a build that is traced as a whole is traced by itself.
#[test]
fn a_trace_within_a_trace_works() {
    let dir = scratch();
    fs::write(dir.path().join("in"), "text\n").unwrap();
    let inner =
        format!("{INARCH} trace -q --json inner.json -- sh -c 'ls; cat in > out' && {INARCH} trace -q -- cat out");
    let output = trace(dir.path(), &["--json", "outer.json"], &inner).output().unwrap();
    assert_status(&output, 0);
    assert!(stdout(&output).contains("in\n") && stdout(&output).ends_with("text\n"), "{}", stdout(&output));
    let place = dir.path().canonicalize().unwrap();
    for name in ["inner.json", "outer.json"] {
        let (inputs, outputs) =
            (told(&dir.path().join(name), &place, "input"), told(&dir.path().join(name), &place, "output"));
        assert!(inputs.iter().any(|line| line.starts_with("in: ") && line.contains("read")), "{name}: {inputs:?}");
        assert!(outputs.contains(&"out: made".to_owned()), "{name}: {outputs:?}");
    }
}

#[test]
fn files_are_written_as_without() {
    let dir = scratch();
    let [own, traced] = ["own", "traced"].map(|name| dir.path().join(name));
    for place in [&own, &traced] {
        fs::create_dir(place).unwrap();
    }
    let expected = host("sh", &["-ec", EACH_KIND], &own);
    let output = trace(&traced, &[], EACH_KIND).output().unwrap();
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    let look = "find . -printf '%p %y %m %U %G %n %s %l\\n' | sort; cat large | md5sum";
    assert_eq!(host("sh", &["-c", look], &traced), host("sh", &["-c", look], &own));
}

#[test]
fn a_dependency_file_is_whole_or_as_it_was() {
    let dir = scratch();
    fs::write(dir.path().join("input"), "text").unwrap();
    fs::write(dir.path().join("old.d"), "as it was").unwrap();
    let seen =
        trace(dir.path(), &["-o", "old.d"], "cat old.d input > /dev/null; cat old.d; echo > output").output().unwrap();
    assert_eq!(stdout(&seen), "as it was");
    let text = fs::read_to_string(dir.path().join("old.d")).unwrap();
    assert!(text.starts_with("output:") && text.contains("  input"), "{text}");
    // What cannot be replaced is written in place.
    let output = trace(dir.path(), &["-o", "/dev/stdout"], "cat input > second").output().unwrap();
    assert!(stdout(&output).starts_with("second:"), "{}", stdout(&output));
    let output = trace(dir.path(), &["-o", "none/x.d"], "echo > never").output().unwrap();
    assert_status(&output, 125);
    assert!(
        !dir.path().join("never").exists() && stderr(&output).contains("none/x.d: cannot write there"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_a_mount_forbids_is_forbidden() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: what_a_mount_forbids_is_forbidden: not root");
        return;
    }
    let dir = scratch();
    let script = format!(
        "mkdir strict run ro; chmod 755 . strict run ro
         mount -t tmpfs -o nosuid,nodev none strict; mount -t tmpfs -o noexec none run; mount -t tmpfs none ro
         for to in strict run ro; do cp /usr/bin/id $to/id; chmod 4755 $to/id; done; mknod strict/null c 1 3; chmod 666 strict/null
         mount -o remount,ro ro
         {INARCH} trace --quiet --json t.json -- sh -c '
            user=\"setpriv --reuid=65534 --regid=65534 --clear-groups\"
            for to in strict ro; do $user $to/id -u; done
            $user sh -c \"echo x > strict/null\"; $user run/id -u; echo x > ro/new; test -w ro/id || echo read-only'"
    )
    .replace("\\\"", "\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave", "sh", "-c", &script]).current_dir(dir.path());
    let output = command.env("PATH", programs()).stdin(Stdio::null()).output().unwrap();
    // The number of the user, and of root where a set-user-ID program may be one.
    assert_eq!(stdout(&output), "65534\n0\nread-only\n", "{}", stderr(&output));
    let errors = stderr(&output);
    assert_eq!(errors.matches("Permission denied").count(), 2, "{errors}");
    assert!(errors.contains("ro/new: Read-only file system"), "{errors}");
    // What was looked up to forbid it is no access of the command's.
    let inputs = told(&dir.path().join("t.json"), dir.path(), "input");
    assert!(inputs.contains(&"strict/null: found".to_owned()), "{inputs:?}");
    let quiet = trace(dir.path(), &["--json", "t.json"], ":").output().unwrap();
    assert_status(&quiet, 0);
    assert_eq!(told(&dir.path().join("t.json"), dir.path(), "input"), [""; 0]);
}

#[test]
fn ignored_signals_stay_ignored() {
    let dir = scratch();
    let script =
        format!("trap '' HUP INT USR1; exec {INARCH} trace -q -- sh -c 'kill -HUP $PPID; kill -USR1 $$; echo lives'");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(dir.path()).env("PATH", programs()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "lives\n");
}

#[test]
fn a_signal_that_the_command_handles_ends_no_trace() {
    let dir = scratch();
    // The command goes on, and what it leaves behind is waited for.
    let script = "trap 'echo handled' USR1 INT; kill -USR1 $PPID; kill -INT $PPID
        for n in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done; (sleep 1.3; echo late > late) > /dev/null &";
    let output = trace(dir.path(), &["--json", "t.json"], script).output().unwrap();
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "handled\nhandled\n");
    assert_eq!(told(&dir.path().join("t.json"), dir.path(), "output"), ["late: made"]);
}

#[test]
fn a_user_reads_what_was_just_written() {
    let dir = scratch();
    chown(dir.path(), Some(1), Some(1)).unwrap();
    copy_command(&dir.path().join("inarch"));
    // A linker works so: it writes a bit, and reads elsewhere.
    let program = "
import os, sys
file = os.open('file', os.O_RDWR | os.O_CREAT)
for turn in range(int(sys.argv[1])):
    os.pwrite(file, bytes([turn % 256]) * 100, turn * 100)
    assert os.pread(file, 100, turn // 2 * 100) == bytes([turn // 2 % 256]) * 100, turn
";
    let requests = |turns: &str| {
        let mut user = Command::new("setpriv");
        user.args(["--reuid=1", "--regid=1", "--clear-groups", "./inarch", "trace", "-q", "--json", "t.json", "--"]);
        user.args(["/usr/bin/python3", "-c", program, turns]).current_dir(dir.path()).env("TMPDIR", dir.path());
        assert_status(&user.output().unwrap(), 0);
        let line = trace_lines(&dir.path().join("t.json"), "requests").remove(0);
        ["getattr", "read", "getxattr", "write"].map(|kind| line["requests"][kind].as_u64().unwrap_or(0))
    };
    let (few, many) = (requests("1"), requests("1001"));
    // One that lies in two pages is two.
    assert!(many[3] - few[3] >= 1000, "{few:?} {many:?}");
    for kind in 0..3 {
        assert!(many[kind] < few[kind] + 100, "{few:?} {many:?}");
    }
}

/// A FUSE file system whose server has stopped, or a network's that is not there: only a command that uses it waits for it.
#[test]
fn a_mount_that_does_not_answer_is_not_waited_for() {
    if !rustix::process::geteuid().is_root() {
        return println!(
            "skipped: a_mount_that_does_not_answer_is_not_waited_for: only root mounts without fusermount3"
        );
    }
    let dir = scratch();
    let server = "
import ctypes, os, time
device = os.open('/dev/fuse', os.O_RDWR)
options = b'fd=%d,rootmode=40000,user_id=0,group_id=0' % device
assert ctypes.CDLL(None).mount(b'silent', b'silent', b'fuse', 6, options) == 0
open('mounted', 'w').close()
time.sleep(600)";
    fs::write(dir.path().join("server.py"), server).unwrap();
    let script = format!(
        "mkdir silent; python3 server.py & server=$!
        while [ ! -e mounted ]; do sleep 0.1; done
        for options in -q '-q --outside silent' '-q --by-process --json t.json' '-q --verify' '-q --skip-if-unchanged state'; do
            timeout -s KILL {} {INARCH} trace $options -- sh -c 'echo done'
        done
        kill -9 $server; umount -l silent",
        LONG.as_secs()
    );
    let words = ["--mount", "sh", "-c", &script];
    let output = Command::new("unshare").args(words).current_dir(dir.path()).env("PATH", programs()).output().unwrap();
    assert_eq!((stdout(&output), stderr(&output)), ("done\n".repeat(5), String::new()));
}
