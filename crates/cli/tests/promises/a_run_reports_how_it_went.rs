//! Promise: `--report` writes down how a run went, and a program that embeds a run gets the same as values, and can stop it.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use inarch_jobs::run::{self, RunEvent, RunRequest, Streams};
use inarch_jobs::{Events, JobError};
use inarch_vm::accel::AccelChoice;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::drawings::{assert_profile, drawn};
use crate::support::{
    INARCH, LONG, any_machine, assert_one_line, assert_status, host, inarch, scratch, stderr, within,
};

#[test]
fn in_a_file() {
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/file"), vec![b'x'; 100_000]).unwrap();
    let (tree, report) = (dir.path().join("tree"), dir.path().join("report.json"));
    let tree = format!("{}:/data,ro", tree.display());
    let report = report.to_str().unwrap();
    let picture = dir.path().join("timings.svg");
    let timings = format!("--timings={}", picture.display());
    let profile = dir.path().join("profile.svg");
    let live = ["virtiofs", "9p"].map(|way| format!("{}:/{way},rw,via={way}", dir.path().join("tree").display()));
    let words = [
        "run",
        "--quiet",
        any_machine(),
        "--stats",
        &timings,
        "--profile",
        profile.to_str().unwrap(),
        "--report",
        report,
        "--tree",
        &tree,
        "--tree",
        &live[0],
        "--tree",
        &live[1],
    ];
    let script = "cat /data/file /virtiofs/file /9p/file >/dev/null; exit 3";
    let output = inarch(words.into_iter().chain(["--", "sh", "-c", script]));
    assert_status(&output, 3);
    let value: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!((&value["ended"], &value["status"], &value["error"]), (&"exited".into(), &3.into(), &Value::Null));
    let seconds = |phase: &str| value["seconds"][phase].as_f64().unwrap();
    assert!(seconds("boot") > 0.0 && seconds("boot") + seconds("command") <= seconds("total"), "{value:#}");
    let trees = value["trees"].as_array().unwrap();
    let data = trees.iter().find(|tree| tree["destination"] == "/data").unwrap();
    assert_eq!(data["way"], "ext4");
    assert!(data["why"].as_str().unwrap().contains("snapshot"), "{data:#}");
    assert!(data["disk"]["file_bytes_read"].as_u64().unwrap() >= 100_000, "{data:#}");
    assert!(data["disk"]["reads"].as_u64().unwrap() > 0 && data["disk"]["bytes_written"] == 0, "{data:#}");

    assert_eq!(data["requests"], Value::Null);
    for way in ["virtiofs", "9p"] {
        let live = trees.iter().find(|tree| tree["destination"] == format!("/{way}")).unwrap();
        // At least to begin, to look the file up, and to read it.
        assert!(live["requests"].as_u64().unwrap() >= 3 && live["way"] == way && live["disk"].is_null(), "{live:#}");
    }

    // What was measured, in words and as figures.
    let said = String::from_utf8(output.stderr).unwrap();
    for expected in [
        "the command took ",
        "meanwhile the guest's processors waited ",
        " s of this machine's processors",
        "/data by ext4: ",
        "/virtiofs by virtiofs: ",
        "/9p by 9p: ",
        "REQUEST ",
        "load drivers, mount trees ",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    for way in ["virtiofs", "9p"] {
        let live = trees.iter().find(|tree| tree["destination"] == format!("/{way}")).unwrap();
        let read = live["operations"].as_array().unwrap().iter().find(|one| one["name"] == "read").unwrap();
        assert_eq!(read["bytes"], 100_000, "{live:#}");
        let seconds = |figure: &str| read[figure].as_f64().unwrap();
        assert!(seconds("seconds") >= seconds("longest") && seconds("longest") > 0.0, "{live:#}");
        let slowest = &live["slowest_files"][0];
        assert!(slowest["path"] == "file" && slowest["bytes"] == 100_000, "{live:#}");
        assert!(slowest["seconds"].as_f64().unwrap() >= seconds("seconds"), "with opening: {live:#}");
    }
    assert!(data["disk"]["read_seconds"].as_f64().unwrap() > 0.0 && data["operations"].is_null(), "{data:#}");
    let cpu = |kind: &str| value["cpu"][kind].as_f64().unwrap();
    assert!(cpu("user") + cpu("system") > 0.0, "{value:#}");
    let rest = |kind: &str| value["rest"][kind].as_f64().unwrap();
    assert!(rest("idle") >= 0.0 && rest("waiting_for_disks") >= 0.0, "{value:#}");
    // To boot takes longer than a tick of the clock.
    assert!(value["machine_cpu"].as_f64().unwrap() > 0.0, "{value:#}");
    let moments = ["machine", "kernel", "agent", "command", "end", "machine_ended"];
    let moments = moments.map(|name| value["moments"][name].as_f64().unwrap());
    let [_, kernel, agent, command, end, machine_ended] = moments;
    // The guest's clock, by which the agent began, may be fast.
    assert!(kernel < agent && agent <= command && command < end && machine_ended <= seconds("total"), "{value:#}");
    let picture = drawn(&picture);
    assert!(picture.contains("load drivers, mount trees"), "{picture}");

    assert_profile(&profile, &[">/data by ext4: ", ">/virtiofs by virtiofs:<", ">/9p by 9p:<", " read "]);

    // Where the report or the profile cannot be written nothing is run.
    let nowhere = dir.path().join("none/report.json");
    let output = inarch(["run", "--report", nowhere.to_str().unwrap(), "true"]);
    assert_one_line(&output, &["--report", "none/report.json", "No such file"]);
    let output = inarch(["run", "--profile", nowhere.to_str().unwrap(), "true"]);
    assert_one_line(&output, &["none/report.json", "No such file"]);
    // A run that fails is reported, too.
    let output = inarch(["run", "-q", "--report", report, "--root", "none", "--kernel", "/etc/passwd", "true"]);
    assert_status(&output, 125);
    let value: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!((&value["ended"], &value["status"]), (&"failed".into(), &Value::Null));
    assert!(value["error"].as_str().unwrap().contains("/etc/passwd"), "{value:#}");
}

#[test]
fn mounts_say_what_was_asked_of_them() {
    let dir = scratch();
    for name in ["tree", "point"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("tree/file"), "content").unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (tree, point, log) = (path("tree"), path("point"), path("log"));
    let (profile, options) = (path("profile.svg"), ["mount", "-b", "-q", "--stats", "--via", "fuse"]);
    assert_status(&inarch(options.into_iter().chain(["--profile", &profile, "--log", &log, &tree, &point])), 0);
    assert_eq!(fs::read(dir.path().join("point/file")).unwrap(), b"content");
    assert_status(&inarch(["umount", &point]), 0);
    // The server says it when the mount is gone.
    let end = Instant::now() + LONG;
    let said = loop {
        let said = fs::read_to_string(&log).unwrap();
        if said.contains("profile.svg\n") || Instant::now() > end {
            break said;
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(said.contains(" open ") && said.contains(" in the file system\n"), "{said}");
    assert_profile(profile.as_ref(), &[" open "]);
    // A log is of several mounts.
    assert!(said.lines().all(|line| line.contains(" inarch[")), "{said}");

    // What the kernel serves by itself is not counted.
    let output = inarch(["mount", "--stats", "--via", "kernel", &tree, &point]);
    assert_status(&output, 125);
    assert_one_line(&output, &["--via kernel", "--stats or --profile"]);
}

#[test]
fn servers_say_what_was_asked_of_them() {
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/file"), vec![b'x'; 300_000]).unwrap();
    let served = |protocol: &str, client: &dyn Fn(&Path)| {
        let (place, socket) = (dir.path().join(protocol), ["--socket", protocol]);
        let mut command = Command::new(INARCH);
        let profile = format!("{protocol}.svg");
        command.args(["serve", protocol, "tree", "--stats", "--overlay-dir", ".", "--profile", &profile]);
        // A disk that is a file has no socket, and bytes as soon as it is served.
        command.args(if protocol == "file" { &["file"][..] } else { &socket });
        command.current_dir(dir.path()).stdout(Stdio::null()).stderr(Stdio::piped());
        let server = command.spawn().unwrap();
        let is_there = || fs::metadata(&place).is_ok_and(|place| protocol != "file" || place.len() > 0);
        assert!(within(LONG, is_there), "the server does not come up");
        client(&place);
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        let ended = server.wait_with_output().unwrap();
        assert_status(&ended, 0);
        stderr(&ended)
    };
    let said = served("nbd", &|socket| {
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        host("nbdcopy", &[&uri, "copy"], dir.path());
    });
    // How many requests there are is up to the client. All blocks of the file are read.
    let line = said.lines().rev().nth(1).unwrap();
    assert_profile(&dir.path().join("nbd.svg"), &[" reads in "]);
    assert!(line.contains(" reads in ") && line.contains("(296 KiB of files, "), "{said}");
    served("file", &|_| {
        let read = host("debugfs", &["-R", "cat /file", "file"], dir.path());
        assert_eq!(read.len(), 300_000);
    });
    assert_profile(&dir.path().join("file.svg"), &[" reads in ", " KiB of files, "]);
    let said = served("9p", &|socket| {
        let mut stream = UnixStream::connect(socket).unwrap();
        // Tversion, Tattach of fid 0, Tgetattr of it (Linux's include/net/9p/9p.h).
        let version = [&8192u32.to_le_bytes()[..], &8u16.to_le_bytes(), b"9P2000.L"].concat();
        let attach = [&0u32.to_le_bytes()[..], &[0xff; 4], &[0; 4], &0u32.to_le_bytes()].concat();
        let attributes = [&0u32.to_le_bytes()[..], &0x7ffu64.to_le_bytes()].concat();
        for (kind, body) in [(100u8, version), (104, attach), (24, attributes)] {
            let length = u32::try_from(body.len() + 7).unwrap().to_le_bytes();
            stream.write_all(&[&length[..], &[kind], &1u16.to_le_bytes(), &body].concat()).unwrap();
            let mut head = [0; 7];
            stream.read_exact(&mut head).unwrap();
            assert_eq!(head[4], kind + 1, "{head:?}");
            let rest = u32::from_le_bytes(head[..4].try_into().unwrap()) - 7;
            stream.read_exact(&mut vec![0; rest as usize]).unwrap();
        }
    });
    assert!(said.contains(" in the file system\n") && said.contains(" getattr "), "{said}");
    assert_profile(&dir.path().join("9p.svg"), &[" getattr "]);
}

#[test]
fn a_trace_says_what_was_asked_of_it() {
    let dir = scratch();
    fs::write(dir.path().join("file"), "content").unwrap();
    let mut command = Command::new(INARCH);
    command.args(["trace", "--stats", "--profile", "trace.svg", "--", "cat", "file"]);
    let output = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
    assert_status(&output, 0);
    assert_eq!(output.stdout, b"content");
    let said = stderr(&output);
    assert!(said.contains(" requests: ") && said.contains("of processor time, "), "{said}");
    assert!(said.contains(" waited for files: trace.svg\n"), "{said}");
    assert_profile(&dir.path().join("trace.svg"), &[" lookup"]);
}

#[test]
fn a_log_tells_each_step_if_it_is_asked_for() {
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    let planned = |log: &str| {
        let mut command = Command::new(INARCH);
        command.args(["run", any_machine(), "-q", "--root", "none", "--tree", "tree:/tree", "--", "/none"]);
        command.env("INARCH_LOG", log).current_dir(dir.path()).stdin(Stdio::null()).output().unwrap()
    };
    let steps = ["inarch_jobs::device: a tree is scanned", "the machine is started", "a thread is confined"];
    let said = stderr(&planned("debug"));
    assert!(steps.iter().all(|step| said.contains(step)), "{said}");
    let said = stderr(&planned("inarch_vm=debug"));
    assert!(said.contains(steps[1]) && !said.contains(steps[0]) && !said.contains(steps[2]), "{said}");
    assert!(steps.iter().all(|step| !stderr(&planned("")).contains(step)));
    // A log that cannot be written ends nothing.
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(INARCH);
    command.args(["plan", "tree"]).env("INARCH_LOG", "debug").current_dir(dir.path()).stderr(full);
    assert!(command.output().unwrap().status.success());
    let output = planned("loud");
    assert_one_line(&output, &["INARCH_LOG=loud", "debug"]);
}

#[test]
fn through_no_link_that_another_user_planted() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: through_no_link_that_another_user_planted: not root");
        return;
    }
    let dir = scratch();
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::create_dir_all(dir.path().join("tree")).unwrap();
    fs::create_dir_all(dir.path().join("point")).unwrap();
    let (victim, link) = (dir.path().join("victim"), shared.join("link"));
    fs::write(&victim, "content").unwrap();
    symlink("../victim", &link).unwrap();
    lchown(&link, Some(65_534), None).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let link = link.to_str().unwrap();
    for words in [
        ["run", "--report", link, "--", "true"].map(String::from).to_vec(),
        vec!["run".into(), format!("--timings={link}"), "true".into()],
        vec!["mount".into(), path("tree"), path("point"), "--record".into(), link.into()],
        vec!["mount".into(), "-b".into(), path("tree"), path("point"), "--log".into(), link.into()],
    ] {
        assert_one_line(&inarch(words), &[link, "symbolic link", "user 65534"]);
        assert_eq!(fs::read(&victim).unwrap(), b"content");
    }
}

#[test]
fn to_a_program_that_embeds_it() {
    let (mut reader, output) = io::pipe().unwrap();
    let streams = Streams { input: None, error: output.try_clone().unwrap().into(), output: output.into() };
    let command = ["sh", "-c", "echo ready; sleep 100000"].map(Into::into).to_vec();
    let request = RunRequest { accel: AccelChoice::Tcg, hold: false, ..RunRequest::new(command, streams) };
    let (sender, events) = mpsc::channel();
    let running = run::start(request, Events::new(move |event| drop(sender.send(event)))).unwrap();
    let mut ready = [0; 6];
    reader.read_exact(&mut ready).unwrap();
    assert_eq!(&ready, b"ready\n");
    running.stop();
    let report = running.wait();
    assert!(matches!(report.result, Err(JobError::Stopped)), "{:?}", report.result);
    assert_eq!(report.status(), None);
    // The other end of its output is closed: nothing of it goes on.
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    let mut said = std::iter::from_fn(|| events.recv_timeout(LONG).ok());
    assert!(said.any(|event| matches!(event, RunEvent::Acceleration { fall_back: None, .. })));
}
