//! A cache that goes by virtiofs is a directory that all have, with locks that all see: guests and this machine's programs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::caches_outlive_the_guest::Scene;
use crate::support::{LONG, any_machine, assert_one_line, assert_status, host, within};

/// A guest that does what its input says, line by line, and says a word when it has done it.
struct Guest {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Guest {
    fn new(scene: &Scene) -> Guest {
        let words =
            ["run", "-q", any_machine(), "--cache", "own=/srv/own,via=virtiofs", "sh", "-c", "cd /srv/own && exec sh"];
        let mut command = scene.command("one", &words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Guest { child, said }
    }

    fn tell(&mut self, script: &str) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(script.as_bytes()).and_then(|()| input.write_all(b"\n")).and_then(|()| input.flush()).unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, script: &str) -> String {
        self.tell(script);
        self.hear()
    }

    /// As kill -9 does it.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Takes an exclusive lock of fcntl(2) on the first byte, waits for it, says so, and keeps it until its input ends.
const TAKE: &str = "/usr/bin/python3 -c 'import fcntl, sys, time
f = open(\"posix\", \"r+\")
fcntl.lockf(f, fcntl.LOCK_EX, 1)
print(\"NAME has it\", flush=True)
time.sleep(10000)' < /dev/null &";

#[test]
fn guests_and_the_host_contend_for_locks() {
    let scene = Scene::new();
    let mut first = Guest::new(&scene);
    assert_eq!(first.ask("echo 0123456789 > posix; : > whole; echo ready"), "ready");
    let shown = scene.inarch("one", &["cache", "show", "own", "--json"]);
    let report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let live = std::path::PathBuf::from(report["directory"].as_str().unwrap()).join("live");
    assert_eq!(fs::read_to_string(live.join("posix")).unwrap(), "0123456789\n");
    // It is in use.
    assert_one_line(&scene.inarch("one", &["cache", "remove", "own"]), &["a guest has it live"]);

    // The host has flock(2) on a file, and several processes of a guest wait for it; everything else goes on.
    let whole = File::options().read(true).write(true).open(live.join("whole")).unwrap();
    flock(&whole, FlockOperation::LockExclusive).unwrap();
    let waits =
        "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do flock whole sh -c 'echo x >> got' & done; sleep 1; echo started";
    assert_eq!(first.ask(waits), "started");
    let others = "for n in $(seq 50); do echo $n > other$n; cat other$n > /dev/null; mv other$n moved$n; done; flock -n whole true || echo busy";
    assert_eq!(first.ask(others), "busy");
    assert!(!live.join("got").exists());
    flock(&whole, FlockOperation::Unlock).unwrap();
    assert!(within(LONG, || fs::read(live.join("got")).is_ok_and(|text| text.len() == 2 * 12)));
    assert_eq!(first.ask("wait; echo all"), "all");

    // A guest has a lock of fcntl(2); another guest and the host see it.
    let mut second = Guest::new(&scene);
    assert_eq!(first.ask(&TAKE.replace("NAME", "first")), "first has it");
    let test = "/usr/bin/python3 -c 'import fcntl
f = open(\"posix\", \"r+\")
try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1); print(\"free\")
except OSError: print(\"taken\")'";
    assert_eq!(second.ask(test), "taken");
    assert_eq!(host("sh", &["-c", test], &live).trim(), "taken");
    // Another byte is free.
    assert_eq!(host("sh", &["-c", &test.replace("LOCK_NB, 1)", "LOCK_NB, 1, 5)")], &live).trim(), "free");
    second.tell(&TAKE.replace("NAME", "second"));
    assert_eq!(second.ask("sleep 1; ls posix"), "posix");
    // A third guest is killed while it waits, the first while it holds: the second has it.
    let mut third = Guest::new(&scene);
    assert_eq!(third.ask("echo ready"), "ready");
    third.tell(&TAKE.replace("NAME", "third"));
    assert_eq!(third.ask("sleep 1; echo waits"), "waits");
    third.kill();
    first.kill();
    assert_eq!(second.hear(), "second has it");
    assert_eq!(host("sh", &["-c", test], &live).trim(), "taken");
    second.kill();
    assert!(within(LONG, || host("sh", &["-c", test], &live).trim() == "free"));
    // The next run sees the same directory, in which no lock is held any more.
    let output = scene.inarch(
        "one",
        &[
            "run",
            "-q",
            any_machine(),
            "--cache",
            "own=/srv/own,via=virtiofs,ro",
            "sh",
            "-c",
            "cat /srv/own/posix; echo x > /srv/own/new",
        ],
    );
    assert_status(&output, 2);
    assert!(!live.join("new").exists());
    assert_status(&scene.inarch("one", &["cache", "remove", "own"]), 0);
}

#[test]
fn a_locking_share_is_for_the_files_of_this_machine() {
    let scene = Scene::new();
    let socket = scene.at("socket");
    let words = ["serve", "virtiofs", ".", "--socket", socket.to_str().unwrap(), "--locks", "host", "--ephemeral"];
    assert_one_line(&scene.inarch("one", &words), &["--locks host", "overlay"]);
    for cache in ["own=/x,via=virtiofs,private", "own=/x,via=9p"] {
        assert_one_line(&scene.inarch("one", &["run", "--cache", cache, "true"]), &["via=virtiofs"]);
    }
}
