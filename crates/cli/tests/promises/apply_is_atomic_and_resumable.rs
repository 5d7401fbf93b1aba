//! Promise: `apply` makes the host's tree equal to the guest's, each file in one step. After a kill at any point it
//! continues. Conflicts are named and left alone, and nothing leads it out of the tree.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use crate::support::kept::Scene;
use crate::support::{assert_one_line, assert_status, host, stderr, stdout};

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
    // The guest's version can be had, in a conflict too, unless a part of it was the host's and is gone.
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

    // What was left is still to be had, path by path, and by force.
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
