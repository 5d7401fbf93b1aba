//! Promise: after a kill -9 of a kept run at any moment, what the guest was told is durable is there, and its file system
//! needs no repair beyond its journal.

#[path = "support/kept.rs"]
mod kept;
mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use kept::Scene;
use support::{assert_status, stdout};

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
