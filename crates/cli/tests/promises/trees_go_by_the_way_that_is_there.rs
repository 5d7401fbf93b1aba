//! Promise: `--via tar` unpacks a whole tree in the guest; and without `--via`, a run chooses the best transport that
//! the guest's kernel supports, and reports it with the reason.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::support::mounted::unmount;
use crate::support::{
    MANIFEST, any_machine, assert_one_line, assert_status, host, inarch, run_script_in, scratch, stderr, stdout,
};

/// What a tmpfs of every kernel can hold, and what a tar can: no sockets, no user attributes.
fn plain_tree(tree: &Path) {
    let script = r#"
set -eu
mkdir a empty 'sp ace' "$(printf 'latin\351')"; chmod 2750 empty; chown 12:34 a
d=deep; mkdir $d; for i in $(seq 30); do d=$d/level-$i; mkdir "$d"; done; echo bottom > "$d/file"
echo content > a/file; chmod 4755 a/file; chown 1000:100 a/file; ln a/file a/link; ln a/file empty/another
touch -d '1950-01-02 03:04:05.678901234' a/old; head -c 4097 /dev/urandom > a/block-and-one
ln -s file a/symlink; ln -s "$(printf 'x%.0s' $(seq 1000))" a/long
mkfifo a/fifo; mknod a/char c 1 3; mknod a/block b 259 70000
truncate -s 10M a/hole; truncate -s 20M a/holes; printf data | dd of=a/holes bs=1 seek=8200 conv=notrunc status=none
touch "a/$(printf 'n%.0s' $(seq 255))" 'a/new
line'
setfattr -n trusted.x=y%z -v value a/file; setfacl -m u:1234:rw,g:5678:r a/file; setfacl -d -m u:42:rwx empty
touch empty/after-the-list; touch -d 2001-01-01 empty
"#;
    host("sh", &["-c", script], tree);
}

#[test]
fn a_tree_is_unpacked_in_memory_or_on_a_disk() {
    let dir = scratch();
    let (small, large) = (dir.path().join("small"), dir.path().join("large"));
    for tree in [&small, &large] {
        fs::create_dir(tree).unwrap();
        plain_tree(tree);
    }
    // More than half of the guest's memory.
    host("sh", &["-c", "head -c 140M /dev/urandom | split -b 7M; setfattr -n user.x -v kept xaa"], &large);
    let program = dir.path().join("manifest.py");
    // Nobody can set the time of the last change.
    fs::write(&program, MANIFEST.replace(", s.st_ctime_ns", "")).unwrap();
    let manifest = |tree: &Path| host("python3", &[program.to_str().unwrap(), "."], tree);
    let trees = [format!("{}:/small,via=tar", small.display()), format!("{}:/large,ro,via=tar", large.display())];
    let script = format!(
        "python3 {0} /small; python3 {0} /large >&2; stat -fc %T /small /large > types; cat types >&2; touch /small/new; \
         touch /large/new 2>&1 | grep -o Read-only >&2",
        program.display()
    );
    let options = ["--mem=256M", "--tree", &trees[0], "--tree", &trees[1]];
    let output = run_script_in(any_machine(), dir.path(), &options, &script, b"");
    assert_eq!(stdout(&output), manifest(&small));
    assert_eq!(stderr(&output), manifest(&large) + "tmpfs\next2/ext3\nRead-only\n");
    assert!(!small.join("new").exists(), "the guest's write reached the host");
}

/// The modules of this machine's kernel, as if it had none of those in `missing`.
fn modules_without(dir: &Path, missing: &[&str]) -> String {
    let kernel = stdout(&inarch(["doctor", "--json"]));
    let release = kernel.split("vmlinuz-").nth(1).and_then(|rest| rest.split('"').next()).expect("a kernel");
    let real = Path::new("/lib/modules").join(release);
    let copy = dir.join(format!("without-{}", missing.join("-")));
    fs::create_dir(&copy).unwrap();
    symlink(real.join("kernel"), copy.join("kernel")).unwrap();
    for name in ["modules.builtin", "modules.softdep"] {
        fs::copy(real.join(name), copy.join(name)).unwrap();
    }
    let all = fs::read_to_string(real.join("modules.dep")).unwrap();
    let is_missing =
        |line: &str| missing.iter().any(|name| line.split(':').next().unwrap().ends_with(&format!("/{name}.ko")));
    let left: String = all.lines().filter(|line| !is_missing(line)).flat_map(|line| [line, "\n"]).collect();
    assert_eq!(left.lines().count() + missing.len(), all.lines().count(), "not every one of {missing:?} is a module");
    fs::write(copy.join("modules.dep"), left).unwrap();
    format!("--modules={}", copy.display())
}

