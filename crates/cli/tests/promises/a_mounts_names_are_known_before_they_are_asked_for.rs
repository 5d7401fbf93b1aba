//! Promise: what a mount's kernel is told of names before they are asked for is right, holds nobody up, and keeps no mount in use.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::mounted::{Server, is_mounted};
use crate::support::{LONG, host, scratch, within};

/// 40 directories of 50 files, and one of 3,000.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let few = (0..2000).map(|file| PathBuf::from(format!("d{}/s{}/f{file}", file / 1000, file / 50)));
    let names: Vec<PathBuf> = few.chain((0..3000).map(|file| PathBuf::from(format!("large/f{file}")))).collect();
    for (number, name) in names.iter().enumerate() {
        let path = dir.join("tree").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, vec![b'x'; number % 77]).unwrap();
    }
    names
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// The child of a server that lists directories. It may be missed while others come and go.
fn lister(server: &Server) -> Option<u32> {
    let id = server.child.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &u32| {
        fs::read(format!("/proc/{child}/cmdline"))
            .is_ok_and(|line| line.windows(16).any(|part| part == b"list-directories"))
    })
}

/// Mounts, and waits until the server can have directories listed.
fn start(dir: &Path, source: &str, options: &[&str]) -> Server {
    let server = Server::start(dir, source, options);
    if is_root() {
        let waits = || {
            let place = lister(&server).map(|child| fs::read_to_string(format!("/proc/{child}/wchan")));
            place.is_some_and(|place| place.is_ok_and(|place| place.contains("poll")))
        };
        // It waits for orders then.
        assert!(within(LONG, waits), "no child waits for orders");
    }
    server
}

#[test]
fn who_looks_at_many_names_finds_them_as_they_are() {
    let dir = scratch();
    let names = tree(dir.path());
    let list: String = names.iter().map(|name| format!("{}\n", name.display())).collect();
    fs::write(dir.path().join("names"), list).unwrap();
    let look =
        |at: &str| host("sh", &["-c", &format!("cd {at} && xargs stat -c '%n %s %i %Y' < ../names")], dir.path());
    let expected = look("tree");
    for options in [&["--changes", "guest"][..], &["--changes", "none"], &["--changes", "host"], &["--ephemeral"]] {
        let options = [options, &["--io-uring", "off"]].concat();
        let mut server = start(dir.path(), "tree", &options);
        for round in 0..2 {
            assert!(look("point") == expected, "{options:?}, {round}");
        }
        assert_eq!(server.end("-TERM"), Some(0));
    }
}

/// 20 directories of 20 directories of 10 files, and a few of other kinds in between.
fn wide_tree(dir: &Path) {
    for (outer, inner) in (0..20).flat_map(|outer| (0..20).map(move |inner| (outer, inner))) {
        let directory = dir.join(format!("tree/d{outer}/s{inner}"));
        fs::create_dir_all(directory.join(format!("deeper/{}", "x/".repeat(inner % 4)))).unwrap();
        for file in 0..10 {
            fs::write(directory.join(format!("f{file}")), vec![b'x'; outer + inner + file]).unwrap();
        }
        std::os::unix::fs::symlink("f1", directory.join("link")).unwrap();
    }
}

#[test]
fn who_goes_through_a_tree_finds_it_as_it_is() {
    let dir = scratch();
    wide_tree(dir.path());
    let find = |at: &str| {
        host(
            "sh",
            &["-c", &format!("cd {at} && find . -mindepth 1 -printf '%p %y %s %n %m %T@ %l\n' | sort")],
            dir.path(),
        )
    };
    let expected = find("tree");
    for (source, options) in [
        ("tree", &["--changes", "guest"][..]),
        ("tree", &["--changes", "none"]),
        ("tree", &["--changes", "host"]),
        ("tree", &["--ephemeral"]),
        ("tree", &["--changes", "guest", "--io-uring", "off", "--owner", "squash"]),
    ] {
        let mut server = start(dir.path(), source, options);
        for round in 0..3 {
            assert!(find("point") == expected, "{options:?}, {round}");
        }
        assert_eq!(server.end("-TERM"), Some(0));
    }
}

#[test]
fn who_goes_through_a_tree_that_somebody_changes_finds_what_stays() {
    let dir = scratch();
    wide_tree(dir.path());
    for options in [&["--changes", "guest"][..], &["--ephemeral"]] {
        let mut server = start(dir.path(), "tree", options);
        let point = dir.path().join("point");
        thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for (outer, inner) in (0..20).rev().flat_map(|outer| (0..20).map(move |inner| (outer, inner))) {
                    let directory = point.join(format!("d{outer}/s{inner}"));
                    fs::write(directory.join("f2"), "other").unwrap();
                    fs::remove_file(directory.join("f3")).unwrap();
                    fs::rename(directory.join("f5"), directory.join("moved")).unwrap();
                    fs::create_dir(directory.join("new")).unwrap();
                }
            });
            let mut is_last = false;
            while !is_last {
                is_last = changes.is_finished();
                let found = host("sh", &["-c", "find point -name 'f[14]' -size 1 | wc -l"], dir.path());
                assert_eq!(found, "800\n");
            }
        });
        let found = host(
            "sh",
            &["-c", "find point -name moved -o -name new -o -name f2 -size -6c -o -name f3 | wc -l"],
            dir.path(),
        );
        assert_eq!(found, "1200\n", "{options:?}");
        assert_eq!(server.end("-TERM"), Some(0));
        // For the next ones, as it was.
        fs::remove_dir_all(dir.path().join("tree")).unwrap();
        wide_tree(dir.path());
    }
}

