//! Promise: the guest's root is this machine's, another directory, or nothing but the trees.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{INARCH, any_machine, assert_one_line, assert_status, host, inarch, scratch, stdout};

/// A root with nothing in it but busybox, as a container's might be.
fn small_root(root: &Path) {
    let script = "mkdir -p bin etc && cp /bin/busybox bin/ && for tool in sh id pwd cat ls grep; do ln -s busybox bin/$tool; done && \
                  printf 'root:x:0:0::/root:/bin/sh\\nalice:x:1234:1234::/home/alice:/bin/sh\\n' > etc/passwd && \
                  printf 'root:x:0:\\nalice:x:1234:\\nwheel:x:77:alice\\n' > etc/group && chown -R 0:0 .";
    host("sh", &["-c", script], root);
}

#[test]
fn another_directory_is_the_root() {
    let dir = scratch();
    small_root(dir.path());
    let root = format!("--root={}", dir.path().display());
    let script = "id -u; pwd; ls /; echo $HOME; echo x > /written; cat /written";
    let output = inarch(["run", "--quiet", "--accel=tcg", &root, "--", "/bin/sh", "-c", script]);
    assert_status(&output, 0);
    let seen = stdout(&output);
    assert!(seen.starts_with("0\n/\nbin\ndev\netc\nproc\nrun\nsys\ntmp\n"), "{seen}");
    assert!(seen.ends_with("\n/root\nx\n"), "{seen}");
    assert!(!dir.path().join("written").exists() && !dir.path().join("proc").exists());

    // Users are those of that root.
    let output = inarch(["run", "--quiet", "--accel=tcg", &root, "-u", "alice", "--", "sh", "-c", "id; echo $HOME"]);
    assert_status(&output, 0);
    let seen = stdout(&output);
    assert!(seen.starts_with("uid=1234(alice) gid=1234(alice) groups="), "{seen}");
    assert!(seen.contains("77(wheel)") && seen.ends_with("\n/home/alice\n"), "{seen}");
}

/// The directories that a guest mounts something at need not be there, though it can make none.
#[test]
fn a_read_only_root_has_places_to_mount_at() {
    let dir = scratch();
    small_root(dir.path());
    let tree = scratch();
    std::fs::write(tree.path().join("file"), "of the tree\n").unwrap();
    let root = format!("--root={}", dir.path().display());
    let tree = format!("--tree={}:/mnt/tree,ro", tree.path().display());
    let script =
        "ls /; cat /mnt/tree/file; echo x > /tmp/x && cat /tmp/x; (echo x > /written) 2>&1 | grep -o Read-only";
    for way in ["--via=ext4", "--via=tar"] {
        let output = inarch(["run", "-q", any_machine(), way, "--ro", &root, &tree, "--", "/bin/sh", "-c", script]);
        assert_status(&output, 0);
        assert_eq!(stdout(&output), "bin\ndev\netc\nmnt\nproc\nrun\nsys\ntmp\nof the tree\nx\nRead-only\n", "{way}");
    }
    assert!(!dir.path().join("dev").exists());
    // Nothing is added to what is live.
    let live = inarch(["run", "-q", any_machine(), "--via=virtiofs", "--ro", &root, "--", "/bin/sh", "-c", script]);
    assert_one_line(&live, &["dev, proc, run, sys, tmp", "make no directory"]);
}

#[test]
fn nothing_but_the_trees() {
    let dir = scratch();
    small_root(dir.path());
    let tree = format!("--tree={}:/tools,ro", dir.path().display());
    let script = "/tools/bin/ls /tools; /tools/bin/grep -c vd /proc/mounts";
    let output = inarch(["run", "--quiet", any_machine(), "--root=none", &tree, "--", "/tools/bin/sh", "-c", script]);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "bin\netc\n1\n");
}

#[test]
fn owners_are_mapped_as_asked() {
    let dir = scratch();
    std::fs::write(dir.path().join("file"), "").unwrap();
    host("chown", &["1234:5678", "file"], dir.path());
    let trees =
        ["host", "squash", "42:43"].map(|map| format!("--tree={}:/mnt/{map},owner={map}", dir.path().display()));
    let trees = trees.map(|tree| tree.replace(":/mnt/42:43", ":/mnt/fixed"));
    let mut arguments = vec!["run", "--quiet", "--accel=tcg"];
    arguments.extend(trees.iter().map(String::as_str));
    arguments.extend(["--", "stat", "-c", "%u:%g", "/mnt/host/file", "/mnt/squash/file", "/mnt/fixed/file"]);
    let output = inarch(arguments);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "1234:5678\n0:0\n42:43\n");
}

#[test]
fn a_dry_run_prints_the_machine_and_starts_nothing() {
    let live = scratch();
    let share = format!("{}:/mnt/live,rw", live.path().display());
    // No process writes to this pipe, so open(2) of it would block for ever.
    let pipe = live.path().join("pipe");
    host("mkfifo", &[pipe.to_str().unwrap()], live.path());
    let unpacked = format!("{}:/mnt/unpacked,via=tar", pipe.display());
    let line =
        ["run", "--dry-run", "--accel=tcg", "--net", "--mem=1G", "--cpus=3", "--tree", &share, "--tree", &unpacked];
    // It starts no thread and no process, and makes no socket and no memory to be shared.
    let calls = "trace=clone,clone3,fork,vfork,socket,socketpair,memfd_create";
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-e", calls, "-e", "signal=none", "-o", "calls", INARCH]);
    let traced = traced.args(line.into_iter().chain(["--", "true"])).current_dir(live.path()).output();
    let output = match traced {
        Ok(output) => output,
        Err(_) => {
            println!(
                "skipped: a_dry_run_prints_the_machine_and_starts_nothing: what it starts: strace is not installed"
            );
            inarch(line.into_iter().chain(["--", "true"]))
        }
    };
    assert_status(&output, 0);
    assert_eq!(fs::read_to_string(live.path().join("calls")).unwrap_or_default(), "");
    let line = stdout(&output);
    assert_eq!(line.lines().count(), 1);
    for part in ["qemu-system-x86_64", "-smp 3", "share=on", "vhost-user-blk-pci", "virtio-net-pci", "-accel tcg"] {
        assert!(line.contains(part), "'{part}' is not in {line}");
    }
    // It can be read: no number stands for something that is gone with the process that printed it.
    for part in ["path=tree0.sock", "path=agent.sock", "path=inarch-tree-0.sock", "-initrd initramfs.cpio"] {
        assert!(line.contains(part), "'{part}' is not in {line}");
    }
    for part in ["fd=", "/proc/self/fd"] {
        assert!(!line.contains(part), "'{part}' is in {line}");
    }
    // Nor does it take a disk from those who use it.
    let image = live.path().join("disk.img");
    let used = fs::File::create(&image).unwrap();
    used.set_len(1 << 20).unwrap();
    rustix::fs::flock(&used, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let disk = format!("{},format=raw", image.display());
    let line = stdout(&inarch(["run", "--dry-run", "--accel=tcg", "--disk", &disk, "--", "true"]));
    assert!(line.contains(image.to_str().unwrap()), "{line}");
    assert_one_line(&inarch(["run", "--accel=tcg", "--disk", &disk, "--", "true"]), &["disk.img", "uses it"]);
}
