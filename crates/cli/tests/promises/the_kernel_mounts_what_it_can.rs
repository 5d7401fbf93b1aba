//! Promise: as root, the kernel serves a mount by itself wherever it can do what is asked for, and the line at the start says why where
//! it does not; either way means the same, and one takes up what the other left.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use crate::support::mounted::{Scene, Server, is_mount_point, is_mounted, is_there, last_process};
use crate::support::{LONG, assert_one_line, assert_status, host, stderr, stdout, within};

/// Whether only root's mounts can be tested.
fn is_user(test: &str) -> bool {
    let is_user = !rustix::process::geteuid().is_root();
    if is_user {
        println!("skipped: {test}: only root mounts by the kernel");
    }
    is_user
}

/// The type of the file system that is mounted on `point` in `dir`, and its options.
fn kind(dir: &Path) -> (String, String) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = format!(" {} ", dir.join("point").display());
    let line = table.lines().find(|line| line.contains(&point)).unwrap();
    let options = line.split(' ').nth(5).unwrap().to_owned();
    (line.split_once(" - ").unwrap().1.split(' ').next().unwrap().to_owned(), options)
}

#[test]
fn what_can_be_is_the_kernels_and_for_all_else_there_is_a_reason() {
    if is_user("what_can_be_is_the_kernels_and_for_all_else_there_is_a_reason") {
        return;
    }
    let scene = Scene::new();
    host("tar", &["-cf", "tree.tar", "tree"], scene.path());
    for (source, options, reason) in [
        ("tree", "", ""),
        ("tree", "--ro", ""),
        ("tree", "--cross", ""),
        ("tree", "--changes guest", ""),
        ("tree", "--locks host", ""),
        ("tree", "--owner map", ""),
        ("tree", "--map-uid 7:8:1 --map-uid 8:7:1", ""),
        ("tree", "--ephemeral --overlay-dir .", ""),
        ("tree", "--ephemeral --in-memory 1M", ""),
        ("tree", "--overlay over", ""),
        ("tree", "--overlay over --changes guest --nodev", ""),
        ("tree", "--overlay over --changes host", "--changes host and --overlay"),
        ("tree", "--record record", "--record"),
        ("tree", "--nodev", "--nosuid or --nodev"),
        ("tree", "--map-uid 7:8:1", "several owners are seen as one"),
        ("tree", "--owner 1:2", "several owners are seen as one"),
        ("tree", "--overlay over --map-uid 7:8:1", "other owners and --overlay"),
        ("tree.tar", "", "an archive or image"),
    ] {
        let words: Vec<&str> = options.split_whitespace().collect();
        let mut server = Server::start(scene.path(), source, &words);
        let (found, flags) = kind(scene.path());
        assert_eq!(found == "fuse.inarch", !reason.is_empty(), "{source} {options}: {found}");
        assert!(flags.contains("nosuid,nodev"), "{options}: {flags}");
        let way = if reason.is_empty() { "; by the kernel".to_owned() } else { format!("; by FUSE ({reason})") };
        assert!(server.line.trim_end().ends_with(&way), "{source} {options}: {}", server.line);
        assert!(fs::exists(scene.path().join("point/file")).unwrap() || source == "tree.tar");
        assert_eq!(server.end("-TERM"), Some(0));
        let refused =
            scene.shell(&format!("exec timeout 60 $INARCH mount {source} point {options} --via kernel -b --log log"));
        if reason.is_empty() {
            assert_status(&refused, 0);
            assert_status(&scene.shell("$INARCH umount point"), 0);
        } else {
            assert_one_line(&refused, &["--via kernel: the kernel cannot do that by itself: ", reason]);
        }
        assert!(!is_mounted(scene.path()));
    }
}