#[test]
fn ninep_goes_over_tcp_where_the_kernel_has_no_virtio_sockets() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "content\n").unwrap();
    let option = format!("--tree={}:/t,rw,via=9p", tree.display());
    let modules = modules_without(dir.path(), &["vmw_vsock_virtio_transport"]);
    let script = "cat /t/file; echo from the guest > /t/made; grep -o '^.* /t 9p rw' /proc/mounts";
    let output = inarch(["run", "-q", "--accel=tcg", "-w/", &option, &modules, "--", "sh", "-c", script]);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "content\n10.0.2.100 /t 9p rw\n");
    assert_eq!(fs::read_to_string(tree.join("made")).unwrap(), "from the guest\n");
}

#[test]
fn auto_takes_what_the_kernel_has_and_says_why() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::copy("/bin/busybox", tree.join("busybox")).unwrap();
    fs::write(tree.join("file"), "content\n").unwrap();
    let option = format!("--tree={}:/t", tree.display());
    let script = "b=/t/busybox; $b cat /t/file; echo w > /t/file; $b cat /t/file; $b grep ' /t ' /proc/mounts";
    let run = |missing: &[&str]| {
        let modules = modules_without(dir.path(), missing);
        let run =
            ["run", "--accel=tcg", "--root=none", "-w/", &option, &modules, "--", "/t/busybox", "sh", "-c", script];
        let output = inarch(run);
        assert_status(&output, 0);
        assert_eq!(fs::read_to_string(tree.join("file")).unwrap(), "content\n", "the guest's write reached the host");
        (stdout(&output), stderr(&output))
    };

    // What is written is in the guest's memory where there is no disk for it.
    let (seen, said) = run(&["ext4"]);
    assert!(seen.starts_with("content\nw\noverlay /t overlay rw"), "{seen}");
    assert_eq!(said, "inarch: /t goes by erofs: a snapshot; the guest's kernel has no ext4\n");

    let (seen, said) = run(&["virtio_blk"]);
    assert!(seen.starts_with("content\nw\noverlay /t overlay rw"), "{seen}");
    assert_eq!(said, "inarch: /t goes by virtiofs: live; the guest's kernel has no disks with a file system of ours\n");

    let (seen, said) = run(&["virtio_blk", "overlay"]);
    assert!(seen.starts_with("content\nw\n"), "{seen}");
    assert!(seen.contains(" /t tmpfs rw"), "{seen}");
    assert_eq!(said, "inarch: /t goes by tar: unpacked in the guest, whose kernel can mount nothing of ours\n");
}

#[test]
fn what_fits_nowhere_is_refused_before_the_start() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    host("sh", &["-c", "head -c 140M /dev/urandom > large"], &tree);
    let option = format!("--tree={}:/t", tree.display());
    let run = |words: &[&str]| {
        inarch(
            [&["run", "-q", "--accel=tcg", "--root=none", "-w/", "--mem=256M", &option], words, &["--", "true"]]
                .concat(),
        )
    };
    let modules = modules_without(dir.path(), &["virtio_blk", "overlay"]);
    assert_one_line(&run(&[&modules]), &["141 MiB", "128", "-m 282M"]);
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    host("mount", &["-t", "tmpfs", "-o", "size=20M", "tmpfs", small.to_str().unwrap()], dir.path());
    let overlay = format!("--overlay-dir={}", small.display());
    let output = run(&[&overlay, "--via=tar"]);
    unmount(&small);
    assert_one_line(&output, &["141 MiB", "on a disk 17", "without --via tar"]);
}