#[test]
fn nobody_finds_the_mount_in_use() {
    let dir = scratch();
    let names = tree(dir.path());
    for round in 0..20 {
        let mut server = start(dir.path(), "tree", &["--changes", "guest"]);
        for name in names.iter().take(10 + 150 * round) {
            fs::symlink_metadata(dir.path().join("point").join(name)).unwrap();
        }
        if round % 3 == 0 {
            host("find", &["point/d0", "point/d1", "-size", "1"], dir.path());
        }
        if round % 2 == 0 {
            // Fails while anybody has anything open, the child a directory that it lists.
            let unmounts = || {
                let unmount = Command::new("umount").arg("point").current_dir(dir.path()).output();
                unmount.unwrap().status.success()
            };
            assert!(within(LONG, unmounts), "the mount stays in use");
            assert_eq!(server.child.wait().unwrap().code(), Some(0));
        } else {
            assert_eq!(server.end("-TERM"), Some(0));
        }
        assert!(!is_mounted(dir.path()));
    }
}

#[test]
fn it_ends_with_its_server() {
    let dir = scratch();
    tree(dir.path());
    let mut server = start(dir.path(), "tree", &[]);
    if !is_root() {
        return println!("skipped: it_ends_with_its_server: only root's server has a child");
    }
    let mut child = None;
    assert!(within(LONG, || {
        child = lister(&server);
        child.is_some()
    }));
    let child = child.unwrap();
    server.end("-KILL");
    // Whoever inherits it may leave a zombie, which has no command line.
    let is_gone = || fs::read(format!("/proc/{child}/cmdline")).map_or(true, |line| line.is_empty());
    assert!(within(LONG, is_gone), "{child} is still there");
    assert!(within(LONG, || !is_mounted(dir.path())));
}

#[test]
fn a_mount_does_without_it() {
    let dir = scratch();
    let names = tree(dir.path());
    let mut server = start(dir.path(), "tree", &["--changes", "guest"]);
    for (number, name) in names.iter().enumerate() {
        if let (700, Some(child)) = (number, lister(&server)) {
            host("kill", &["-KILL", &child.to_string()], dir.path());
        }
        assert_eq!(fs::metadata(dir.path().join("point").join(name)).unwrap().len(), number as u64 % 77);
    }
    assert_eq!(server.end("-TERM"), Some(0));
}

#[test]
fn what_is_recorded_is_what_programs_did() {
    let dir = scratch();
    tree(dir.path());
    let mut server = Server::start(dir.path(), "tree", &["--record", "record"]);
    assert!(lister(&server).is_none());
    // Two names of a directory, by which a child would have it listed.
    for name in ["d0/s0/f1", "d0/s0/f2"] {
        assert!(dir.path().join("point").join(name).exists());
    }
    assert_eq!(server.end("-TERM"), Some(0));
    let record = fs::read_to_string(dir.path().join("record")).unwrap();
    let accesses = record.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let paths: BTreeSet<String> = accesses.filter_map(|line| Some(line["path"].as_str()?.to_owned())).collect();
    let expected = ["d0", "d0/s0", "d0/s0/f1", "d0/s0/f2"].map(str::to_owned);
    // The root may be named too.
    let others: Vec<&String> = paths.iter().filter(|path| !matches!(path.as_str(), "" | ".")).collect();
    assert_eq!(others, expected.iter().collect::<Vec<_>>(), "{record}");
}

#[test]
fn who_changes_a_directory_meanwhile_is_neither_held_up_nor_misled() {
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    let mut server = start(dir.path(), "tree", &["--changes", "guest"]);
    let point = dir.path().join("point");
    for round in 0..60 {
        let directory = point.join(format!("{round}"));
        // Made beside the mount's back, so that its kernel knows none of the names.
        let source = dir.path().join(format!("tree/{round}"));
        fs::create_dir(&source).unwrap();
        (0..100).for_each(|name| fs::write(source.join(format!("old{name}")), "12345").unwrap());
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for name in 0..50 {
                    fs::write(directory.join(format!("new{name}")), vec![b'n'; name]).unwrap();
                    fs::rename(directory.join(format!("old{name}")), directory.join(format!("moved{name}"))).unwrap();
                    fs::write(directory.join(format!("old{}", 50 + name)), "1").unwrap();
                }
                done.store(true, Ordering::Release);
            });
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    (0..100).for_each(|name| drop(fs::metadata(directory.join(format!("old{name}")))));
                }
            });
        });
        for name in 0..50 {
            assert_eq!(fs::metadata(directory.join(format!("new{name}"))).unwrap().len(), name);
            assert!(!directory.join(format!("old{name}")).exists());
            assert_eq!(fs::metadata(directory.join(format!("moved{name}"))).unwrap().len(), 5);
            assert_eq!(fs::metadata(directory.join(format!("old{}", 50 + name))).unwrap().len(), 1);
        }
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 150);
    }
    assert_eq!(server.end("-TERM"), Some(0));
}

#[test]
fn git_sees_what_is_there() {
    let dir = scratch();
    tree(dir.path());
    let git = "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 && git -C tree init -q && git -C tree add . && \
               git -C tree -c user.name=n -c user.email=n@example.org commit -qm all && echo more > tree/d1/s20/f1000 && \
               touch tree/large/new && rm tree/d0/s1/f50";
    host("sh", &["-c", git], dir.path());
    let mut server = start(dir.path(), "tree", &["--changes", "host"]);
    let status = Command::new("git")
        .args(["-c", "safe.directory=*", "-C", "point", "status", "--short"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(status.stdout).unwrap(), " D d0/s1/f50\n M d1/s20/f1000\n?? large/new\n");
    assert_eq!(server.end("-TERM"), Some(0));
}
