//! Promise: a mistake gets one clear line and status 125, and nothing is left behind.

use crate::support;
use std::os::unix::net::UnixListener;
use std::process::Command;

use crate::support::{INARCH, assert_one_line, host, inarch, scratch};

#[test]
fn sources_that_are_none() {
    let dir = scratch();
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let missing = dir.path().join("missing");
    for command in ["plan", "serve"] {
        let (sub, socket) = (dir.path().join("socket"), command == "serve");
        let arguments = |source: &std::path::Path| {
            let mut all = vec![command.to_owned()];
            all.extend(socket.then(|| "blk".to_owned()));
            all.push(source.display().to_string());
            all.extend(socket.then(|| format!("--socket={}", sub.display())));
            all
        };
        assert_one_line(&inarch(arguments(&missing)), &["missing", "no such"]);
        assert_one_line(&inarch(arguments(&file)), &["file", "no known kind", "a directory, a tar"]);
        assert!(!sub.exists(), "a socket was left behind");
    }
    for source in [&missing, &file] {
        let tree = format!("--tree={}:/mnt", source.display());
        assert_one_line(&inarch(["run", "--quiet", "--accel=tcg", &tree, "--", "true"]), &[source.to_str().unwrap()]);
        let root = format!("--root={}", source.display());
        assert_one_line(&inarch(["run", "--quiet", "--accel=tcg", &root, "--", "true"]), &[source.to_str().unwrap()]);
    }
}

#[test]
fn options_that_make_no_sense() {
    let run = |option: &str| inarch(["run", option, "--", "true"]);
    for (option, part) in [
        ("--mem=5", "5"),
        ("--mem=x", "'x'"),
        ("--cpus=0", "1 to 255"),
        ("--cpus=256", "1 to 255"),
        ("--modules=/no/such/place", "cannot read /no/such/place"),
        ("--qemu-arg=-device edu", "a --qemu-arg of its own"),
        ("--timeout=-1", "-1"),
        ("--tree=/usr:relative", "absolute"),
        ("--tree=/usr,rx", "'rx'"),
        ("--accel=fast", "fast"),
        ("--owner=nobody-at-all", "nobody-at-all"),
        ("--via=carrier-pigeon", "carrier-pigeon"),
        ("--no-such-option", "--no-such-option"),
    ] {
        assert_one_line(&run(option), &[part]);
    }
    assert_one_line(&run("--mem=5"), &["memory", "MiB"]);
}

#[test]
fn misspelled_words_get_a_suggestion() {
    for (words, suggestion) in [
        (&["rum"][..], "did you mean 'run'?"),
        (&["umuont"], "did you mean 'umount'?"),
        (&["serve", "vritiofs"], "did you mean 'virtiofs'?"),
        (&["disk", "lst"], "did you mean 'ls' or 'list'?"),
        (&["help", "rum"], "did you mean 'run'?"),
        (&["rn", "true"], "did you mean 'run'?"),
        (&["image", "/usr", "out.ext4"], "-o out.ext4 writes the image there"),
        (&["run", "--qiet", "true"], "'--quiet'"),
        (&["run", "--via=ext5", "true"], "'ext4'"),
        (&["run", "--net=usr", "true"], "'user'"),
        (&["plan", "--format=erof", "/usr"], "'erofs'"),
        (&["mount", "--changes=gest", "/usr", "/mnt"], "'guest'"),
        (&["serve", "blk", "--read-olny", "/usr"], "'--read-only'"),
        (&["make", "-j"], "inarch run make"),
    ] {
        assert_one_line(&inarch(words), &[suggestion]);
    }
}

#[test]
fn words_that_contradict_each_other() {
    for (words, part) in [
        (&["run", "--rm", "--keep=x", "true"][..], "--rm"),
        (&["run", "--ro", "--rw", "true"], "--rw"),
        (&["run", "-v", "/usr", "true"], "'/usr' does not say where the guest sees it; write SRC:DST[:ro]"),
        (&["run", "-v", "/usr:/a:rx", "true"], "'rx' is none of ro"),
        (&["run", "-v", "/usr:/a:/b", "true"], "more than one ':'"),
        (&["run", "-v", "/usr:/a,via=ext4", "true"], "--tree"),
        (&["run", "-v", "/usr:/a,hold", "true"], "hold is for"),
        (
            &["run", "-v", "/etc/passwd:/a", "true"],
            "only a directory is shared live: share the one that this file is in",
        ),
        (&["run", "-v", "/no/such:/a", "true"], "there is no directory /no/such; make it first"),
        (&["run", "--tree=/usr:/a,via=9p,hold", "true"], "hold is for"),
        (&["run", "--timeout=1x", "true"], "'1x'"),
        (&["mount", "-o", "ro,rx", "/usr", "/mnt"], "'rx'"),
        (&["mount", "-o", "ro", "--ephemeral", "/usr", "/mnt"], "-o ro"),
        (&["mount", "--ro", "--rw", "/usr", "/mnt"], "--rw"),
        (&["mount", "--in-memory=1M", "/usr", "/mnt"], "say --ephemeral"),
        (&["plan", "--epoch=yesterday", "/usr"], "not a number of seconds since 1970"),
        (&["run"], "inarch run CMD"),
        (&["rm"], "NAME"),
        (&["serve", "virtiofs", "/missing", "--socket=/tmp/none", "--qemu-memory=512M"], "/missing"),
    ] {
        assert_one_line(&inarch(words), &[part]);
    }
}

