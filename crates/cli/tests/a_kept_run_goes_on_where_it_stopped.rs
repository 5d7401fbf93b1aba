//! Promise: `run --keep NAME` goes on where it stopped, over the same trees only, for one at a time; `runs` lists what is
//! kept and `discard` takes it away.

#[path = "support/kept.rs"]
mod kept;
mod support;

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use kept::Scene;
use support::{assert_one_line, assert_status, host, stderr, stdout, within};

#[test]
fn what_was_written_is_there_the_next_time() {
    let scene = Scene::new();
    let first = "cat /data/f1; echo more >> /data/f1; mkdir -p /new/dir; echo x > /new/dir/x; rm /data/f2";
    let output = scene.run("one", first);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "file 1\n");
    // The second command says nothing of trees, and comes from elsewhere.
    let mut again = scene.inarch(["run", "-q", "--accel=tcg", "--keep", "one", "--", "/bin/sh", "-c"]);
    let output = again.arg("cat /data/f1 /new/dir/x; ls /data; exit 3").current_dir("/").output().unwrap();
    assert_status(&output, 3);
    assert!(stdout(&output).starts_with("file 1\nmore\nx\nbig\nf1\nf3\n"), "{}", stdout(&output));
    assert_eq!(fs::read(scene.host("data/f1")).unwrap(), b"file 1\n", "the host's file is as it was");

    let listed = stdout(&scene.call(["runs"]));
    let line = listed.lines().find(|line| line.starts_with("one ")).unwrap();
    assert!(line.contains("clean") && line.contains("  3  ") && line.contains("cat /data/f1"), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&stdout(&scene.call(["runs", "--json"]))).unwrap();
    assert_eq!((json[0]["name"].as_str(), json[0]["state"].as_str()), (Some("one"), Some("clean")));
    assert!(json[0]["overlay_bytes"].as_u64().unwrap() > 0);
    assert_eq!(json[0]["trees"][0]["destination"], "/");

    // Other trees are not those of the run.
    let other = scene.call(["run", "-q", "--accel=tcg", "--keep", "one", "--root", "/usr/share/doc", "--", "true"]);
    assert_one_line(&other, &["other trees", "--root"]);

    // A tree that changed is refused, and its differences are named.
    fs::write(scene.host("data/f3"), "changed").unwrap();
    fs::write(scene.host("data/added"), "").unwrap();
    fs::remove_file(scene.host("data/f1")).unwrap();
    let refused = scene.run("one", "true");
    assert_one_line(
        &refused,
        &["1 added, 1 removed, 1 changed", "added data/added", "removed data/f1", "changed data/f3", "--stale"],
    );
    assert!(stdout(&scene.call(["runs"])).contains("host tree changed"));
    // What the last command was is what really ran.
    assert!(stdout(&scene.call(["runs"])).contains("  3  "));

    // Over what it was: what changed reads as an error, what the guest wrote is its own.
    let mut stale = scene.inarch(["run", "-q", "--accel=tcg", "--keep", "one", "--stale", "--", "/bin/sh", "-c"]);
    let output = stale.arg("cat /new/dir/x; cat /data/f3").output().unwrap();
    assert_status(&output, 1);
    assert_eq!(stdout(&output), "x\n");

    assert_status(&scene.call(["discard", "one"]), 0);
    assert_eq!(stdout(&scene.call(["runs"])), "");
    assert_one_line(&scene.call(["diff", "one"]), &["no kept run 'one'"]);
    assert_one_line(&scene.call(["discard", "one"]), &["no kept run 'one'"]);
}

#[test]
fn one_command_has_it_at_a_time() {
    let scene = Scene::new();
    let mut first = scene.run_command("two", "echo up; sleep 100").stdout(Stdio::piped()).spawn().unwrap();
    let mut word = [0; 3];
    std::io::Read::read_exact(first.stdout.as_mut().unwrap(), &mut word).expect("the guest speaks");
    let pid = first.id().to_string();
    for second in [
        scene.run("two", "true"),
        scene.call(["diff", "two"]),
        scene.call(["apply", "two"]),
        scene.call(["discard", "two"]),
    ] {
        assert_one_line(&second, &["'two' is in use", &pid]);
    }
    assert!(stdout(&scene.call(["runs"])).contains("in use"));
    // A killed run can be gone on with at once.
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(within(Duration::from_secs(2), || scene.call(["diff", "two"]).status.success()), "the lock stays");
    assert!(stdout(&scene.call(["runs"])).contains("killed"));
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let scene = Scene::new();
    for name in ["", "..", "a/b", ".x", "a b"] {
        assert_one_line(&scene.run(name, "true"), &["name"]);
    }
    let output = scene.call(["run", "--stale", "--", "true"]);
    assert_one_line(&output, &["--keep"]);
    // Archives, missing trees and options that do not fit are refused, and leave nothing.
    host("tar", &["-cf", "a.tar", "-C", "root", "etc"], scene.path());
    for refused in [
        &["--root", "a.tar"][..],
        &["--root", "root", "--tree", "missing:/m"],
        &["--root", "root", "--epoch", "1"],
        &["--root", "root", "--via", "erofs"],
        &["--root", "root", "--mem", "1K"],
    ] {
        let output = scene.call([&["run", "-q", "--accel=tcg", "--keep", "x"], refused, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(125), "{refused:?}: {}", stderr(&output));
        assert_eq!(fs::read_dir(scene.path().join("state")).unwrap().count(), 0, "{refused:?} left something");
    }
    // A run whose guest never came up is not kept.
    let output = scene.call([
        "run",
        "-q",
        "--accel=tcg",
        "--keep",
        "x",
        "--kernel",
        "/bin/true",
        "--root",
        "/usr/share/doc",
        "--",
        "true",
    ]);
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    assert_eq!(stdout(&scene.call(["runs"])), "");
    assert_eq!(fs::read_dir(scene.path().join("state")).unwrap().count(), 0);
}
