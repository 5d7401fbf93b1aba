//! Promise: `apply` makes the host's tree equal to the guest's, each file in one step. After a kill at any point it
//! continues. Conflicts are named and left alone, and nothing leads it out of the tree.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::kept::Scene;
use crate::support::{INARCH, any_machine, assert_one_line, assert_status, host, stderr, stdout};

/// Every kind of change, and those that get into each other's way.
const SCRIPT: &str = "set -e; cd /data
    echo more >> f1
    mv f2 g2
    rm f3
    chmod 600 f4
    chown 12:34 f5
    ln big big2
    echo y >> big
    echo in the middle | dd of=big bs=1 seek=40960 conv=notrunc
    truncate -s 10M sparse; echo end >> sparse
    mkfifo fifo; mknod null c 1 3
    ln -s ../../../etc/passwd link; touch -h link
    mkdir -p new/deep; echo in > new/deep/in; touch -d '2001-02-03 04:05:06' new/deep/in; chmod 2711 new
    mv sub subdir; echo more >> subdir/below
    echo a > s1; echo b > s2; sync; rm s1 s2";

/// On what the first has left: swaps, kinds that change, files that move into what takes their name.
const SCRIPT_AGAIN: &str = "set -e; cd /data
    mv f1 t; mv g2 f1; mv t g2
    mv f4 t; mkdir f4; mv t f4/inside; echo more >> f4/inside
    rm -r new; echo a file now > new
    rm link; mkdir link; echo x > link/x
    mv subdir new2; ln new2/below below2
    rm fifo; echo no fifo > fifo
    mv big2 f4/big2; rm sparse; : > empty";

/// What `script` makes of a copy of `root` on this machine.
fn expected(scene: &Scene, root: &Path, script: &str) -> String {
    let copy = scene.path().join("expected");
    let _ = fs::remove_dir_all(&copy);
    host("cp", &["-a", &root.display().to_string(), &copy.display().to_string()], scene.path());
    host("chroot", &[&copy.display().to_string(), "/bin/sh", "-c", script], scene.path());
    without_mtimes(&scene.manifest(&copy))
}

fn without_mtimes(manifest: &str) -> String {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        fields.iter().enumerate().filter(|(i, _)| *i != 4).map(|(_, field)| *field).collect::<Vec<_>>().join(" ")
    };
    manifest.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn assert_same(left: &str, right: &str) {
    let differ: Vec<_> = left.lines().zip(right.lines()).filter(|(left, right)| left != right).take(5).collect();
    assert!(left == right, "{differ:#?}\n{} and {} lines", left.lines().count(), right.lines().count());
}

#[test]
fn the_host_becomes_what_the_guest_was() {
    let scene = Scene::new();
    let root = scene.host("");
    for script in [SCRIPT, SCRIPT_AGAIN] {
        let wanted = expected(&scene, &root, script);
        assert_status(&scene.run("run", script), 0);
        let before = scene.manifest(&root);
        let dry = scene.call(["apply", "run", "--dry-run"]);
        assert_status(&dry, 0);
        assert!(stdout(&dry).lines().count() > 8, "{}", stdout(&dry));
        assert_same(&scene.manifest(&root), &before);

        let output = scene.call(["apply", "run"]);
        assert_status(&output, 0);
        assert_eq!(stderr(&output), "");
        assert_same(&without_mtimes(&scene.manifest(&root)), &wanted);
        // The run is spent: its next command sees the host's tree, which is what it had left.
        assert_eq!(stdout(&scene.call(["diff", "run"])), "");
        assert!(stdout(&scene.call(["runs"])).contains("applied"));
        if script == SCRIPT {
            let file = fs::metadata(scene.host("data/new/deep/in")).unwrap();
            assert_eq!(file.mtime(), 981_173_106, "times come with the files");
            let sparse = fs::metadata(scene.host("data/sparse")).unwrap();
            assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes");
        }
    }
}

/// The calls that give files their names, or take them away.
const NAMING: &str = "linkat,renameat,renameat2,unlinkat,mkdirat,symlinkat";

