//! Promise: `run --keep NAME` continues where it stopped, over the same trees only, for one command at a time; `runs`
//! lists kept runs and `discard` deletes them.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Output, Stdio};

use crate::support::kept::Scene;
use crate::support::{INARCH, LONG, any_machine, assert_one_line, assert_status, host, stderr, stdout, within};

#[test]
fn what_was_written_is_there_the_next_time() {
    let scene = Scene::new();
    let first = "cat /data/f1; echo more >> /data/f1; mkdir -p /new/dir; echo x > /new/dir/x; rm /data/f2";
    // Beside what is kept the guest has a directory of the host's, at a place that the run makes for it.
    let live = scene.host("../live");
    fs::create_dir(&live).unwrap();
    let live = format!("{}:/mounted/live", live.display());
    let line = ["run", "-q", any_machine(), "--keep", "one", "--root", "root", "-v", &live, "--", "/bin/sh", "-c"];
    let output = scene.inarch(line).arg(first).output().unwrap();
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "file 1\n");
    let changed = stdout(&scene.call(["diff", "one"]));
    assert!(changed.contains("/new/dir/x") && !changed.contains("/mounted"), "{changed}");
    // The second command says nothing of trees, and comes from elsewhere.
    let mut again = scene.inarch(["run", "-q", any_machine(), "--keep", "one", "--", "/bin/sh", "-c"]);
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
    let other = scene.call(["run", "-q", any_machine(), "--keep", "one", "--root", "/usr/share/doc", "--", "true"]);
    assert_one_line(&other, &["other trees", "--root"]);

    // What the host changes meanwhile is there the next time, beside what the run changed.
    fs::write(scene.host("data/f3"), "host").unwrap();
    fs::write(scene.host("data/added"), "added").unwrap();
    fs::remove_file(scene.host("data/f4")).unwrap();
    let output = scene.run("one", "cat /data/f1 /data/f3 /data/added /new/dir/x; ls /data; echo again > /data/f3");
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "file 1\nmore\nhostaddedx\nadded\nbig\nf1\nf3\nf5\nf5too\nsub\n");
    assert_eq!(stderr(&output), "", "nothing is in conflict");

    // What both changed is named, and the guest has its own.
    fs::write(scene.host("data/f1"), "the host's").unwrap();
    fs::write(scene.host("data/f2"), "the host's").unwrap();
    let conflict =
        scene.inarch(["run", any_machine(), "--keep", "one", "--", "/bin/sh", "-c", "cat /data/f1; ls /data/f2"]);
    let output = { conflict }.output().unwrap();
    assert_status(&output, 1);
    assert_eq!(stdout(&output), "file 1\nmore\n", "the host's part of a changed file is kept in the run");
    let said = stderr(&output);
    assert!(said.contains("changed 2 of the paths") && said.contains("/data/f1 (changed)"), "{said}");
    assert!(said.contains("/data/f2 (changed)") && said.contains("inarch diff one"), "{said}");
    let said = stderr(&scene.call(["diff", "one"]));
    assert!(said.contains("/data/f1: this machine changed it, too") && said.contains("/data/f2: "), "{said}");
    let one = stderr(&scene.call(["diff", "one", "/data/f2"]));
    assert!(one.lines().count() == 1 && one.contains("/data/f2: "), "{one}");
    let refused = scene.call(["apply", "one", "/data/f1"]);
    assert_status(&refused, 1);
    let named = stderr(&refused).lines().filter(|line| line.contains("data/f1")).count();
    assert_eq!(named, 1, "a conflict is named once: {}", stderr(&refused));
    assert!(stderr(&refused).contains("inarch apply --force one PATH"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("data/f1: left alone: it changed on the host, too"), "{}", stderr(&refused));
    assert_eq!(fs::read(scene.host("data/f1")).unwrap(), b"the host's");

    // A conflict has ended where the run has this machine's version.
    host("touch", &["-d", "2020-01-01", "data/f1"], &scene.host(""));
    host("tar", &["-C", "root", "--format=posix", "-cf", "archive", "data/f1"], scene.path());
    let archive = fs::File::open(scene.path().join("archive")).unwrap();
    let settle = ["run", "-q", any_machine(), "--keep", "one", "--", "/bin/busybox", "tar", "-C", "/", "-xf", "-"];
    assert_status(&scene.inarch(settle).stdin(archive).output().unwrap(), 0);
    let left = scene.call(["diff", "one"]);
    assert!(!stdout(&left).contains("/data/f1\n") && !stderr(&left).contains("/data/f1"), "{left:?}");
    assert!(stderr(&left).contains("/data/f2: this machine changed it, too"), "{left:?}");

    assert_status(&scene.call(["discard", "one"]), 0);
    let none = scene.call(["runs"]);
    assert_status(&none, 0);
    assert!(stdout(&none).is_empty() && stderr(&none).contains("no runs are kept"), "{none:?}");
    let none = scene.call(["runs", "--json"]);
    assert_eq!((stdout(&none), stderr(&none)), ("[]\n".to_owned(), String::new()));
    assert_one_line(&scene.call(["diff", "one"]), &["no kept run 'one'"]);
    assert_one_line(&scene.call(["discard", "one"]), &["no kept run 'one'"]);
}