#[test]
fn what_is_mounted_beneath_shows_nothing_that_it_hides() {
    if is_user("what_is_mounted_beneath_shows_nothing_that_it_hides") {
        return;
    }
    let scene = Scene::new();
    let tree = scene.path().join("tree");
    fs::create_dir(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/hidden"), "").unwrap();
    host("mount", &["-t", "tmpfs", "tmpfs", "tree/sub"], scene.path());
    fs::write(tree.join("sub/seen"), "seen").unwrap();
    let found = |options: &str| {
        let used = scene
            .shell(&format!("$INARCH mount -qb tree point {options} && ls point/sub && $INARCH umount point; echo $?"));
        (stdout(&used), stderr(&used))
    };
    let plain = ["", "--ephemeral --overlay-dir .", "--ro"].map(found);
    let crossed = ["--cross", "--cross --ro", "--cross --via kernel"].map(found);
    // What is in use there keeps the whole.
    let used = scene.shell(
        "$INARCH mount -qb tree point --cross && (cd point/sub && ! $INARCH umount ../../point 2> said) && grep -o 'in use by .*' said
         ls point/sub; $INARCH umount -q --lazy point; ls point",
    );
    host("umount", &["tree/sub"], scene.path());
    assert_eq!(plain, [(); 3].map(|()| ("0\n".to_owned(), String::new())));
    assert_eq!(crossed, [(); 3].map(|()| ("seen\n0\n".to_owned(), String::new())));
    assert!(stdout(&used).contains("sh (") && stdout(&used).ends_with("\nseen\n"), "{}", stdout(&used));
    assert!(!is_mounted(scene.path()) && !is_mount_point(&scene.path().join("point/sub")));
    assert!(tree.join("sub/hidden").exists());
}

#[test]
fn owners_are_mapped_by_the_kernel_where_no_two_become_one() {
    if is_user("owners_are_mapped_by_the_kernel_where_no_two_become_one") {
        return;
    }
    let scene = Scene::new();
    chown(scene.path().join("tree/file"), Some(100_007), Some(100_008)).unwrap();
    for via in ["kernel", "fuse"] {
        let maps = ["100000:0:65536", "0:100000:65536"].map(|map| format!("--map-uid {map} --map-gid {map}")).join(" ");
        let used = scene.shell(&format!(
            "$INARCH mount -qb tree point {maps} --via {via} && stat -c %u:%g point/file && chmod 777 point && touch point/{via} &&
             setpriv --reuid 7 --regid 8 --clear-groups sh -c 'echo >> point/file && touch point/{via}-7'
             $INARCH umount point"
        ));
        assert_eq!((stdout(&used).as_str(), stderr(&used).as_str()), ("7:8\n", ""), "{via}");
        let owner =
            |name: &str| fs::metadata(scene.path().join("tree").join(name)).map(|it| (it.uid(), it.gid())).unwrap();
        assert_eq!((owner(via), owner(&format!("{via}-7"))), ((100_000, 100_000), (100_007, 100_008)));
    }
}

#[test]
fn what_is_in_use_keeps_its_layer_to_itself() {
    if is_user("what_is_in_use_keeps_its_layer_to_itself") {
        return;
    }
    let scene = Scene::new();
    assert_status(&scene.shell("$INARCH mount -b tree point --overlay over --via kernel"), 0);
    let server = last_process(&scene.usual_log());
    let file = fs::File::create(scene.path().join("point/new")).unwrap();
    host("kill", &[&server.to_string()], scene.path());
    assert!(within(LONG, || !is_mounted(scene.path())));
    let second = scene.shell("$INARCH mount -b tree point --overlay over; echo $?");
    let is_first_there = is_there(server);
    drop(file);
    assert!(is_first_there && within(LONG, || !is_there(server)));
    assert_eq!(stdout(&second), "125\n");
    assert!(stderr(&second).contains("another inarch keeps writes there"), "{}", stderr(&second));
    let third = scene.shell("$INARCH mount -b tree point --overlay over && ls point && $INARCH umount point");
    assert_eq!(stdout(&third), "file\nnew\n");
}
