//! Promise: `diff` lists what the guest changed and nothing else, as lines, numbers, a patch and JSON.

use std::fs;
use std::process::Stdio;

use crate::support::kept::Scene;
use crate::support::{any_machine, assert_one_line, assert_status, host, stderr, stdout};

#[test]
fn changes_are_listed_and_noise_is_not() {
    let scene = Scene::new();
    // A time that every tool can copy.
    host("touch", &["-d", "2020-01-01", "data/f1"], &scene.host(""));
    let chattr = "cp /usr/bin/chattr bin && for lib in $(ldd bin/chattr | grep -o '/[^ ]*'); do
        mkdir -p .${lib%/*} && cp $lib .$lib || exit; done";
    host("sh", &["-c", chattr], &scene.host(""));
    let script = "cd /data; cat f1 big > /dev/null; ls -lR / > /dev/null 2>&1
        echo two >> f2; mv f3 g3; rm f4; chmod 751 sub; chown 3:4 /etc/group; touch -d '2001-02-03 04:05:06' /etc/passwd
        ln f5 f5three; mv sub moved; echo below too >> moved/below
        mkdir new; echo 'a name' > 'new/with space'; ln -s f1 new/link; head -c 5000 /dev/zero > new/zeros
        cp -p f1 t; mv t f1; echo temporary > /tmp/x; touch gone; rm gone; chattr +A big";
    // busybox's head is not among the tools of that root.
    let script = script
        .replace("head -c 5000 /dev/zero > new/zeros", "dd if=/dev/zero of=new/zeros bs=5000 count=1 2>/dev/null");
    let run = scene.run("run", &script);
    assert_status(&run, 0);
    // What ext4 can hold and a tree cannot.
    let said = "inarch: /: 1 file or directory has attributes of chattr (A), which are not kept\n";
    assert_eq!(stderr(&run), said);
    let listed = stdout(&scene.call(["diff", "run"]));
    let expected = "\
M  /data/f2
D  /data/f4
A  /data/f5three  (link to /data/f5)
R  /data/f3 -> /data/g3
R  /data/sub/ -> /data/moved/  (mode 0755 -> 0751)
M  /data/moved/below
A  /data/new/
A  /data/new/link
A  /data/new/with space
A  /data/new/zeros
P  /etc/group  (owner 0:0 -> 3:4)
P  /etc/passwd  (time)
";
    assert_eq!(listed, expected);

    // Of paths: a file, what is below a directory, the old name of what was renamed, and what did not change.
    let some = scene.call(["diff", "run", "/data/f2", "/etc/", "/data/sub", "/data/f5"]);
    assert_status(&some, 0);
    let wanted = ["/data/f2", "/data/sub/ ->", "/data/moved/below", "/etc/group", "/etc/passwd"];
    let lines: Vec<&str> = expected.lines().filter(|line| wanted.iter().any(|path| line.contains(path))).collect();
    assert_eq!(stdout(&some).lines().collect::<Vec<_>>(), lines);

    let stat = stdout(&scene.call(["diff", "run", "--stat"]));
    assert!(stat.contains("/data/f2             | +1 -0\n"), "{stat}");
    assert!(stat.contains("/data/new/zeros      | 0 -> 5000 bytes, no text\n"), "{stat}");
    assert!(stat.ends_with("5 added, 2 changed, 1 deleted, 2 renamed, 2 attributes; lines: +5 -1\n"), "{stat}");

    let json: serde_json::Value = serde_json::from_str(&stdout(&scene.call(["diff", "run", "--json"]))).unwrap();
    let of = |path: &str| json.as_array().unwrap().iter().find(|change| change["path"] == path).unwrap().clone();
    assert_eq!(of("/data/f2")["size"], 11);
    assert_eq!(of("/data/g3")["from"], "/data/f3");
    assert_eq!(of("/etc/group")["owner"], serde_json::json!(["0:0", "3:4"]));
    assert_eq!(
        (of("/data/new")["type"].as_str(), of("/data/new")["kind"].as_str()),
        (Some("directory"), Some("added"))
    );

    // What is in no tree is not unchanged: it may be misspelt.
    assert_one_line(&scene.call(["diff", "run", "/data/f2", "/data/nothing"]), &["/data/nothing", "nothing is there"]);
    assert_one_line(&scene.call(["diff", "run", "/data/f2/below"]), &["/data/f2/below", "nothing is there"]);

    // The patch makes of a copy of the host's files what the guest has.
    host("cp", &["-a", "root", "copy"], scene.path());
    let patch = scene.call(["diff", "run", "-p"]);
    fs::write(scene.path().join("patch"), &patch.stdout).unwrap();
    if std::process::Command::new("git").arg("--version").stdout(Stdio::null()).status().is_ok() {
        host("git", &["apply", "--unsafe-paths", "--directory", "copy", "patch"], scene.path());
        assert_eq!(fs::read(scene.path().join("copy/data/new/zeros")).unwrap(), [0; 5000]);
        assert_eq!(fs::read(scene.path().join("copy/data/f2")).unwrap(), b"file 2\ntwo\n");
        assert_eq!(fs::read(scene.path().join("copy/data/new/with space")).unwrap(), b"a name\n");
        assert_eq!(fs::read(scene.path().join("copy/data/moved/below")).unwrap(), b"below\nbelow too\n");
        assert!(scene.path().join("copy/data/g3").exists() && !scene.path().join("copy/data/f4").exists());
    } else {
        println!("skipped: changes_are_listed_and_noise_is_not: git is not installed");
    }
    assert_one_line(&scene.call(["diff", "none"]), &["no kept run 'none'"]);

    // An apply tells the same.
    let root = scene.host("").canonicalize().unwrap();
    let root = root.to_str().unwrap();
    let dry = stdout(&scene.call(["apply", "run", "-n"]));
    let words = [("M  ", "change"), ("D  ", "remove"), ("A  ", "add"), ("R  ", "rename"), ("P  ", "attributes")];
    let told = |line: &str| {
        let (_, word) = words.iter().find(|(letter, _)| line.starts_with(letter)).unwrap();
        let what = line[3..].split("  (").next().unwrap().trim_end_matches('/').replace("/ -> ", " -> ");
        format!(
            "{word:<10}  {}",
            what.replace("/data", &format!("{root}/data")).replace("/etc", &format!("{root}/etc"))
        )
    };
    assert_eq!(dry.lines().collect::<Vec<_>>(), expected.lines().map(told).collect::<Vec<_>>());
    let applied = scene.call(["apply", "run"]);
    assert_status(&applied, 0);
    assert_eq!(stdout(&applied), "5 added, 2 changed, 1 removed, 2 renamed, 2 with other attributes\n");
    // Nothing is left to be applied.
    let runs = stdout(&scene.call(["runs"]));
    assert!(runs.contains(" applied ") && runs.contains(" nothing "), "{runs}");
}

#[test]
fn trees_are_told_apart() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path().join("tree/dir")).unwrap();
    fs::create_dir_all(scene.path().join("ro")).unwrap();
    for (path, content) in [("tree/a", "a\n"), ("tree/dir/b", "b\n"), ("ro/c", "c\n")] {
        fs::write(scene.path().join(path), content).unwrap();
    }
    host("chown", &["-R", "1000:100", "tree"], scene.path());
    let script =
        "echo in root > /r; cd /mnt/tree; echo more >> a; echo new > dir/new; touch /mnt/ro/x 2>/dev/null; true";
    let arguments = [
        "run",
        "-q",
        any_machine(),
        "--keep",
        "run",
        "--root",
        "root",
        "--tree",
        "tree:/mnt/tree,owner=squash",
        "--tree",
        "ro:/mnt/ro,ro",
        "--",
        "/bin/sh",
        "-c",
        script,
    ];
    assert_status(&scene.call(arguments), 0);
    // The directories to mount at were made by the run itself.
    assert_eq!(stdout(&scene.call(["diff", "run"])), "A  /r\nM  /mnt/tree/a\nA  /mnt/tree/dir/new\n");
    // A tree that is not there, on a disk that is not plugged in, holds up no other.
    fs::rename(scene.path().join("tree"), scene.path().join("away")).unwrap();
    let listed = scene.call(["diff", "run"]);
    assert_eq!(stdout(&listed), "A  /r\n");
    assert!(stderr(&listed).contains("tree: it is gone"), "{listed:?}");
    let output = scene.call(["apply", "run"]);
    assert_status(&output, 1);
    assert_eq!(stdout(&output), "1 added\n");
    assert!(scene.host("r").exists() && !scene.host("mnt").exists());
    assert_one_line(&scene.call(["apply", "run", "/mnt/tree"]), &["/mnt/tree: ", "is gone"]);
    assert_one_line(&scene.call(["diff", "run", "/mnt/tree/a"]), &["is gone"]);
    assert_one_line(&scene.call(["diff", "run", "--show", "/mnt/tree/a"]), &["is gone"]);
    let again = scene.call(["run", "-q", any_machine(), "--keep", "run", "--", "/bin/true"]);
    assert_one_line(&again, &["'run' has", "tree, which is gone", "inarch apply run"]);
    fs::rename(scene.path().join("away"), scene.path().join("tree")).unwrap();
    assert_eq!(stdout(&scene.call(["diff", "run"])), "M  /mnt/tree/a\nA  /mnt/tree/dir/new\n");

    let output = scene.call(["apply", "run", "/mnt/tree"]);
    assert_status(&output, 0);
    assert_eq!(fs::read(scene.path().join("tree/a")).unwrap(), b"a\nmore\n");
    assert!(scene.path().join("tree/dir/new").exists());
    // What the guest did not change stays the host's.
    assert_eq!(host("stat", &["-c", "%u:%g", "tree/a"], scene.path()), "1000:100\n");
    assert_eq!(stdout(&scene.call(["apply", "run"])), "nothing to do\n");
}
