//! Promise: a container image runs as its configuration says, unless the user says otherwise; an invalid configuration
//! gets one line.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{INARCH, any_machine, assert_one_line, assert_status, host, inarch, scratch, stderr, stdout};

/// The files of an image: busybox, two users and their groups.
const ROOT: &str = "mkdir -p rootfs/bin rootfs/etc rootfs/dev rootfs/proc rootfs/sys rootfs/run rootfs/tmp && cp /bin/busybox rootfs/bin/ &&
    for tool in sh id pwd cat env grep sort stat; do ln -s busybox rootfs/bin/$tool; done &&
    printf 'root:x:0:0::/root:/bin/sh\\napp:x:1234:1235::/home/app:/bin/sh\\n' > rootfs/etc/passwd &&
    printf 'root:x:0:\\napp:x:1235:\\nwheel:x:77:root,app\\nstaff:x:50:\\n' > rootfs/etc/group && chown -R 0:0 rootfs";

/// Tells everything that an image decides on.
const TELL: &str =
    "echo \"$0:$*\"; echo $(id -u):$(id -g):$(id -G); pwd; env | grep -v ^TERM | grep -v ^COLORTERM | sort";

/// `docker save` of `rootfs` with this configuration, as FILE.
fn docker_archive(dir: &Path, file: &str, config: &serde_json::Value) {
    host("sh", &["-c", "mkdir -p saved && tar --numeric-owner -C rootfs -cf saved/layer.tar ."], dir);
    let sum = host("sha256sum", &["saved/layer.tar"], dir);
    let diff_id = format!("sha256:{}", sum.split_whitespace().next().unwrap());
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": config, "rootfs": { "type": "layers", "diff_ids": [diff_id] }
    });
    let manifest = serde_json::json!([{ "Config": "config.json", "RepoTags": ["app:1"], "Layers": ["layer.tar"] }]);
    std::fs::write(dir.join("saved/config.json"), config.to_string()).unwrap();
    std::fs::write(dir.join("saved/manifest.json"), manifest.to_string()).unwrap();
    host("tar", &["-C", "saved", "-cf", file, "manifest.json", "config.json", "layer.tar"], dir);
}

/// Runs `inarch run WORDS` in `dir`, with variables that are nothing to a container.
fn run(dir: &Path, words: &[&str]) -> Output {
    Command::new(INARCH)
        .args(["run", any_machine()])
        .args(words)
        .env("LC_ALL", "of_the_host")
        .env("OF_THE_HOST", "1")
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn entry_point_variables_place_and_user_are_the_images() {
    let dir = scratch();
    host("sh", &["-c", ROOT], dir.path());
    let make = "umoci init --layout layout && umoci new --image layout:app && umoci unpack --image layout:app bundle &&
        cp -a rootfs/. bundle/rootfs/ && umoci repack --image layout:app bundle &&
        umoci config --image layout:app --config.entrypoint /bin/sh --config.entrypoint -c --config.entrypoint \"$TELL\" \
            --config.entrypoint entry --config.cmd one --config.cmd 'two three' --config.env PATH=/none:/bin \
            --config.env GREETING=hello=you --config.workingdir /made/by/nobody --config.user app:staff &&
        skopeo copy -q oci:layout:app docker-archive:saved.tar:app:1";
    host("env", &[&format!("TELL={TELL}"), "sh", "-c", make], dir.path());

    let output = run(dir.path(), &["--quiet", "--root=oci:layout:app"]);
    assert_status(&output, 0);
    assert_eq!(
        stdout(&output),
        "entry:one two three\n1234:50:50\n/made/by/nobody\nGREETING=hello=you\nHOME=/home/app\nLOGNAME=app\n\
         PATH=/none:/bin\nPWD=/made/by/nobody\nSHELL=/bin/sh\nSHLVL=1\nUSER=app\n"
    );

    // What the user says goes before it, with the same image as `docker save` writes it.
    let words =
        ["--quiet", "--root=saved.tar", "--entrypoint=sh", "-e", "GREETING=me", "-u", "1234", "-w", "/bin", "--"];
    let output = run(dir.path(), &[&words[..], &["-c", TELL, "mine", "four"]].concat());
    assert_status(&output, 0);
    assert_eq!(
        stdout(&output),
        "mine:four\n1234:1235:1235 77\n/bin\nGREETING=me\nHOME=/home/app\nLOGNAME=app\nPATH=/none:/bin\nPWD=/bin\n\
         SHELL=/bin/sh\nSHLVL=1\nUSER=app\n"
    );

    // Without the entry point the words are the command; the other commands see the files alone.
    let words = ["--verbose", "--root=oci:layout:app", "--entrypoint=", "--ro", "-w/", "--", "sh", "-c", "pwd; id -u"];
    let output = run(dir.path(), &words);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "/\n1234\n");
    assert!(
        stderr(&output).contains("inarch: the image runs sh -c pwd; id -u (in /, as app:staff)"),
        "{}",
        stderr(&output)
    );
    let output = run(dir.path(), &["--quiet", "--root=oci:layout:app", "--ro"]);
    assert_one_line(
        &output,
        &["the working directory /made/by/nobody cannot be made in the guest: read-only file system"],
    );
}