/// Parts of files stay in the host's files or in what one of several commands wrote; none of it is copied.
#[test]
fn bytes_stay_where_they_are() {
    let scene = Scene::new();
    let first = "set -e; cd /data; dd if=/dev/urandom of=big bs=4096 count=1 seek=10 conv=notrunc 2>/dev/null; mv f1 moved; ln f2 f2too; \
        cp big copy; sync; rm copy; chmod 600 f3; mv sub renamed; echo more >> f5; mkfifo fifo; ln -s f2 link; \
        /bin/busybox md5sum big; ls -l f2 | /bin/busybox cut -c1-20";
    let output = scene.run("three", first);
    assert_status(&output, 0);
    let first = stdout(&output);
    let bytes = |name: &str| {
        let json: serde_json::Value = serde_json::from_str(&stdout(&scene.call(["runs", "--json"]))).unwrap();
        json[0][name].as_u64().unwrap()
    };
    // The journal, and the blocks of what is gone, were given back.
    assert!(bytes("overlay_bytes") < 1_000_000, "{} bytes are kept", bytes("overlay_bytes"));
    assert_eq!((bytes("changed"), bytes("deleted")), (10, 3), "{}", stdout(&scene.call(["diff", "three"])));
    let second = "set -e; cd /data; /bin/busybox md5sum big; ls -l f2 | /bin/busybox cut -c1-20; cat moved renamed/below link f5too; \
        ls -l f3 | /bin/busybox cut -c1-10; test -p fifo; \
        dd if=/dev/zero of=big bs=4096 count=1 seek=20 conv=notrunc 2>/dev/null; echo most >> f5; /bin/busybox md5sum big";
    let output = scene.run("three", second);
    assert_status(&output, 0);
    let said = stdout(&output);
    let (same, rest) = said.split_at(first.len());
    assert_eq!(same, first);
    let (rest, sum) = rest.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(rest, "file 1\nbelow\nfile 2\nfile 5\nmore\n-rw-------");
    // A third command has parts of the host's file and of what both wrote; of what only attributes changed the host's new bytes.
    fs::write(scene.host("data/f3"), "the host's\n").unwrap();
    let output = scene.run("three", "cd /data; /bin/busybox md5sum big; cat f5 f3; ls -l f3 | /bin/busybox cut -c1-10");
    assert_eq!(stdout(&output), format!("{sum}\nfile 5\nmore\nmost\nthe host's\n-rw-------\n"));
    assert_status(&scene.call(["apply", "three", "/data/big", "/data/moved"]), 0);
    let on_host = host("md5sum", &["big"], &scene.host("data"));
    assert_eq!(on_host.split(' ').next(), sum.split(' ').next());
    // What is on the host now is none of the run's changes any more, and the rest is as it was.
    let diff = scene.call(["diff", "three"]);
    assert!(!stdout(&diff).contains("big") && !stdout(&diff).contains("moved"), "{}", stdout(&diff));
    let both: Vec<String> =
        stderr(&diff).lines().filter(|line| !line.contains("/data/f3: ")).map(str::to_owned).collect();
    assert_eq!(both, [""; 0], "only one path is in conflict");
    let output = scene.run("three", "cd /data; /bin/busybox md5sum big; cat moved f5");
    assert_eq!(stdout(&output), format!("{sum}\nfile 1\nfile 5\nmore\nmost\n"));
}

/// What a command costs follows from what it changed: to read all of this file would take an hour.
#[test]
fn a_byte_of_a_huge_sparse_file_is_a_small_change() {
    const SIZE: u64 = 12 << 40;
    let scene = Scene::new();
    fs::File::create(scene.host("data/huge")).unwrap().set_len(SIZE).unwrap();
    let at = SIZE / 2 + 5;
    let write = |byte: char, at: u64| {
        let script = format!("cd /data; echo -n {byte} | dd of=huge bs=1 seek={at} conv=notrunc 2>/dev/null");
        assert_status(&scene.run("run", &script), 0);
    };
    write('Y', at);
    assert_eq!(stdout(&scene.call(["diff", "run"])), "M  /data/huge\n");
    // The next change is one of a file that is not wholly the host's.
    write('Z', SIZE - 1);
    assert_status(&scene.call(["apply", "run"]), 0);
    let huge = fs::File::open(scene.host("data/huge")).unwrap();
    for (at, byte) in [(at, b'Y'), (SIZE - 1, b'Z'), (0, 0)] {
        let mut found = [1];
        huge.read_exact_at(&mut found, at).unwrap();
        assert_eq!(found, [byte], "at {at}");
    }
    assert!(huge.metadata().unwrap().blocks() * 512 < 1 << 20, "holes stay holes");
    assert_eq!(stdout(&scene.call(["diff", "run"])), "");
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
    let used = stdout(&scene.call(["runs"]));
    assert!(used.contains("in use") && used.contains("not counted yet") && !used.contains("nothing"), "{used}");
    // A killed run can be gone on with at once.
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(within(LONG, || scene.call(["diff", "two"]).status.success()), "the lock stays");
    assert!(stdout(&scene.call(["runs"])).contains("killed"));
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let scene = Scene::new();
    for name in ["", "..", "a/b", ".x", "a b"] {
        assert_one_line(&scene.run(name, "true"), &["name"]);
    }
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

/// Runs a script with the state directory on a tmpfs of `mib` MiB; its `$0` is `inarch`.
fn in_small_place(scene: &Scene, mib: u32, script: &str) -> Output {
    let script = format!("mount -t tmpfs -o size={mib}m none state && {script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave", "sh", "-c", &script, INARCH]).current_dir(scene.path());
    command.env("XDG_STATE_HOME", scene.path().join("state")).output().unwrap()
}