#[test]
fn killed_at_any_point_it_is_gone_on_with() {
    let scene = Scene::new();
    let many = "cd /data; mkdir many; for i in $(seq 1 1500); do echo new $i > many/$i; done; for i in 1 2 3 4; do \
                cp big many/big$i; done; ";
    let script = format!("{many}{SCRIPT}");
    let root = scene.host("");
    let wanted = expected(&scene, &root, &script);
    assert_status(&scene.run("run", &script), 0);
    let old_big = fs::read(scene.host("data/big")).unwrap();
    let new_big = fs::read(scene.path().join("expected/data/big")).unwrap();
    // Only calls change anything outside of the process. More files are made than these numbers add up to.
    for number in [1, 2, 5, 30, 150, 400] {
        let apply = scene.inarch(["apply", "-q", "run"]);
        let mut killed = Command::new("strace");
        killed.args(["-f", "-qq", "-o", "/dev/null", "-e"]).arg(format!("inject={NAMING}:signal=KILL:when={number}"));
        killed.arg(apply.get_program()).args(apply.get_args());
        killed.envs(apply.get_envs().filter_map(|(name, value)| Some((name, value?))));
        killed.current_dir(apply.get_current_dir().unwrap_or(Path::new(".")));
        let status = killed.status().unwrap();
        assert_eq!(status.signal().or(status.code()), Some(9), "it is not killed at its call {number}");
        let big = fs::read(scene.host("data/big")).unwrap();
        assert!(big == old_big || big == new_big, "a file is the old one or the new one");
        // Meanwhile nothing else can be done with it.
        if stdout(&scene.call(["runs"])).contains("apply unfinished") {
            assert_one_line(&scene.run("run", "true"), &["has begun and not ended"]);
            assert_one_line(&scene.call(["discard", "run"]), &["has begun and not ended", "--force"]);
        }
    }
    let last = scene.call(["apply", "run"]);
    assert_status(&last, 0);
    assert_same(&without_mtimes(&scene.manifest(&root)), &wanted);
    let left = host("find", &[".", "-name", ".inarch-*"], &root);
    assert_eq!(left, "", "temporary names are left");
}

