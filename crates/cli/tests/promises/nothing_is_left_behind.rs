//! Promise: a kill -9 of the command, of QEMU or of a server leaves no process, socket or temporary file a second later.

use crate::support;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{INARCH, LONG, assert_status, scratch, script_program, stderr, within};

/// Starts a run that sleeps, in a working directory and a temporary directory of its own.
fn sleeping_run(dir: &Path) -> Child {
    let mut child = Command::new(INARCH)
        .args(["run", "--quiet", "--accel=tcg", "--overlay-dir", ".", "--", "sh", "-c", "echo up; sleep 1000"])
        .current_dir(dir)
        .env("TMPDIR", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut word = [0; 3];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut word).expect("the guest speaks");
    child
}

/// The children of `pid`, whichever of its threads started them.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()).collect()
}

fn alive(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state.rsplit(')').next().unwrap_or_default().trim().chars().next();
    !matches!(state, None | Some('Z' | 'X'))
}

fn kill(signal: &str, pid: u32) {
    support::host("kill", &[signal, &pid.to_string()], Path::new("/"));
}

fn files(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn after_kill_9_of_the_command() {
    let dir = scratch();
    let mut run = sleeping_run(dir.path());
    let started = children(run.id());
    assert!(!started.is_empty(), "no QEMU was found");
    kill("-9", run.id());
    run.wait().unwrap();
    assert!(within(LONG, || !started.iter().any(|pid| alive(*pid))), "QEMU is still there");
    assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn after_kill_9_of_qemu() {
    let dir = scratch();
    let run = sleeping_run(dir.path());
    let (id, started) = (run.id(), children(run.id()));
    for pid in &started {
        kill("-9", *pid);
    }
    let waited = std::thread::spawn(move || run.wait_with_output().unwrap());
    assert!(within(LONG, || !alive(id)), "the command is still there");
    let output = waited.join().unwrap();
    support::assert_one_line(&output, &["QEMU", "9"]);
    assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn after_a_signal_to_the_command() {
    let dir = scratch();
    let mut run = sleeping_run(dir.path());
    let started = children(run.id());
    kill("-TERM", run.id());
    let status = run.wait().unwrap();
    assert_eq!(status.code(), Some(143), "the command's own status: ended by SIGTERM");
    assert!(within(LONG, || !started.iter().any(|pid| alive(*pid))), "QEMU is still there");
    assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
}

/// In place of QEMU: a guest whose agent says HELLO, hears its request, and starts nothing. The file `heard` beside it says so.
const GUEST_THAT_STARTS_NOTHING: &str = r#"#!/usr/bin/env python3
import os, re, signal, sys
agent = next(int(n) for word in sys.argv for n in re.findall(r"socket,id=agent,fd=(\d+)", word))
os.write(agent, bytes([1, 4, 0, 0, 0, 3, 0, 0, 0]))
os.read(agent, 1)
os.close(os.open(os.path.join(os.path.dirname(__file__), "heard"), os.O_CREAT))
signal.pause()
"#;

#[test]
fn after_a_signal_before_the_command_is_started() {
    let (dir, place) = (scratch(), scratch());
    let (qemu, heard) = (place.path().join("qemu"), place.path().join("heard"));
    script_program(&qemu, GUEST_THAT_STARTS_NOTHING);
    for (signal, number) in [("-TERM", 15), ("-INT", 2), ("-HUP", 1)] {
        let mut run = Command::new(INARCH)
            .args(["run", "--accel=tcg", "--overlay-dir", ".", "--", "true"])
            .current_dir(dir.path())
            .envs([("INARCH_QEMU", &qemu), ("TMPDIR", &dir.path().into())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(within(LONG, || heard.exists()), "the request was not sent");
        let started = children(run.id());
        assert!(!started.is_empty(), "no QEMU was found");
        kill(signal, run.id());
        let has_ended = within(LONG, || run.try_wait().unwrap().is_some());
        let _ = run.kill();
        let output = run.wait_with_output().unwrap();
        assert!(has_ended, "{signal}: the run goes on");
        assert_eq!((output.status.code(), support::stdout(&output)), (Some(128 + number), String::new()), "{signal}");
        assert!(within(LONG, || !started.iter().any(|pid| alive(*pid))), "{signal}: QEMU is still there");
        assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
        fs::remove_file(&heard).unwrap();
    }
}

#[test]
fn after_kill_9_of_a_server() {
    let dir = scratch();
    let socket = dir.path().join("socket");
    let mut server = Command::new(INARCH)
        .args(["serve", "blk", "/usr/include", "--overlay-dir", ".", "--socket"])
        .arg(&socket)
        .current_dir(dir.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The guard that removes the socket is started as soon as there is one.
    let mut helpers = Vec::new();
    let is_guarded = || {
        helpers = children(server.id());
        socket.exists() && !helpers.is_empty()
    };
    assert!(within(LONG, is_guarded), "no socket, or nothing that removes it");
    kill("-9", server.id());
    server.wait().unwrap();
    assert!(within(LONG, || files(dir.path()).is_empty()), "{:?} is still there", files(dir.path()));
    assert!(within(LONG, || !helpers.iter().any(|pid| alive(*pid))));

    // The path is free for the next server, which removes it at its own end.
    let mut server = Command::new(INARCH)
        .args(["serve", "blk", "/usr/include", "--socket"])
        .arg(&socket)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(within(LONG, || socket.exists()));
    kill("-TERM", server.id());
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn after_a_failure() {
    let dir = scratch();
    let mut run = Command::new(INARCH);
    run.args(["run", "--quiet", "--accel=tcg", "--overlay-dir", ".", "--kernel", "/bin/true", "--", "true"]);
    let output = run.current_dir(dir.path()).env("TMPDIR", dir.path()).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert_eq!(files(dir.path()), Vec::<PathBuf>::new());
}

#[test]
fn after_kill_9_while_the_kernel_is_unpacked_for_the_first_time() {
    let cache = scratch();
    let kernels = cache.path().join("inarch/kernels");
    fs::create_dir_all(&kernels).unwrap();
    // Killed when the image is written and not on the disk, before it gets its name, and before the file beside it gets its own.
    for (call, number, whole) in [("fdatasync", 1, 0), ("linkat", 1, 0), ("linkat", 2, 1)] {
        let mut killed = Command::new("strace");
        killed.args(["-f", "-qq", "-o", "/dev/null", "-e"]).arg(format!("inject={call}:signal=KILL:when={number}"));
        killed.args([INARCH, "run", "--quiet", "--accel=tcg", "--root=none", "--", "true"]);
        let output = killed.env("XDG_CACHE_HOME", cache.path()).stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success(), "{call} {number}: {output:?}");
        let left = files(&kernels);
        let is_half = |path: &&PathBuf| path.file_name().unwrap().as_encoded_bytes().starts_with(b".");
        let half: Vec<_> = left.iter().filter(is_half).collect();
        assert!(half.is_empty(), "{call} {number}: {half:?}");
        assert_eq!(left.len(), whole, "{call} {number}: {left:?}");
    }
    let mut run = Command::new(INARCH);
    run.args(["run", "--quiet", "--accel=tcg", "--root=none", "--", "true"]).env("XDG_CACHE_HOME", cache.path());
    // Such a root has no commands.
    assert_status(&run.output().unwrap(), 127);
    assert_eq!(files(&kernels).len(), 2);
}
