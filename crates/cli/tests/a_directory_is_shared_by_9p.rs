//! Promise: a guest that reaches a directory by 9P sees it live, and changes it only if it was told that it may.

mod support;

use std::fs;

use support::{assert_status, inarch, scratch, stdout};

/// What a guest does with each directory; it prints what it found.
const WORK: &str = "
    cat /live/file /thrown/file
    echo guest > /live/made; echo more >> /live/file; mv /live/dir/old /live/dir/new; ln -s file /live/link
    echo guest > /thrown/made; rm /thrown/file; ls /thrown
    touch /kept/x 2>/dev/null || echo refused
    flock /live/file true && echo locked
    grep -c ' 9p ' /proc/mounts";

#[test]
fn live_thrown_away_and_read_only() {
    let place = scratch();
    let directory = |name: &str| {
        let path = place.path().join(name);
        fs::create_dir_all(path.join("dir")).unwrap();
        fs::write(path.join("file"), format!("{name}\n")).unwrap();
        fs::write(path.join("dir/old"), b"").unwrap();
        path
    };
    let [live, thrown, kept] = ["live", "thrown", "kept"].map(directory);
    let tree = |path: &std::path::Path, option: &str| format!("{}:/{option}", path.display());
    let (live_tree, thrown_tree, kept_tree) =
        (tree(&live, "live,rw,via=9p"), tree(&thrown, "thrown,via=9p"), tree(&kept, "kept,ro,via=9p"));
    let arguments = ["run", "-q", "--tree", &live_tree, "--tree", &thrown_tree, "--tree", &kept_tree, "--"];
    let run = inarch(arguments.into_iter().chain(["sh", "-c", WORK]));
    assert_status(&run, 0);
    assert_eq!(stdout(&run), "live\nthrown\ndir\nmade\nrefused\nlocked\n2\n");
    assert_eq!(fs::read(live.join("made")).unwrap(), b"guest\n");
    assert_eq!(fs::read(live.join("file")).unwrap(), b"live\nmore\n");
    assert!(live.join("dir/new").exists() && !live.join("dir/old").exists());
    assert_eq!(fs::read_link(live.join("link")).unwrap(), std::path::Path::new("file"));
    assert_eq!(fs::read(thrown.join("file")).unwrap(), b"thrown\n");
    assert!(!thrown.join("made").exists() && !kept.join("x").exists());
}