#[test]
fn what_changed_on_the_host_is_left_alone() {
    let scene = Scene::new();
    let script = "cd /data; echo guest >> f1; rm f2; echo guest > new; chmod 600 f3; echo guest >> f4; mkdir dir; echo in > dir/in; echo y >> big";
    assert_status(&scene.run("run", script), 0);
    for (path, content) in [
        ("data/f1", "host 1\n"),
        ("data/f2", "host 2\n"),
        ("data/new", "host\n"),
        ("data/dir", "a file"),
        ("data/big", "small"),
    ] {
        fs::write(scene.host(path), content).unwrap();
    }
    host("sh", &["-c", "chmod 640 data/f3; echo host > data/f3"], &scene.host(""));
    let edited = fs::metadata(scene.host("data/f3")).unwrap().modified().unwrap();
    // The guest's version can be shown, in a conflict too, unless a part of it was the host's and is gone.
    let shown = scene.call(["diff", "run", "--show", "/data/f1"]);
    assert_status(&shown, 0);
    assert_eq!(stdout(&shown), "file 1\nguest\n");
    assert_one_line(
        &scene.call(["diff", "run", "--show", "/data/big"]),
        &["/data/big", "a part of it lies in a file of this machine that changed"],
    );
    let patch = scene.call(["diff", "-p", "run", "/data/f1", "/data/big"]);
    for reason in ["b/data/big: it cannot be read: the file of this machine", "diff --show has the guest's version"] {
        assert!(stdout(&patch).contains(reason), "{}", stdout(&patch));
    }
    // What a dry run says is what the run then does.
    let dry = scene.call(["apply", "run", "-n"]);
    assert_status(&dry, 1);
    let output = scene.call(["apply", "run"]);
    assert_status(&output, 1);
    let text = stderr(&output);
    assert_eq!(stderr(&dry), text);
    for path in ["data/f1", "data/f2", "data/new", "data/f3", "data/dir", "data/big"] {
        assert!(text.lines().any(|line| line.contains(&format!("root/{path}: left alone: it "))), "{path}: {text}");
    }
    let hint = "inarch diff run --show PATH shows the guest's version, inarch apply --force run PATH brings it here";
    assert!(text.lines().last().unwrap().contains(hint), "{text}");
    assert_eq!(text.lines().count(), 7, "{text}");
    assert_eq!(fs::read(scene.host("data/f1")).unwrap(), b"host 1\n");
    assert_eq!(fs::read(scene.host("data/f2")).unwrap(), b"host 2\n");
    assert_eq!(fs::read(scene.host("data/new")).unwrap(), b"host\n");
    assert_eq!(fs::metadata(scene.host("data/f3")).unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::read(scene.host("data/f4")).unwrap(), b"file 4\nguest\n", "what did not change is applied");

    // What was left can still be applied, path by path, and by force.
    let output = scene.call(["apply", "run", "/data/new", "--force"]);
    assert_status(&output, 0);
    assert_eq!(fs::read(scene.host("data/new")).unwrap(), b"guest\n");
    assert_eq!(fs::read(scene.host("data/f1")).unwrap(), b"host 1\n");
    assert_one_line(&scene.call(["apply", "run", "/data/f5"]), &["/data/f5", "changed nothing there"]);
    fs::remove_file(scene.host("data/dir")).unwrap();
    let output = scene.call(["apply", "run", "--force"]);
    assert_status(&output, 1);
    // Of the large file the guest's content is mostly the host's, which is no longer there.
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("data/big: left alone: its content cannot be read"), "{}", stderr(&output));
    assert_eq!(fs::read(scene.host("data/big")).unwrap(), b"small");
    assert_eq!(fs::read(scene.host("data/f1")).unwrap(), b"file 1\nguest\n");
    // Of what the guest changed only the permissions of, those are set: `make` still sees that the host's content is newer.
    let f3 = fs::metadata(scene.host("data/f3")).unwrap();
    assert_eq!((f3.mode() & 0o777, f3.modified().unwrap()), (0o600, edited));
    assert_eq!(fs::read(scene.host("data/f3")).unwrap(), b"host\n");
    assert!(!scene.host("data/f2").exists());
    assert_eq!(fs::read(scene.host("data/dir/in")).unwrap(), b"in\n");
}

#[test]
fn what_is_asked_for_brings_what_belongs_to_it() {
    let scene = Scene::new();
    let script = "cd /data; mv sub subdir; mv f1 z; mv f2 f1; mv f3 f2; echo guest >> f4";
    assert_status(&scene.run("run", script), 0);
    let content = |path: &str| fs::read_to_string(scene.host("data").join(path)).ok();
    assert_status(&scene.call(["apply", "run", "/data/sub"]), 0);
    assert_eq!((content("subdir/below"), content("sub/below")), (Some("below\n".to_owned()), None));
    assert!(!scene.host("data/sub").exists());
    for name in 1..5 {
        assert_eq!(content(&format!("f{name}")), Some(format!("file {name}\n")), "nothing else is applied");
    }
    // Each of these files takes the name of the next one.
    assert_status(&scene.call(["apply", "run", "/data/f3"]), 0);
    for (name, number) in [("z", 1), ("f1", 2), ("f2", 3), ("f4", 4)] {
        assert_eq!(content(name), Some(format!("file {number}\n")), "{name}");
    }
    assert_eq!(content("f3"), None);
}