#[test]
fn an_archive_takes_no_writes() {
    let dir = scratch();
    std::fs::write(dir.path().join("file"), "x").unwrap();
    host("tar", &["-cf", "a.tar", "file"], dir.path());
    let [archive, point] = ["a.tar", "."].map(|name| dir.path().join(name).display().to_string());
    assert_one_line(&inarch(["mount", "--rw", &archive, &point]), &["--rw", "--ephemeral", "--overlay DIR"]);
}

#[test]
fn what_cannot_be_given_to_a_guest() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("{}:80", taken.local_addr().unwrap().port());
    let run = |words: &[&str]| inarch([&["run", "-q", "--accel=tcg"], words, &["true"]].concat());
    assert_one_line(&run(&["-p", &port]), &["-p", "Address already in use"]);
    assert_one_line(&run(&["-p", "192.0.2.1:80:80"]), &["-p", "192.0.2.1"]);
    assert_one_line(&run(&["-p", "80"]), &["HOST:GUEST"]);
    assert_one_line(&run(&["-p", "80:80", "--net=none"]), &["--net=none"]);
    assert_one_line(&run(&["--qemu-arg=-no-such-word"]), &["QEMU failed", "-no-such-word"]);
    assert_one_line(&run(&["--console", "/no/such/place"]), &["/no/such/place"]);
}

#[test]
fn kernels_that_are_none() {
    let dir = scratch();
    let file = dir.path().join("kernel");
    std::fs::write(&file, "this is not a kernel").unwrap();
    let kernel = |path: &str| inarch(["run", "--quiet", "--accel=tcg", "--kernel", path, "--", "true"]);
    assert_one_line(&kernel("/no/such/kernel"), &["/no/such/kernel"]);
    assert_one_line(&kernel(file.to_str().unwrap()), &[file.to_str().unwrap(), "kernel"]);
    // A directory of modules without virtio is a kernel without virtio.
    let modules = dir.path().join("modules");
    std::fs::create_dir(&modules).unwrap();
    std::fs::write(modules.join("modules.dep"), "").unwrap();
    std::fs::write(modules.join("modules.builtin"), "").unwrap();
    let modules = format!("--modules={}", modules.display());
    assert_one_line(&inarch(["run", "--quiet", "--accel=tcg", &modules, "--", "true"]), &["virtio"]);
}

#[test]
fn qemu_that_is_missing_or_too_old() {
    let dir = scratch();
    let output = Command::new(INARCH)
        .args(["run", "--quiet", "--accel=tcg", "--", "true"])
        .env("PATH", dir.path())
        .output()
        .unwrap();
    assert_one_line(&output, &["qemu-system-x86_64", "apt install qemu-system-x86"]);

    let old = dir.path().join("qemu-system-x86_64");
    std::fs::write(&old, "#!/bin/sh\necho 'QEMU emulator version 2.11.1 (old)'\n").unwrap();
    support::host("chmod", &["+x", old.to_str().unwrap()], dir.path());
    let output = Command::new(INARCH)
        .args(["run", "--quiet", "--accel=tcg", "--", "true"])
        .env("PATH", format!("{}:/bin:/usr/bin", dir.path().display()))
        .output()
        .unwrap();
    assert_one_line(&output, &["2.11"]);
}

#[test]
fn sockets_that_cannot_be_had() {
    let dir = scratch();
    let serve = |socket: &str| inarch(["serve", "blk", "/usr/include", "--socket", socket]);
    let long = dir.path().join("s".repeat(120));
    assert_one_line(&serve(long.to_str().unwrap()), &["107"]);
    let busy = dir.path().join("busy");
    let _listener = UnixListener::bind(&busy).unwrap();
    assert_one_line(&serve(busy.to_str().unwrap()), &[busy.to_str().unwrap(), "another server"]);
    assert!(busy.exists(), "somebody else's socket was removed");
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert_one_line(&serve(file.to_str().unwrap()), &["not a socket"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    assert_one_line(&serve("/no/such/directory/socket"), &["/no/such/directory/socket"]);
}
