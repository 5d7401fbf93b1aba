//! Promise: a host file that changes under a run reads in the guest as it was, if it is held, or else as an I/O error; it is
//! named at the end; and there is never a mixture.

use crate::support;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::support::mounted::Server;
use crate::support::served::Served;
use crate::support::{INARCH, LONG, any_machine, host, scratch, stderr};
use rustix::fs::inotify;

/// Starts a script in a guest that says "ready", and waits for that.
fn start(directory: &Path, options: &[&str], script: &str) -> Child {
    let mut child = Command::new(INARCH)
        .args(["run", any_machine()])
        .args(options)
        .args(["--", "sh", "-c", script])
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    child
}

/// Lets it go on with its input.
fn go_on(mut child: Child) -> Output {
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn changed_and_removed_files() {
    let dir = scratch();
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("rewritten"), "old content\n".repeat(1000)).unwrap();
    std::fs::write(file("removed"), "old content\n").unwrap();
    std::fs::write(file("untouched"), "old content\n").unwrap();
    let script =
        "echo ready; read go; cat untouched; cat rewritten >/dev/null; echo $?; cat removed >/dev/null; echo $?";
    let elsewhere = scratch();
    let report = elsewhere.path().join("report.json");
    let child = start(dir.path(), &["--no-hold", "--report", report.to_str().unwrap()], script);
    std::fs::write(file("rewritten"), "new content\n".repeat(1000)).unwrap();
    std::fs::remove_file(file("removed")).unwrap();
    let output = go_on(child);
    support::assert_status(&output, 0);
    assert_eq!(support::stdout(&output), "old content\n1\n1\n");
    let text = stderr(&output);
    assert!(text.contains("Input/output error"), "{text}");
    for name in ["rewritten", "removed"] {
        let named =
            text.lines().any(|line| line.starts_with("inarch: ") && line.contains(file(name).to_str().unwrap()));
        assert!(named, "{name} is not named: {text}");
    }
    assert!(!text.lines().any(|line| line.starts_with("inarch: ") && line.contains("untouched")), "{text}");

    let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let changed: Vec<_> = report["changed"].as_array().unwrap().iter().map(|one| &one["path"]).collect();
    assert_eq!(changed, [file("rewritten"), file("removed")].map(|path| path.to_str().unwrap().to_owned()).each_ref());
    assert_eq!(report["changed"][1]["reason"], "it is gone");
    assert_eq!(report["notes"].as_array().unwrap().len(), 2, "{report:#}");
}

/// Tells when somebody who read `file` closes it.
fn watch(file: &Path) -> OwnedFd {
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
    inotify::add_watch(&watch, file, inotify::WatchFlags::CLOSE_NOWRITE).unwrap();
    watch
}

fn is_told(watch: &OwnedFd) -> bool {
    rustix::io::read(watch, &mut [0; 256]).is_ok()
}