/// The guest's disk is as large as the place of its writes: what does not fit there is the guest's ENOSPC, and the rest is kept.
#[test]
fn a_small_place_is_a_small_disk() {
    let script = r#"
run() { "$0" run -q --accel=tcg --keep full --root root -- /bin/sh -c "$1"; echo "status $?"; }
run 'mkdir /in; /bin/busybox yes | /bin/busybox head -c 20971520 >/in/kept; dd if=/dev/zero of=/in/big bs=1M; sync || echo lost
    rm /in/big; echo ok > /in/ok'
run 'ls /in; dd if=/dev/zero of=/in/big bs=1M; sync || echo lost; rm /in/big; echo more >> /in/ok; /bin/busybox wc -c </in/kept; cat /in/ok'
"$0" diff full
"#;
    let output = in_small_place(&Scene::new(), 160, script);
    let expected = "status 0\nkept\nok\n20971520\nok\nmore\nstatus 0\nA  /in/\nA  /in/kept\nA  /in/ok\n";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    assert_eq!(stderr(&output).matches("/in/big': No space left on device").count(), 2, "{}", stderr(&output));

    let refused = "exec \"$0\" run -q --accel=tcg --keep full --root root -- /bin/sh -c true";
    let output = in_small_place(&Scene::new(), 40, refused);
    assert_one_line(&output, &["MiB are free", "too little", "XDG_STATE_HOME"]);
}

#[test]
fn a_conflict_says_what_this_machine_did_and_what_is_lost() {
    let scene = Scene::new();
    let script = "cd /data; echo more >> big; echo two >> f2; echo three > f3; mv sub subr; echo new > new";
    assert_status(&scene.run("one", script), 0);
    fs::write(scene.host("data/big"), "edited").unwrap();
    fs::write(scene.host("data/f3"), "edited").unwrap();
    fs::remove_file(scene.host("data/f2")).unwrap();
    fs::write(scene.host("data/sub/theirs"), "theirs").unwrap();
    assert_status(&scene.run("one", "ls /data/sub/theirs"), 0);

    let output = scene.call(["diff", "one"]);
    let said = stderr(&output);
    let lost = "and the run's version is lost with it: it was made of this machine's old file";
    assert!(said.contains(&format!("/data/big: this machine changed it, too, {lost}\n")), "{said}");
    assert!(said.contains("/data/f3: this machine changed it, too\n"), "{said}");
    assert!(said.contains("/data/f2: this machine removed it"), "{said}");
    // A directory is no hard link, though its old name is there for what the host put into it.
    assert!(stdout(&output).contains("A  /data/subr/\n"), "{output:?}");

    let json = stdout(&scene.call(["diff", "one", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let of = |path: &str| json.as_array().unwrap().iter().find(|change| change["path"] == path).unwrap().clone();
    assert_eq!((&of("/data/f3")["conflict"], &of("/data/f3")["content"]), (&"changed".into(), &true.into()));
    assert_eq!(of("/data/f2")["conflict"], "removed");
    let new = of("/data/new");
    assert!(new.get("conflict").is_none() && new.get("content").is_none(), "{new}");
    assert!(of("/data/subr").get("link_to").is_none(), "{json}");

    // Neither --show nor --force helps with what is lost: only of the rest there is a hint.
    let refused = scene.call(["apply", "one", "/data/big"]);
    assert_status(&refused, 1);
    assert_eq!(stdout(&refused), "nothing applied\n");
    assert_one_line(
        &Output { status: ExitStatus::from_raw(125 << 8), stdout: Vec::new(), ..refused },
        &["data/big", lost],
    );
    let refused = scene.call(["apply", "one", "/data/big", "/data/f3"]);
    assert!(stderr(&refused).contains("inarch apply --force one PATH"), "{}", stderr(&refused));

    assert_eq!(stdout(&scene.call(["discard", "one"])), "discarded one\n");
}