#[test]
fn nothing_leads_out_of_the_tree() {
    let scene = Scene::new();
    let outside = scene.path().join("outside");
    fs::create_dir_all(outside.join("sub")).unwrap();
    fs::write(outside.join("below"), "outside\n").unwrap();
    let script =
        "cd /data; echo guest >> sub/below; echo guest > sub/new; rm -f f2; mkdir dir; echo x > dir/x; ln -s /etc a";
    assert_status(&scene.run("run", script), 0);
    // A directory of the tree has become a symlink out of it.
    fs::rename(scene.host("data/sub"), scene.host("data/was")).unwrap();
    symlink(&outside, scene.host("data/sub")).unwrap();
    symlink(&outside, scene.host("data/dir")).unwrap();
    for force in [&["apply", "run"][..], &["apply", "run", "--force"]] {
        let output = scene.call(force);
        assert_status(&output, 1);
        assert_eq!(fs::read(outside.join("below")).unwrap(), b"outside\n");
        let names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }
    assert_eq!(fs::read_link(scene.host("data/a")).unwrap(), Path::new("/etc"));
}

/// A system call of a traced command, and the lines of the trace at which it began and ended.
struct Call {
    text: String,
    began: usize,
    ended: usize,
    worked: bool,
}

impl Call {
    fn is(&self, name: &str, part: &str) -> bool {
        self.text.starts_with(&format!("{name}(")) && self.text.contains(part)
    }
}

/// The calls of `inarch` with these `arguments` that change files or wait for the disk; `inject` is what strace lets
/// fail.
fn traced(scene: &Scene, inject: &[&str], arguments: &[&str]) -> (Output, Vec<Call>) {
    let calls = "trace=syncfs,fsync,fdatasync,link,linkat,rename,renameat,renameat2,unlink,unlinkat,fallocate,\
                 pwrite64,copy_file_range,ftruncate";
    let output = Command::new("strace")
        .args(["-f", "-qq", "-y", "-s", "300", "-o", "calls", "-e", calls, "-e", "signal=none"])
        .args(inject)
        .arg(INARCH)
        .args(arguments)
        .env("XDG_STATE_HOME", scene.path().join("state"))
        .current_dir(scene.path())
        .output()
        .unwrap();
    let text = fs::read_to_string(scene.path().join("calls")).unwrap();
    let mut calls: Vec<Call> = Vec::new();
    let mut unfinished: HashMap<&str, (String, usize)> = HashMap::new();
    for (at, line) in text.lines().enumerate() {
        let (thread, rest) = line.split_once(' ').unwrap();
        let rest = rest.trim_start();
        if let Some(begun) = rest.strip_suffix(" <unfinished ...>") {
            unfinished.insert(thread, (begun.to_owned(), at));
            continue;
        }
        let resumed = rest.strip_prefix("<... ").and_then(|rest| rest.split_once(" resumed>"));
        let (text, began) = match resumed {
            Some((_, end)) => {
                let (begun, began) = unfinished.remove(thread).unwrap();
                (format!("{begun}{end}"), began)
            }
            None => (rest.to_owned(), at),
        };
        let worked = text.rsplit_once(" = ").is_some_and(|(_, result)| !result.starts_with('-'));
        calls.push(Call { text, began, ended: at, worked });
    }
    (output, calls)
}

/// The last of the calls that `is_it`.
#[track_caller]
fn last<'c>(calls: &'c [Call], what: &str, is_it: impl Fn(&Call) -> bool) -> &'c Call {
    calls.iter().rfind(|call| is_it(call)).unwrap_or_else(|| panic!("no {what}"))
}

/// After each rename of the run's record its directory is synced before anything else is done.
#[track_caller]
fn assert_record_is_durable(calls: &[Call]) {
    let renames: Vec<usize> = (0..calls.len()).filter(|at| calls[*at].is("rename", "/run.json\"")).collect();
    assert!(renames.len() > 1, "it begins and ends: {}", renames.len());
    for at in renames {
        let next = calls[at + 1..].iter().find(|call| call.began > calls[at].ended).unwrap();
        assert!(next.is("fsync", "/runs/run>") && next.worked, "{} is followed by {}", calls[at].text, next.text);
        let before = calls[..at].iter().rfind(|call| call.is("fsync", "/run.new>")).unwrap();
        assert!(before.worked && before.ended < calls[at].began);
    }
}