#[test]
fn changed_and_removed_files_of_a_project() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    ["project/.git", "project/src/deep", "project/out", "asked", "other"]
        .iter()
        .for_each(|name| fs::create_dir_all(at(name)).unwrap());
    let names = ["project/top.c", "project/src/rewritten.c", "project/src/removed.c", "project/src/deep/moved.c"];
    for name in names.iter().copied().chain(["project/same.c", "project/out/built", "asked/file", "other/file"]) {
        fs::write(at(name), format!("old {name}\n").repeat(100)).unwrap();
    }
    // Of a tree that is held by request all is held.
    fs::write(at("project/.gitignore"), "out/\n").unwrap();
    fs::write(at("asked/.gitignore"), "*\n").unwrap();
    // The largest are held last.
    let watches = ["project/last", "asked/last"].map(|name| {
        let mut file = File::create(at(name)).unwrap();
        file.write_all(&[b'x'; 100_000]).unwrap();
        // Its blocks are there, so that nobody looks for holes.
        file.sync_all().unwrap();
        drop(file);
        watch(&at(name))
    });
    let script = "echo ready; read go; cd ..; for file in top.c src/*.c src/deep/*.c same.c /mnt/asked/file; do
        tail -n1 $file && wc -l <$file; done; cat out/built; cat /mnt/other/file";
    let asked = format!("--tree={}:/mnt/asked,hold", at("asked").display());
    let other = format!("--tree={}:/mnt/other,ro", at("other").display());
    let child = start(&at("project/src"), &[&asked, &other], script);
    for watch in &watches {
        assert!(support::within(LONG, || is_told(watch)), "the files are not held");
    }
    for name in ["project/top.c", "project/src/rewritten.c", "project/out/built", "asked/file", "other/file"] {
        fs::write(at(name), "new\n".repeat(200)).unwrap();
    }
    fs::remove_file(at("project/src/removed.c")).unwrap();
    fs::rename(at("project/src/deep"), at("project/src/else")).unwrap();
    let output = go_on(child);
    support::assert_status(&output, 1);
    let expected = ["project/top.c", "project/src/removed.c", "project/src/rewritten.c", "project/src/deep/moved.c"];
    let expected = expected.into_iter().chain(["project/same.c", "asked/file"]);
    assert_eq!(support::stdout(&output), expected.map(|name| format!("old {name}\n100\n")).collect::<String>());
    let text = stderr(&output);
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("inarch: ")).collect();
    let named = |name: &str, what: &str| {
        lines.iter().any(|line| line.contains(at(name).to_str().unwrap()) && line.contains(what))
    };
    assert!(named("project/top.c", "and 1 more changed on the host; the guest read them as they were"), "{text}");
    assert!(named("asked/file", "changed on the host; the guest read it as it was"), "{text}");
    assert!(named("project/out/built", "I/O error") && named("other/file", "I/O error"), "{text}");
    assert_eq!(lines.len(), 4, "{text}");
}

/// A program that is replaced while it is needed ends in an I/O error or SIGBUS: nothing else says why.
#[test]
fn a_quiet_run_that_fails_names_them_too() {
    let dir = scratch();
    std::fs::copy("/bin/cat", dir.path().join("program")).unwrap();
    let mut child = Command::new(INARCH)
        .args(["run", "-q", any_machine(), "--no-hold", "sh", "-c", "echo ready; read go; exec ./program /dev/null"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    std::fs::copy("/bin/ls", dir.path().join("new")).unwrap();
    std::fs::rename(dir.path().join("new"), dir.path().join("program")).unwrap();
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    let text = stderr(&output);
    let named = text.lines().any(|line| line.starts_with("inarch: ") && line.contains("program"));
    assert!(named, "{text}");
}

#[test]
fn a_file_whose_file_system_caches_attributes() {
    let dir = scratch();
    fs::create_dir(dir.path().join("source")).unwrap();
    let file = dir.path().join("source/file");
    fs::write(&file, vec![b'a'; 200 << 10]).unwrap();
    // Its kernel asks the server for no attributes that it has, for a day.
    let mut mount = Server::start(dir.path(), "source", &["--via", "fuse", "--changes", "guest"]);
    let seen = || fs::metadata(dir.path().join("point/file")).unwrap().modified().unwrap();
    let before = seen();
    let mut server = Served::start(dir.path(), &["serve", "nbd", "point", "--socket", "socket"]);
    let uri = format!("nbd+unix:///?socket={}/socket", dir.path().display());
    let read = |to: &str| Command::new("nbdcopy").args([&uri, to]).current_dir(dir.path()).output().unwrap();
    support::assert_status(&read("first"), 0);
    fs::write(&file, vec![b'b'; 200 << 10]).unwrap();
    assert_eq!(seen(), before, "the kernel has asked, and this proves nothing");
    let failed = read("second");
    assert!(!failed.status.success() && stderr(&failed).contains("Input/output error"), "{failed:?}");
    host("kill", &["-TERM", &server.child.id().to_string()], dir.path());
    let mut said = String::new();
    server.stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("point/file"), "{said}");
    server.child.wait().unwrap();
    mount.end("-TERM");
}
