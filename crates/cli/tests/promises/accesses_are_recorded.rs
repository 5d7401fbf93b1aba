//! Promise: `inarch mount --record FILE` writes down each name that is looked for, found or not, what is opened, read and
//! changed, and what fails, every time and by whom; or, of a command, everything once. Nothing is left out: a program that is
//! faster than the file waits, and an incomplete record cannot be taken for a complete one.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::mounted::{Server, is_mounted, unmount};
use crate::support::{INARCH, assert_one_line, host, inarch, scratch};

/// The lines of a record.
fn record(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("record")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

/// The accesses of a record that is whole.
fn accesses(dir: &Path, level: &str) -> Vec<Value> {
    let mut lines = record(dir);
    assert_eq!(lines.remove(0), json!({"start": true, "level": level}));
    assert_eq!(lines.pop().unwrap(), json!({"end": true, "accesses": lines.len()}));
    lines
}

/// Whether a line has all of `part`.
fn has(line: &Value, part: &Value) -> bool {
    part.as_object().unwrap().iter().all(|(key, value)| line.get(key) == Some(value))
}

fn count(lines: &[Value], part: &Value) -> usize {
    lines.iter().filter(|line| has(line, part)).count()
}

fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[track_caller]
fn assert_in(lines: &[Value], parts: &[Value]) {
    for part in parts {
        assert!(count(lines, part) > 0, "{part} is not in:\n{}", text(lines));
    }
}

#[test]
fn what_is_done_in_a_mount_is_written_down() {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
    fs::write(dir.path().join("tree/sub/large"), vec![7; 1 << 20]).unwrap();
    fs::write(dir.path().join("tree/small"), "small").unwrap();
    let mut server = Server::start(dir.path(), "tree", &["--record", "record"]);
    let script = "cd point; cat sub/large small > /dev/null; for i in 1 2; do test ! -e missing; done; \
                  echo new > sub/new; mv sub/new moved; rm moved; ls sub > /dev/null; \
                  echo 'import os; print(os.getpid()); os.stat(\"missing.py\")' > ../stat.py; \
                  echo 'import os, threading; os.setxattr(\"small\", \"user.x\", b\"x\"); ' > ../thread.py; \
                  echo 'threading.Thread(target=lambda: os.access(\"by-a-thread\", os.F_OK)).start()' >> ../thread.py; \
                  fallocate -l 99 small; \
                  cd ..; (cd point; python3 ../thread.py & echo $!; wait; exec python3 ../stat.py) 2> /dev/null || true";
    let said = host("sh", &["-c", script], dir.path());
    let pids: Vec<u64> = said.lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(server.end("-TERM"), Some(0));
    let lines = accesses(dir.path(), "process");
    for (access, path) in [
        ("found", "sub"),
        ("open-read", "sub/large"),
        ("read", "sub/large"),
        ("read", "small"),
        ("create", "sub/new"),
        ("open-write", "sub/new"),
        ("write", "sub/new"),
        ("rename", "sub/new"),
        ("remove", "moved"),
        ("list", "sub"),
        ("allocate", "small"),
        ("set-xattr", "small"),
    ] {
        assert_in(&lines, &[json!({"access": access, "path": path})]);
    }
    let count = |access: &str, path: &str| count(&lines, &json!({"access": access, "path": path}));
    // Every time, and large files are read no more secretly than small ones.
    assert_eq!((count("absent", "missing"), count("read", "sub/large")), (2, 1), "{}", text(&lines));
    // The process, whichever of its threads it was.
    let by = |path: &str| lines.iter().find(|line| line["access"] == "absent" && line["path"] == path)?["pid"].as_u64();
    assert_eq!([by("by-a-thread"), by("missing.py")].map(Option::unwrap).as_slice(), pids, "{}", text(&lines));
}

#[test]
fn what_is_executed_is_told() {
    for options in [&["--record", "record"][..], &["--record", "record", "--ephemeral"]] {
        let dir = scratch();
        fs::create_dir(dir.path().join("tree")).unwrap();
        for name in ["script", "read"] {
            fs::write(dir.path().join("tree").join(name), "#!point/shell\nexit 0\n").unwrap();
            host("chmod", &["755", &format!("tree/{name}")], dir.path());
        }
        fs::copy("/bin/sh", dir.path().join("tree/shell")).unwrap();
        let mut server = Server::start(dir.path(), "tree", options);
        host("sh", &["-c", "point/script; sh point/read; cat point/read > /dev/null"], dir.path());
        assert_eq!(server.end("-TERM"), Some(0));
        let lines = accesses(dir.path(), "process");
        let count = |access: &str, path: &str| count(&lines, &json!({"access": access, "path": path}));
        assert_eq!((count("execute", "script"), count("execute", "shell")), (1, 1), "{}", text(&lines));
        assert_eq!((count("execute", "read"), count("open-read", "read")), (0, 2), "{}", text(&lines));
        // It opens the script again to read it.
        assert_eq!((count("open-read", "script"), count("open-read", "shell")), (2, 1), "{}", text(&lines));
    }
}

/// Does one thing of each kind, in a directory `d` with the files `a` and `b` and the symbolic link `l`.
const EACH_KIND: &str = r#"
import ctypes, errno, os
def fails(code, act, *arguments):
    try: act(*arguments)
    except OSError as error: assert error.errno == code, error
    else: raise AssertionError(act)
os.chdir("point/d")
fails(errno.ENOENT, os.stat, "absent")
fails(errno.ENOENT, os.open, "no/deeper", os.O_RDONLY)
assert open("a").read() == "content a"
assert os.readlink("l") == "../target"
assert sorted(os.listdir(".")) == ["a", "b", "l"]
os.statvfs(".")
fails(errno.ENODATA, os.getxattr, "a", "user.none")
os.setxattr("a", "user.x", b"value")
assert os.getxattr("a", "user.x") == b"value"
os.listxattr("a")
os.removexattr("a", "user.x")
os.chmod("a", 0o600)
source, target = os.open("a", os.O_RDONLY), os.open("copied", os.O_CREAT | os.O_WRONLY)
os.copy_file_range(source, target, 9)
os.posix_fallocate(target, 0, 99)
os.close(source), os.close(target)
os.truncate("copied", 5)
os.open("copied", os.O_WRONLY | os.O_TRUNC)
os.mkdir("new")
fails(errno.ENOTEMPTY, os.rmdir, "../d")
os.symlink("to", "s")
os.mkfifo("fifo")
os.link("a", "new/hard")
os.rename("b", "new/moved")
assert ctypes.CDLL(None).syscall(316, -100, b"a", -100, b"new/moved", 2) == 0
os.rename("new", "renamed")
assert open("renamed/moved").read() == "content a"
unnamed = os.open("renamed", os.O_TMPFILE | os.O_RDWR)
os.write(unnamed, b"x")
held = os.open("a", os.O_RDWR)
os.unlink("a")
os.write(held, b"x")
os.unlink("renamed/hard")
os.rmdir("../empty")
"#;

fn tree_of_each_kind(dir: &Path) {
    fs::create_dir_all(dir.join("tree/d")).unwrap();
    fs::create_dir_all(dir.join("tree/empty")).unwrap();
    fs::write(dir.join("tree/d/a"), "content a").unwrap();
    fs::write(dir.join("tree/d/b"), "content b").unwrap();
    std::os::unix::fs::symlink("../target", dir.join("tree/d/l")).unwrap();
}

/// What [`EACH_KIND`] does.
fn each_kind() -> Vec<Value> {
    vec![
        json!({"access": "absent", "path": "d/absent"}),
        json!({"access": "absent", "path": "d/no"}),
        json!({"access": "found", "path": "d/a", "size": 9}),
        json!({"access": "open-read", "path": "d/a", "size": 9}),
        json!({"access": "read-link", "path": "d/l", "target": "../target"}),
        json!({"access": "list", "path": "d", "mode": 0o40_755}),
        json!({"access": "statistics", "path": "d"}),
        json!({"access": "get-xattr", "path": "d/a", "attribute": "user.none", "error": "ENODATA"}),
        json!({"access": "set-xattr", "path": "d/a", "attribute": "user.x"}),
        json!({"access": "get-xattr", "path": "d/a", "attribute": "user.x"}),
        json!({"access": "list-xattrs", "path": "d/a"}),
        json!({"access": "remove-xattr", "path": "d/a", "attribute": "user.x"}),
        json!({"access": "set-attributes", "path": "d/a", "mode": 0o100_600}),
        json!({"access": "create", "path": "d/copied"}),
        json!({"access": "copy", "path": "d/a", "to": "d/copied"}),
        json!({"access": "allocate", "path": "d/copied"}),
        json!({"access": "truncate", "path": "d/copied", "size": 5}),
        json!({"access": "truncate", "path": "d/copied", "size": 0}),
        json!({"access": "open-write", "path": "d/copied"}),
        json!({"access": "create", "path": "d/new", "mode": 0o40_755}),
        json!({"access": "remove", "path": "d", "error": "ENOTEMPTY"}),
        json!({"access": "create", "path": "d/s", "target": "to"}),
        json!({"access": "create", "path": "d/fifo", "mode": 0o10_644}),
        json!({"access": "link", "path": "d/a", "to": "d/new/hard"}),
        json!({"access": "rename", "path": "d/b", "to": "d/new/moved"}),
        json!({"access": "exchange", "path": "d/a", "to": "d/new/moved"}),
        json!({"access": "rename", "path": "d/new", "to": "d/renamed"}),
        json!({"access": "open-read", "path": "d/renamed/moved"}),
        json!({"access": "create-unnamed", "path": "d/renamed", "nameless": true}),
        json!({"access": "open-write", "path": "d/a"}),
        json!({"access": "remove", "path": "d/a"}),
        json!({"access": "remove", "path": "d/renamed/hard"}),
        json!({"access": "remove", "path": "empty"}),
    ]
}

#[test]
fn every_kind_of_access_is_told_as_it_was() {
    for changes in ["host", "guest"] {
        let dir = scratch();
        tree_of_each_kind(dir.path());
        let mut server = Server::start(dir.path(), "tree", &["--record", "record", "--changes", changes]);
        host("python3", &["-c", EACH_KIND], dir.path());
        assert_eq!(server.end("-TERM"), Some(0));
        let lines = accesses(dir.path(), "process");
        // In this order, with others between.
        let mut left = &lines[..];
        for part in each_kind() {
            let at = left.iter().position(|line| has(line, &part));
            left = &left[at.unwrap_or_else(|| panic!("{part} is not in:\n{}", text(left))) + 1..];
        }
        assert_in(
            &lines,
            &[
                json!({"access": "read", "path": "d/a"}),
                json!({"access": "read", "path": "d/renamed/moved"}),
                json!({"access": "write", "path": "d/renamed", "nameless": true}),
                json!({"access": "write", "path": "d/a", "nameless": true}),
            ],
        );
        assert!(lines.iter().all(|line| line["pid"].is_u64()));
    }
}

#[test]
fn of_a_command_everything_is_told_once() {
    for options in [&["--changes", "guest"][..], &["--changes", "host"], &["--changes", "guest", "--ephemeral"]] {
        let dir = scratch();
        tree_of_each_kind(dir.path());
        fs::write(dir.path().join("tree/large"), vec![7; 1 << 20]).unwrap();
        let options = [&["--record", "record", "--record-level", "command"], options].concat();
        let mut server = Server::start(dir.path(), "tree", &options);
        let script = "for i in 1 2 3; do cat point/large > /dev/null; ls -l point > /dev/null; test ! -e point/nothing; \
                      done; test ! -e point/large/x";
        host("sh", &["-c", script], dir.path());
        host("python3", &["-c", EACH_KIND], dir.path());
        assert_eq!(server.end("-TERM"), Some(0));
        let lines = accesses(dir.path(), "command");
        let told: HashSet<String> = lines
            .iter()
            .map(|line| {
                let told = ["access", "path", "to", "nameless", "attribute", "target", "error"].map(|key| &line[key]);
                json!(told).to_string()
            })
            .collect();
        assert_eq!(told.len(), lines.len(), "{}", text(&lines));
        assert!(lines.iter().all(|line| line.get("pid").is_none()));
        assert_in(
            &lines,
            &[
                json!({"access": "open-read", "path": "large", "size": 1 << 20}),
                json!({"access": "absent", "path": "nothing"}),
                json!({"access": "list", "path": ""}),
                json!({"access": "found", "path": "d"}),
                json!({"access": "found", "path": "empty"}),
            ],
        );
        // The second length is a second time.
        let parts: Vec<Value> =
            each_kind().into_iter().filter(|part| !(part["access"] == "truncate" && part["size"] == 0)).collect();
        assert_in(&lines, &parts);
    }
}

#[test]
fn what_is_read_is_told_from_what_it_becomes() {
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/file"), "first").unwrap();
    let before = fs::metadata(dir.path().join("tree/file")).unwrap();
    let root = fs::metadata(dir.path().join("tree")).unwrap();
    let mut server = Server::start(dir.path(), "tree", &["--record", "record"]);
    host("sh", &["-c", "cat point/file; ls point; sleep 0.1; echo more >> point/file; cat point/file"], dir.path());
    let after = fs::metadata(dir.path().join("tree/file")).unwrap();
    assert_eq!(server.end("-TERM"), Some(0));
    let lines = accesses(dir.path(), "process");
    let identity = |access: &str, path: &str, metadata: &fs::Metadata| {
        let mtime = [metadata.mtime(), metadata.mtime_nsec()];
        let (inode, size) = (metadata.ino(), metadata.len());
        json!({"access": access, "path": path, "inode": inode, "size": size, "mtime": mtime, "mode": metadata.mode()})
    };
    let told = [("open-read", &before), ("found", &before), ("open-write", &before), ("open-read", &after)];
    assert_in(&lines, &told.map(|(access, metadata)| identity(access, "file", metadata)));
    assert_in(&lines, &[identity("list", "", &root)]);
}

#[test]
fn processes_that_look_at_once_are_told_apart() {
    const PROCESSES: usize = 8;
    const NAMES: usize = 300;
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/file"), "content").unwrap();
    let mut server = Server::start(dir.path(), "tree", &["--record", "record", "--changes", "guest"]);
    let script = format!(
        "import os, threading\n\
         def look():\n\
         \x20   for name in range({NAMES}): os.path.exists(f'point/{{os.getpid()}}.{{name}}')\n\
         \x20   open('point/file').read()\n\
         for _ in range({PROCESSES}):\n\
         \x20   if os.fork() == 0:\n\
         \x20       threads = [threading.Thread(target=look) for _ in range(2)]\n\
         \x20       [thread.start() for thread in threads]; [thread.join() for thread in threads]; os._exit(0)\n\
         for _ in range({PROCESSES}): print(os.wait()[0])\n"
    );
    let said = host("python3", &["-c", &script], dir.path());
    assert_eq!(server.end("-TERM"), Some(0));
    let lines = accesses(dir.path(), "process");
    let mut absent: HashMap<(String, u64), usize> = HashMap::new();
    for line in lines.iter().filter(|line| line["access"] == "absent") {
        *absent.entry((line["path"].as_str().unwrap().to_owned(), line["pid"].as_u64().unwrap())).or_default() += 1;
    }
    assert_eq!(absent.len(), PROCESSES * NAMES);
    for process in said.lines() {
        let pid: u64 = process.parse().unwrap();
        for name in 0..NAMES {
            assert_eq!(absent.get(&(format!("{pid}.{name}"), pid)), Some(&2), "{pid}.{name}");
        }
        let opened = count(&lines, &json!({"access": "open-read", "path": "file", "pid": pid}));
        assert_eq!(opened, 2, "{pid}");
    }
}

/// Looks for many names, and says how far it is.
const MANY: &str = r#"
import os, sys
for number in range(int(sys.argv[1])):
    os.path.exists(f"point/{number}")
    if number % 100 == 0: open("progress", "w").write(str(number))
"#;

#[test]
fn who_is_faster_than_the_record_waits_for_it() {
    // Far more than the pipe and the server's buffer hold.
    const NAMES: usize = 60_000;
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    host("mkfifo", &["record"], dir.path());
    let mut reader = Command::new("sh")
        .args(["-c", "read go; cat record"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe has a reader, which reads nothing yet.
    let held = fs::OpenOptions::new().read(true).write(true).open(dir.path().join("record")).unwrap();
    let mut server = Server::start(dir.path(), "tree", &["--record", "record"]);
    let mut seeker =
        Command::new("python3").args(["-c", MANY, &NAMES.to_string()]).current_dir(dir.path()).spawn().unwrap();
    let progress = || fs::read_to_string(dir.path().join("progress")).unwrap_or_default();
    let mut before = String::new();
    while before.is_empty() || before != progress() {
        before = progress();
        std::thread::sleep(Duration::from_secs(1));
        assert!(seeker.try_wait().unwrap().is_none(), "it did not wait");
    }
    drop(reader.stdin.take());
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines().map(Result::unwrap);
    let ends = std::thread::spawn(move || {
        assert!(seeker.wait().unwrap().success());
        let status = server.end("-TERM");
        drop(held);
        status
    });
    let mut found = HashSet::new();
    let mut accesses = 0;
    let last = loop {
        let line: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
        match line["access"].as_str() {
            Some("absent") => assert!(found.insert(line["path"].as_str().unwrap().to_owned())),
            None if line["end"] == true => break line,
            _ => {}
        }
        accesses += u64::from(line["access"].is_string());
    };
    assert_eq!(last, json!({"end": true, "accesses": accesses}));
    assert!((0..NAMES).all(|name| found.contains(&name.to_string())));
    assert_eq!((lines.next(), ends.join().unwrap()), (None, Some(0)));
    reader.wait().unwrap();
}

#[test]
fn a_record_that_does_not_fit_is_told_and_ends_the_work() {
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::create_dir(dir.path().join("point")).unwrap();
    fs::create_dir(dir.path().join("small")).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert_one_line(
        &inarch(["mount", &path("tree"), &path("point"), "--record", "/dev/full"]),
        &["/dev/full", "No space"],
    );
    assert!(!is_mounted(dir.path()));
    host("mount", &["-t", "tmpfs", "-o", "size=64k", "tmpfs", "small"], dir.path());
    let mut server = Command::new(INARCH)
        .args(["mount", "tree", "point", "--record", "small/record"])
        .current_dir(dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("mounted "), "{line}");
    let script = "import os, itertools\n\
                  for number in itertools.count():\n\
                  \x20   try: os.stat(f'point/{number}')\n\
                  \x20   except FileNotFoundError: pass\n\
                  \x20   except OSError as error: print(error.errno); break\n";
    assert_eq!(host("python3", &["-c", script], dir.path()).trim(), libc::EIO.to_string());
    // Nothing else is done either, and the server says why at once.
    assert!(fs::write(dir.path().join("point/new"), "x").is_err() && !dir.path().join("tree/new").exists());
    while !line.contains("the record is not complete") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it does not say so");
    }
    assert!(line.contains("small/record") && line.contains("No space left"), "{line}");
    unmount(&dir.path().join("point"));
    assert_eq!(server.wait().unwrap().code(), Some(125));
    line.clear();
    said.read_to_string(&mut line).unwrap();
    assert!(line.contains("the record is not complete"), "{line}");
    let text = fs::read_to_string(dir.path().join("small/record")).unwrap();
    unmount(&dir.path().join("small"));
    assert!(text.starts_with("{\"start\":true") && !text.contains("\"end\":true"), "{}", &text[text.len() - 200..]);
}

#[test]
fn the_record_of_a_server_that_was_killed_has_no_end() {
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    let mut server = Server::start(dir.path(), "tree", &["--record", "record"]);
    host("sh", &["-c", "test ! -e point/missing"], dir.path());
    // It is written down a moment later.
    while record(dir.path()).iter().all(|line| line["path"] != "missing") {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.end("-KILL"), None);
    assert!(record(dir.path()).iter().all(|line| line.get("end").is_none()));
}

#[test]
fn a_level_is_that_of_a_record() {
    let output = inarch(["mount", "/", "/", "--record-level", "command"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--record <FILE>"), "{output:?}");
}
