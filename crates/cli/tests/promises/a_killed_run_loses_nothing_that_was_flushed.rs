//! Promise: after a kill -9 of a kept run at any moment, everything that the guest had flushed is there, and its file
//! system needs no repair beyond its journal.

use crate::support;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::kept::Scene;
use crate::support::{assert_status, stdout};

/// The kept disk is one to `e2fsck`: it replays the journal, in a copy of what the guest wrote, and finds nothing to repair
/// but the superblock's sums, which a kernel writes only when it unmounts.
fn check_file_system(scene: &Scene) {
    let script = "cp --sparse=always state/inarch/runs/run/0.1.overlay copy; : > disk; \
        $INARCH serve file root disk --overlay copy 2> log & server=$!; \
        for i in $(seq 2400); do [ -s disk ] && break; sleep 0.05; done; \
        e2fsck -fp disk; [ $? -le 1 ] && e2fsck -fn disk; status=$?; kill $server; wait $server; rm copy; exit $status";
    let output = Command::new("sh")
        .args(["-c", script])
        .env("INARCH", support::INARCH)
        .current_dir(scene.path())
        .output()
        .expect("a shell");
    assert_status(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("recovering journal"), "{text}");
    // An inode that was open when the guest died is an orphan: the list of them is part of the recovery. And the guest's
    // clock may be a little ahead.
    let allowed = [
        "recovering journal",
        "Clearing orphaned inode",
        "non-contiguous",
        "Pass ",
        "in the future",
        "hardware clock",
        "lost+found",
    ];
    let repairs: Vec<_> = text.lines().filter(|line| !allowed.iter().any(|part| line.contains(part))).collect();
    assert!(repairs.is_empty(), "{repairs:#?}");
}

#[test]
fn what_was_synced_is_there() {
    let scene = Scene::new();
    let script = "cd /data; n=$(cat count 2>/dev/null || echo 0); \
        while :; do n=$((n+1)); mkdir d$n; echo $n > d$n/file; mv d$n e$n; echo $n > new; mv new count; sync; echo $n; \
        rm -rf e$((n-3)); done";
    let mut last = 0;
    // Each run ends somewhere else in what it repeats, and the next goes on over what it left.
    for (round, milliseconds) in [300, 450, 620].into_iter().enumerate() {
        let mut run = scene.run_command("run", script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        let first: u64 = lines.next().expect("the guest speaks").unwrap().parse().unwrap();
        assert!(first > last, "round {round} begins with {first}, and {last} was synced");
        last = first;
        let end = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < end {
            last = lines.next().expect("the guest goes on").unwrap().parse().unwrap();
        }
        run.kill().unwrap();
        run.wait().unwrap();
        // Read without a machine, the journal replayed: no line of complaint, and nothing torn.
        if round == 0 {
            // Later disks are of the tree with what the run changed: no command but the run's own makes those.
            check_file_system(&scene);
        }
        let diff = scene.call(["diff", "run"]);
        assert_status(&diff, 0);
        assert_eq!(support::stderr(&diff), "");
        let text = stdout(&diff);
        let synced = |n: u64| text.contains(&format!("A  /data/e{n}/file\n"));
        assert!(synced(last) || synced(last + 1), "{last} was synced: {text}");
    }
    // The kernel replays the journal too, and finds nothing to complain of.
    let check = scene
        .run("run", "cat /data/count; ls /data/e*/file > /dev/null && dmesg | /bin/busybox grep -ci 'ext4.*error'");
    let text = stdout(&check);
    let mut lines = text.lines();
    let count: u64 = lines.next().unwrap().parse().unwrap();
    assert!(count >= last, "{count} of {last}");
    assert_eq!(lines.next(), Some("0"), "errors of the file system");
}

/// A file whose content goes through the journal is new in the journal before it is new in its place.
#[test]
fn content_that_only_the_journal_has_is_there() {
    let scene = Scene::new();
    let script = "for tool in chattr; do path=$(command -v $tool); cp -L $path root/bin/$tool; \
        for library in $(ldd $path | grep -o '/[^ ]*'); do mkdir -p root${library%/*}; cp -L $library root$library; done; done";
    support::host("sh", &["-ec", script], scene.path());
    let size = std::fs::metadata(scene.host("data/big")).unwrap().len();
    let blocks = size / 4096;
    let script = format!(
        "set -e; cd /data; chattr +j big; \
        dd if=/dev/zero of=big bs=4096 count={blocks} conv=notrunc,fsync 2>/dev/null; echo written; sleep 600"
    );
    let mut run = scene.run_command("run", &script).stdout(Stdio::piped()).spawn().unwrap();
    let line = BufReader::new(run.stdout.take().unwrap()).lines().next().expect("the guest speaks").unwrap();
    assert_eq!(line, "written");
    run.kill().unwrap();
    run.wait().unwrap();
    let diff = stdout(&scene.call(["diff", "run"]));
    assert!(diff.contains("M  /data/big\n"), "{diff}");
    assert_status(&scene.call(["apply", "run"]), 0);
    let content = std::fs::read(scene.host("data/big")).unwrap();
    assert!(content.len() as u64 == size && content[..(blocks * 4096) as usize].iter().all(|byte| *byte == 0));
}