#[test]
fn odd_images_are_run_as_docker_would() {
    let dir = scratch();
    host("sh", &["-c", ROOT], dir.path());
    // A name that is a file of the image, and not what the host has at the same place.
    let links =
        "mkdir rootfs/data && mv rootfs/etc/passwd rootfs/data/passwd && ln -s /data/passwd rootfs/etc/passwd &&
        mv rootfs/etc/group rootfs/data/group && ln -s ../../../data/group rootfs/etc/group";
    host("sh", &["-c", links], dir.path());
    let config = serde_json::json!({
        "Entrypoint": null, "Cmd": ["sh", "-c", TELL, "cmd"], "User": "app", "WorkingDir": "/../../data/./x/..",
        "Env": ["NOVALUE", "=noname", "A=1", "A=2", "B=3", "B", ""],
        "ExposedPorts": { "80/tcp": {} }, "Volumes": { "/data": {} }, "StopSignal": "SIGQUIT",
        "Healthcheck": { "Test": ["CMD", "false"] }
    });
    docker_archive(dir.path(), "odd.tar", &config);
    let expected = "cmd:\n1234:1235:1235 77\n/data\nA=2\nHOME=/home/app\nLOGNAME=app\n\
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nPWD=/data\nSHELL=/bin/sh\nSHLVL=1\nUSER=app\n";
    for way in ["ext4", "tar"] {
        let output = run(dir.path(), &["--root=odd.tar", "--via", way]);
        assert_status(&output, 0);
        assert_eq!(stdout(&output), expected, "{way}");
    }
}

#[test]
fn users_whom_the_image_does_not_know_are_named() {
    let dir = scratch();
    host("sh", &["-c", ROOT], dir.path());
    docker_archive(dir.path(), "nobody.tar", &serde_json::json!({ "Cmd": ["id"], "User": "somebody:staff" }));
    let output = run(dir.path(), &["--quiet", "--root=nobody.tar"]);
    assert_one_line(&output, &["the guest's /etc/passwd has no user 'somebody'"]);
    // A FIFO without a writer: opening it for reading would block.
    host("sh", &["-c", "rm rootfs/etc/passwd && mkfifo rootfs/etc/passwd"], dir.path());
    docker_archive(dir.path(), "pipe.tar", &serde_json::json!({ "Cmd": ["id"], "User": "app\u{1b}[2J" }));
    let output = run(dir.path(), &["--quiet", "--root=pipe.tar"]);
    assert_one_line(&output, &["the guest's /etc/passwd has no user 'app [2j'"]);
}

#[test]
fn what_cannot_be_started_gets_one_line() {
    let dir = scratch();
    host("sh", &["-c", "mkdir rootfs && touch rootfs/file"], dir.path());
    let archive = |name: &str, config: serde_json::Value| docker_archive(dir.path(), name, &config);
    archive("none.tar", serde_json::json!(null));
    archive("relative.tar", serde_json::json!({ "Cmd": ["x"], "WorkingDir": "../etc" }));
    archive("nul.tar", serde_json::json!({ "Cmd": ["x"], "Env": ["A=1\u{0}B=2"] }));
    archive("nul-word.tar", serde_json::json!({ "Cmd": ["x\u{0}y"] }));
    archive("word.tar", serde_json::json!({ "Cmd": ["x", "a".repeat(1 << 20)] }));
    archive(
        "many.tar",
        serde_json::json!({ "Cmd": ["x"], "Env": vec!["A"; 1 << 20], "Entrypoint": vec!["a"; 1 << 19] }),
    );
    archive("huge.tar", serde_json::json!({ "Cmd": ["x"], "Env": ["A".repeat(9 << 20)] }));
    archive("long.tar", serde_json::json!({ "Cmd": ["x"], "User": "a".repeat(1 << 20) }));
    for (file, parts) in [
        ("none.tar", &["none.tar: the image names no command (neither entrypoint nor cmd); give one"][..]),
        ("relative.tar", &["relative.tar: its working directory '../etc' is not an absolute path", "-w DIR"]),
        ("nul.tar", &["nul.tar", "a string of its configuration has a nul in it"]),
        ("nul-word.tar", &["nul-word.tar", "a string of its configuration has a nul in it"]),
        ("word.tar", &["word.tar", "has 1048576 bytes; the kernel starts nothing with more"]),
        ("many.tar", &["many.tar", "its command and its environment take", "the kernel starts nothing with more"]),
        ("huge.tar", &["huge.tar", "config.json"]),
        ("long.tar", &["long.tar: its user's name has 1048576 bytes", "-u USER"]),
    ] {
        assert_one_line(&run(dir.path(), &["--quiet", "--root", file]), parts);
    }
    // What only a run needs holds up no other command.
    for file in ["none.tar", "relative.tar", "word.tar", "many.tar", "long.tar"] {
        let output = inarch(["plan", dir.path().join(file).to_str().unwrap()]);
        assert_status(&output, 0);
    }
    let words = ["--quiet", "--root=relative.tar", "--entrypoint="];
    assert_one_line(&run(dir.path(), &words), &["without its entry point a command is needed"]);
    assert_one_line(&run(dir.path(), &["--root=rootfs", "--entrypoint=x", "y"]), &["--entrypoint", "rootfs"]);
    host("tar", &["-C", "rootfs", "-cf", "plain.tar", "."], dir.path());
    let output = run(dir.path(), &["--quiet", "--root=plain.tar", "--entrypoint=x", "y"]);
    assert_one_line(&output, &["--entrypoint is for container images, and the root is plain.tar"]);
    assert_one_line(&run(dir.path(), &["--root=none.tar", "-u", "a:b:c", "x"]), &["-u a:b:c", "USER:GROUP"]);
}