#[test]
fn nothing_of_the_old_goes_before_the_new_is_on_the_disk() {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        println!("skipped: nothing_of_the_old_goes_before_the_new_is_on_the_disk: strace is not installed");
        return;
    }
    let scene = Scene::new();
    // So many that the whole file system is synced.
    let many = "mkdir data/many; for i in $(seq 1 40); do head -c 9000 /dev/urandom > data/many/$i; done";
    host("sh", &["-c", many], &scene.host(""));
    let script = "cd /data; echo rewritten > f1; rm f2; echo more >> big; for i in many/*; do echo more >> $i; done";
    assert_status(&scene.run("run", script), 0);
    let is_old = |name: u32| fs::metadata(scene.host(&format!("data/many/{name}"))).unwrap().len() == 9000;
    let failing = ["-e", "inject=syncfs:error=EIO"];
    let runs = || stdout(&scene.call(["runs"]));
    let root = scene.host("").canonicalize().unwrap().display().to_string();
    let of_tree = format!("<{root}");
    let is_write = |call: &Call| {
        ["pwrite64", "copy_file_range", "ftruncate"].iter().any(|name| call.is(name, &of_tree)) && call.worked
    };
    let is_sync = |call: &Call| call.is("syncfs", &of_tree) && call.worked;
    // What is kept of the run: its overlay, what the last command changed, and the tree before.
    let is_of_run = |call: &Call| {
        let goes = ["rename", "renameat", "renameat2", "unlink", "unlinkat", "fallocate"];
        goes.iter().any(|name| call.is(name, "/runs/run/0."))
    };

    // A part of the run is given up only when it is on the disk of the host.
    let (output, calls) = traced(&scene, &failing, &["apply", "run", "/data/f1"]);
    assert_one_line(&output, &["cannot make what was applied durable", "Input/output error"]);
    assert!(calls.iter().any(|call| call.is("syncfs", &of_tree)) && !calls.iter().any(is_of_run));
    assert!(runs().contains("apply unfinished"), "{}", runs());
    let (output, calls) = traced(&scene, &[], &["apply", "run", "/data/f1"]);
    assert_status(&output, 0);
    assert_record_is_durable(&calls);
    let synced = last(&calls, "sync", is_sync);
    let first = calls.iter().find(|call| is_of_run(call)).expect("something of the run goes");
    assert!(synced.ended < first.began, "{} comes before {}", first.text, synced.text);
    assert_eq!(fs::read(scene.host("data/f1")).unwrap(), b"rewritten\n");

    // A few files are synced one by one, each with its directory, before what they replace goes.
    let (output, calls) = traced(&scene, &[], &["apply", "run", "/data/big"]);
    assert_status(&output, 0);
    let written = last(&calls, "write", is_write);
    let is_gone = |call: &&Call| call.is("unlinkat", "/root/data>");
    let first = calls.iter().find(is_gone).expect("the old file goes");
    let between = |call: &&Call| call.worked && call.began > written.ended && call.ended < first.began;
    let syncs = || calls.iter().filter(|call| call.is("fsync", &of_tree)).filter(between);
    let of_directory = syncs().filter(|call| call.text.contains("/root/data>")).count();
    assert!(of_directory > 0 && syncs().count() > of_directory, "the file, and its directory, before {}", first.text);

    // What lends bytes to its own new version stays until that is on the disk.
    let (output, calls) = traced(&scene, &failing, &["apply", "run"]);
    assert_status(&output, 1);
    assert!(stderr(&output).contains("what was made of it may not be on the disk: Input/output error"), "{output:?}");
    assert!(calls.iter().any(|call| call.is("syncfs", &of_tree)) && !calls.iter().any(is_of_run));
    assert!((1..=40).all(is_old));
    assert!(runs().contains("apply unfinished"), "{}", runs());
    let (output, calls) = traced(&scene, &[], &["apply", "run"]);
    assert_status(&output, 0);
    assert_record_is_durable(&calls);
    let written = last(&calls, "write", is_write);
    let synced =
        calls.iter().find(|call| is_sync(call) && call.began > written.ended).expect("a sync after all writes");
    let is_removal = |call: &&Call| call.is("unlinkat", "/root/data/many>");
    let first = calls.iter().find(is_removal).expect("the old files go");
    assert!(synced.ended < first.began, "{} comes before {}", first.text, synced.text);
    assert!((1..=40).all(|name| !is_old(name)) && !scene.host("data/f2").exists());
    assert!(runs().contains(" applied "), "{}", runs());

    // The next command lets go of what was applied, and not before that is on the disk.
    let next = ["run", "-q", any_machine(), "--keep", "run", "--root", "root", "--", "/bin/sh"];
    let (output, calls) = traced(&scene, &failing, &next);
    assert_one_line(&output, &["cannot make what was applied durable", "Input/output error"]);
    assert!(calls.iter().any(|call| call.is("syncfs", &of_tree)) && !calls.iter().any(is_of_run));
    // It has other trees, and is refused as soon as the run is open.
    let other = [&next[..5], &["--tree", "state:/other"], &next[5..]].concat();
    let (output, calls) = traced(&scene, &[], &other);
    assert_one_line(&output, &["run", "--root root"]);
    let synced = last(&calls, "sync", is_sync);
    let first = calls.iter().find(|call| is_of_run(call)).expect("what was applied goes");
    assert!(synced.ended < first.began, "{} comes before {}", first.text, synced.text);
}

#[test]
fn what_the_host_changes_after_an_apply_is_no_difference_and_the_guests_version_is_there() {
    let scene = Scene::new();
    assert_status(&scene.run("run", "cd /data; echo guest >> f1; echo y >> big; echo guest > new; rm f2"), 0);
    assert_status(&scene.call(["apply", "run"]), 0);
    for path in ["f1", "big", "new", "f2"] {
        fs::write(scene.host("data").join(path), "the host's\n").unwrap();
    }
    for arguments in [&["diff", "run"][..], &["diff", "-p", "run"], &["diff", "--stat", "run"]] {
        let output = scene.call(arguments);
        assert_status(&output, 0);
        assert_eq!((stdout(&output), stderr(&output)), Default::default(), "{arguments:?}");
    }
    for (path, bytes) in [("/data/f1", &b"file 1\nguest\n"[..]), ("/data/new", b"guest\n")] {
        let shown = scene.call(["diff", "run", "--show", path]);
        assert_status(&shown, 0);
        assert_eq!(shown.stdout, bytes, "{path}");
    }
    // Most of this one was the host's, and that file is gone.
    let shown = scene.call(["diff", "run", "--show", "/data/big"]);
    assert_one_line(&shown, &["/data/big: a part of it lies in a file of this machine that changed"]);
    assert_eq!(shown.stdout, b"");
}

#[test]
fn only_what_changed_below_the_longest_names_counts_and_is_applied() {
    let scene = Scene::new();
    // Together they are longer than a path may be.
    let dig = "cd -P data/sub; for letter in a b c d e f g h i j k l m n o p q r s t; do
        name=$(printf %0255d 0 | tr 0 $letter); mkdir $name; cd -P $name; done
        for file in one two three; do echo $file > $file; done";
    let down = "cd -P data/sub; for i in $(seq 1 20); do cd -P [a-t]*; done";
    host("sh", &["-ec", dig], &scene.host(""));
    assert_status(&scene.run("run", &format!("set -e; cd /; {down}; echo more >> one; echo more >> two")), 0);
    let runs = scene.call(["runs", "--json"]);
    let runs: serde_json::Value = serde_json::from_slice(&runs.stdout).unwrap();
    assert_eq!((runs[0]["changed"].as_u64(), runs[0]["deleted"].as_u64()), (Some(2), Some(0)), "{runs}");
    let listed = stdout(&scene.call(["diff", "run"]));
    assert!(listed.lines().count() == 2 && listed.lines().all(|line| line.starts_with("M  /data/sub/aaa")), "{listed}");
    assert_status(&scene.call(["apply", "run"]), 0);
    let found = host("sh", &["-ec", &format!("{down}; cat one two three; ls")], &scene.host(""));
    assert_eq!(found, "one\nmore\ntwo\nmore\nthree\none\nthree\ntwo\n");
}
